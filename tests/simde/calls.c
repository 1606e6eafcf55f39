/* calls.c: owns a table of the AVX-512 intrinsics whose models must not differ from the instructions: all that immintrin.h here models, and
 * those of SIMDe that the kernels lean on. Compiled twice, see calls.h.
 *
 * Threads: pure functions. */
#include "simde/calls.h"

#include <immintrin.h>
#include <stddef.h>
#include <string.h>

static __m512i si(const uint8_t *at) { return _mm512_loadu_si512(at); }
static __m512 ps(const uint8_t *at) { return _mm512_loadu_ps(at); }
static __m256i half(const uint8_t *at) { return _mm256_loadu_si256((const __m256i *)(const void *)at); }
static uint64_t mask(const uint8_t *at)
{
    uint64_t bits;
    memcpy(&bits, at, sizeof(bits));
    return bits;
}
static void put(uint8_t *out, __m512i x) { _mm512_storeu_si512(out, x); }
static void put_ps(uint8_t *out, __m512 x) { _mm512_storeu_ps(out, x); }
/* The instruction faults at an address that is no multiple of 64. */
static void stream(uint8_t *out, __m512i x)
{
    _Alignas(64) uint8_t to[64];
    _mm512_stream_si512((void *)to, x);
    _mm_sfence();
    memcpy(out, to, 64);
}
static void put_float(uint8_t *out, float x) { memcpy(out, &x, sizeof(x)); }
static void put_int(uint8_t *out, int64_t x) { memcpy(out, &x, sizeof(x)); }
static __m512d pd(const uint8_t *at) { return _mm512_cvtps_pd(_mm256_castsi256_ps(half(at))); }
static __m512bh bh(const uint8_t *at)
{
    __m512bh x;
    memcpy(&x, at, sizeof(x));
    return x;
}

#define CALLS(X)                                                                                                                  \
    X(cvtph_ps, CALL_ANY, 1, put_ps(out, _mm512_cvtph_ps(half(in[0]))))                                                           \
    X(cvtps_ph, CALL_FLOATS, 0,                                                                                                   \
      _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtps_ph(ps(in[0]), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)))     \
    X(cvtne2ps_pbh, CALL_FLOATS, 0, { const __m512bh y = _mm512_cvtne2ps_pbh(ps(in[0]), ps(in[1])); memcpy(out, &y, 64); })      \
    X(dpbf16_ps, CALL_FLOATS, 1, put_ps(out, _mm512_dpbf16_ps(ps(in[0]), bh(in[1]), bh(in[2]))))                                  \
    X(fnmadd_ps, CALL_FLOATS, 1, put_ps(out, _mm512_fnmadd_ps(ps(in[0]), ps(in[1]), ps(in[2]))))                                  \
    X(cvtps_epi32, CALL_FLOATS, 0, put(out, _mm512_cvtps_epi32(ps(in[0]))))                                                       \
    X(cvtepi32_ps, CALL_ANY, 0, put_ps(out, _mm512_cvtepi32_ps(si(in[0]))))                                                       \
    X(cvtepu16_epi32, CALL_ANY, 0, put(out, _mm512_cvtepu16_epi32(half(in[0]))))                                                  \
    X(cvtepi8_epi32, CALL_ANY, 0, put(out, _mm512_cvtepi8_epi32(_mm256_castsi256_si128(half(in[0])))))                            \
    X(cvtepi8_epi16, CALL_ANY, 0, put(out, _mm512_cvtepi8_epi16(half(in[0]))))                                                    \
    X(cvtepi32_epi8, CALL_ANY, 0, _mm_storeu_si128((__m128i *)(void *)out, _mm512_cvtepi32_epi8(si(in[0]))))                      \
    X(cvtss_f32, CALL_NUMBERS, 1, put_float(out, _mm512_cvtss_f32(ps(in[0]))))                                                    \
    X(cvtsi512_si32, CALL_ANY, 0, put_int(out, _mm512_cvtsi512_si32(si(in[0]))))                                                  \
    X(cvtps_pd, CALL_FLOATS, 1, _mm512_storeu_pd((double *)(void *)out, pd(in[0])))                                               \
    X(cvtpd_ps, CALL_NUMBERS, 1,                                                                                                  \
      _mm256_storeu_ps((float *)(void *)out, _mm512_cvtpd_ps(_mm512_fmadd_pd(pd(in[0]), pd(in[1]), pd(in[2])))))                  \
    X(zextps256_ps512, CALL_ANY, 0, put_ps(out, _mm512_zextps256_ps512(_mm256_castsi256_ps(half(in[0])))))                        \
    X(roundscale_ps, CALL_FLOATS, 1, put_ps(out, _mm512_roundscale_ps(ps(in[0]), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))) \
    X(maskz_scalef_ps, CALL_SCALES, 1, put_ps(out, _mm512_maskz_scalef_ps((__mmask16)mask(in[2]), ps(in[0]), ps(in[1]))))         \
    X(srai_epi32, CALL_ANY, 0, put(out, _mm512_srai_epi32(si(in[0]), 5)))                                                         \
    X(srai_epi16, CALL_ANY, 0, put(out, _mm512_srai_epi16(si(in[0]), 8)))                                                         \
    X(slli_epi32, CALL_ANY, 0, put(out, _mm512_slli_epi32(si(in[0]), 16)))                                                        \
    X(reduce_add_ps, CALL_NUMBERS, 1, put_float(out, _mm512_reduce_add_ps(ps(in[0]))))                                            \
    X(reduce_max_ps, CALL_NUMBERS, 1, put_float(out, _mm512_reduce_max_ps(ps(in[0]))))                                            \
    X(reduce_max_epi32, CALL_ANY, 0, put_int(out, _mm512_reduce_max_epi32(si(in[0]))))                                            \
    X(reduce_add_epi32, CALL_ANY, 0, put_int(out, _mm512_reduce_add_epi32(si(in[0]))))                                            \
    X(shuffle_f32x4, CALL_ANY, 0, put_ps(out, _mm512_shuffle_f32x4(ps(in[0]), ps(in[1]), 0x9C)))                                  \
    X(shuffle_i32x4, CALL_ANY, 0, put(out, _mm512_shuffle_i32x4(si(in[0]), si(in[1]), 0xAA)))                                     \
    X(maskz_loadu_epi8, CALL_ANY, 0, put(out, _mm512_maskz_loadu_epi8(mask(in[1]), in[0])))                                       \
    X(maskz_loadu_ps, CALL_ANY, 0, put_ps(out, _mm512_maskz_loadu_ps((__mmask16)mask(in[1]), in[0])))                             \
    X(mask_storeu_epi8, CALL_ANY, 0, _mm512_mask_storeu_epi8(out, mask(in[1]), si(in[0])))                                        \
    X(stream_si512, CALL_ANY, 0, stream(out, si(in[0])))                                                                          \
    X(dpbusd_epi32, CALL_ANY, 0, put(out, _mm512_dpbusd_epi32(si(in[0]), si(in[1]), si(in[2]))))                                  \
    X(dpwssd_epi32, CALL_ANY, 0, put(out, _mm512_dpwssd_epi32(si(in[0]), si(in[1]), si(in[2]))))                                  \
    X(permutex2var_epi8, CALL_ANY, 0, put(out, _mm512_permutex2var_epi8(si(in[0]), si(in[1]), si(in[2]))))                        \
    X(maskz_permutex2var_epi8, CALL_ANY, 0,                                                                                       \
      put(out, _mm512_maskz_permutex2var_epi8(UINT64_C(0xAAAAAAAAAAAAAAAA), si(in[0]), si(in[1]), si(in[2]))))                    \
    X(permutex2var_epi16, CALL_ANY, 0, put(out, _mm512_permutex2var_epi16(si(in[0]), si(in[1]), si(in[2]))))                      \
    X(permutexvar_epi8, CALL_ANY, 0, put(out, _mm512_permutexvar_epi8(si(in[0]), si(in[1]))))                                     \
    X(permutexvar_epi16, CALL_ANY, 0, put(out, _mm512_permutexvar_epi16(si(in[0]), si(in[1]))))                                   \
    X(permutexvar_ps, CALL_ANY, 0, put_ps(out, _mm512_permutexvar_ps(si(in[0]), ps(in[1]))))                                      \
    X(ternarylogic_epi32, CALL_ANY, 0, put(out, _mm512_ternarylogic_epi32(si(in[0]), si(in[1]), si(in[2]), 0xF8)))                \
    X(unpacklo_epi8, CALL_ANY, 0, put(out, _mm512_unpacklo_epi8(si(in[0]), si(in[1]))))                                           \
    X(unpackhi_epi8, CALL_ANY, 0, put(out, _mm512_unpackhi_epi8(si(in[0]), si(in[1]))))                                           \
    X(unpacklo_epi32, CALL_ANY, 0, put(out, _mm512_unpacklo_epi32(si(in[0]), si(in[1]))))                                         \
    X(unpackhi_epi32, CALL_ANY, 0, put(out, _mm512_unpackhi_epi32(si(in[0]), si(in[1]))))                                         \
    X(unpacklo_epi64, CALL_ANY, 0, put(out, _mm512_unpacklo_epi64(si(in[0]), si(in[1]))))                                         \
    X(unpackhi_epi64, CALL_ANY, 0, put(out, _mm512_unpackhi_epi64(si(in[0]), si(in[1]))))                                         \
    X(unpacklo_ps, CALL_ANY, 0, put_ps(out, _mm512_unpacklo_ps(ps(in[0]), ps(in[1]))))                                            \
    X(unpackhi_ps, CALL_ANY, 0, put_ps(out, _mm512_unpackhi_ps(ps(in[0]), ps(in[1]))))                                            \
    X(max_ps, CALL_FLOATS, 1, put_ps(out, _mm512_max_ps(ps(in[0]), ps(in[1]))))                                                   \
    X(min_ps, CALL_FLOATS, 1, put_ps(out, _mm512_min_ps(ps(in[0]), ps(in[1]))))                                                   \
    X(max_epi32, CALL_ANY, 0, put(out, _mm512_max_epi32(si(in[0]), si(in[1]))))                                                   \
    X(min_epi32, CALL_ANY, 0, put(out, _mm512_min_epi32(si(in[0]), si(in[1]))))                                                   \
    X(abs_epi8, CALL_ANY, 0, put(out, _mm512_abs_epi8(si(in[0]))))                                                                \
    X(abs_ps, CALL_FLOATS, 1, put_ps(out, _mm512_abs_ps(ps(in[0]))))                                                              \
    X(cmp_lt_ps, CALL_FLOATS, 0, put_int(out, _mm512_cmp_ps_mask(ps(in[0]), ps(in[1]), _CMP_LT_OQ)))                              \
    X(cmp_nlt_ps, CALL_FLOATS, 0, put_int(out, _mm512_cmp_ps_mask(ps(in[0]), ps(in[1]), _CMP_NLT_UQ)))                            \
    X(cmp_neq_ps, CALL_FLOATS, 0, put_int(out, _mm512_cmp_ps_mask(ps(in[0]), ps(in[1]), _CMP_NEQ_UQ)))                            \
    X(cmp_le_ps, CALL_FLOATS, 0, put_int(out, _mm512_cmp_ps_mask(ps(in[0]), ps(in[1]), _CMP_LE_OQ)))                              \
    X(cmp_ge_ps, CALL_FLOATS, 0, put_int(out, _mm512_cmp_ps_mask(ps(in[0]), ps(in[1]), _CMP_GE_OQ)))                              \
    X(cmpgt_epi32, CALL_ANY, 0, put_int(out, _mm512_cmpgt_epi32_mask(si(in[0]), si(in[1]))))                                      \
    X(cmple_epi32, CALL_ANY, 0, put_int(out, _mm512_cmple_epi32_mask(si(in[0]), si(in[1]))))                                      \
    X(mask_cmpgt_epi32, CALL_ANY, 0, put_int(out, _mm512_mask_cmpgt_epi32_mask((__mmask16)mask(in[2]), si(in[0]), si(in[1]))))    \
    X(cmpeq_epi8, CALL_ANY, 0, put_int(out, (int64_t)_mm512_cmpeq_epi8_mask(si(in[0]), _mm512_and_si512(si(in[0]), si(in[1])))))  \
    X(cmple_epu16, CALL_ANY, 0, put_int(out, _mm512_cmple_epu16_mask(_mm512_sub_epi16(si(in[0]), si(in[1])), si(in[2]))))         \
    X(test_epi32, CALL_ANY, 0, put_int(out, _mm512_test_epi32_mask(si(in[0]), si(in[1]))))                                        \
    X(mask_mov_epi8, CALL_ANY, 0, put(out, _mm512_mask_mov_epi8(si(in[0]), mask(in[2]), si(in[1]))))                              \
    X(mask_mov_epi16, CALL_ANY, 0, put(out, _mm512_mask_mov_epi16(si(in[0]), (__mmask32)mask(in[2]), si(in[1]))))                 \
    X(mask_mov_ps, CALL_ANY, 0, put_ps(out, _mm512_mask_mov_ps(ps(in[0]), (__mmask16)mask(in[2]), ps(in[1]))))                    \
    X(packs_epi16, CALL_ANY, 0, put(out, _mm512_packs_epi16(si(in[0]), si(in[1]))))                                               \
    X(packs_epi32, CALL_ANY, 0, put(out, _mm512_packs_epi32(si(in[0]), si(in[1]))))                                               \
    X(permutexvar_epi32, CALL_ANY, 0, put(out, _mm512_permutexvar_epi32(si(in[0]), si(in[1]))))                                   \
    X(shuffle_ps, CALL_ANY, 0, put_ps(out, _mm512_shuffle_ps(ps(in[0]), ps(in[1]), 0x4E)))                                        \
    X(subs_epu16, CALL_ANY, 0, put(out, _mm512_subs_epu16(si(in[0]), si(in[1]))))                                                 \
    X(test_epi8, CALL_ANY, 0, put_int(out, (int64_t)_mm512_test_epi8_mask(si(in[0]), si(in[1]))))                                 \
    X(extracti32x4_epi32, CALL_ANY, 0, _mm_storeu_si128((__m128i *)(void *)out, _mm512_extracti32x4_epi32(si(in[0]), 2)))         \
    X(inserti64x4, CALL_ANY, 0, put(out, _mm512_inserti64x4(si(in[0]), half(in[1]), 1)))                                          \
    X(maskz_set1_epi32, CALL_ANY, 0, put(out, _mm512_maskz_set1_epi32(0x1111, (int32_t)mask(in[0]))))

#define DEFINE(name, domain, is_float, body)                             \
    static void run_##name(const uint8_t (*in)[64], uint8_t *out)        \
    {                                                                    \
        (void)in;                                                        \
        body;                                                            \
    }
CALLS(DEFINE)

#define ROW(name, domain, is_float, body) { #name, domain, is_float, run_##name },
#if defined(OCT_TEST_SIMDE)
const call simde_calls[] = {
#else
const call native_calls[] = {
#endif
    CALLS(ROW) { NULL, CALL_ANY, 0, NULL } };
