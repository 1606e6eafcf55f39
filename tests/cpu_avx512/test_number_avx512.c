/* test_number_avx512.c: decoding, encoding and rotation of AVX-512 kernels against src/number, bit for bit; the accuracy of exp2 and tanh;
 * and that denormals-are-zero and flush-to-zero change no decoded number. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cpu/avx512_rotate.h"
#include "cpu_avx2/rig.h"
#include "cpu_avx512/machine.h"

/* ---- decoding ------------------------------------------------------------------------------------------------------------- */

typedef void decode_rows(float *to, const uint8_t *from, uint32_t n);

static inline __attribute__((always_inline)) void decode(float *to, const uint8_t *from, uint32_t n, uint32_t dtype, const avx512_kind kind)
{
    const avx512_decoder decoder = avx512_decoder_of(avx512_table_of(dtype));
    uint32_t d = 0;
    for (; d + 64 <= n; d += 64) {
        const avx512_chunk chunk = avx512_open(from + d * avx512_size(kind), &decoder, kind);
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            _mm512_storeu_ps(to + d + 16 * i, avx512_piece(&chunk, i, kind));
        }
    }
    if (d < n) {
        const avx512_chunk chunk = avx512_open_some(from + d * avx512_size(kind), n - d, &decoder, kind);
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            if (d + 16 * i < n) {
                float piece[16];
                const uint32_t left = n - d - 16 * i;
                _mm512_storeu_ps(piece, avx512_piece_some(&chunk, i, n - d, kind));
                memcpy(to + d + 16 * i, piece, (left < 16 ? left : 16) * sizeof(float));
                for (uint32_t k = left; k < 16; k++) {
                    assert_true(piece[k] == 0.0f);
                }
            }
        }
    }
}

#define DECODE(format, kind)                                                \
    static void decode_##format(float *to, const uint8_t *from, uint32_t n) \
    {                                                                       \
        decode(to, from, n, OCT_DTYPE_##format, AVX512_##kind);             \
    }
DECODE(F32, F32)
DECODE(F16, F16)
DECODE(BF16, BF16)
DECODE(E4M3FN, BYTE)
DECODE(E4M3FNUZ, BYTE_NUZ)
DECODE(E5M2, BYTE)
DECODE(I8, I8)
static decode_rows *const decoders[] = {
    [OCT_DTYPE_F32] = decode_F32,       [OCT_DTYPE_F16] = decode_F16,           [OCT_DTYPE_BF16] = decode_BF16,
    [OCT_DTYPE_E4M3FN] = decode_E4M3FN, [OCT_DTYPE_E4M3FNUZ] = decode_E4M3FNUZ, [OCT_DTYPE_E5M2] = decode_E5M2,
    [OCT_DTYPE_I8] = decode_I8,
};

static void check_decoding(uint32_t dtype, const uint8_t *codes, uint32_t n)
{
    float *got = rig_alloc(n * sizeof(float)), *expected = rig_alloc(n * sizeof(float));
    decoders[dtype](got, codes, n);
    oct__row_to_f32(expected, codes, dtype, n);
    for (uint32_t i = 0; i < n; i++) {
        const float value = got[i];
        if (isnan(expected[i]) ? !isnan(value) : memcmp(&value, &expected[i], 4) != 0) {
            fail_msg("%s element %u: %a, number/ says %a", oct__dtype_name(dtype), i, (double)value, (double)expected[i]);
        }
    }
    free(got);
    free(expected);
}

/* Each code alone in a row of finite ones, so that a NaN check that only works for crowds is seen; rows of 8, 40 and 64. */
static void check_all_codes(void)
{
    static const uint32_t dims[] = { 8, 40, 64 };
    for (uint32_t dtype = 1; dtype <= OCT__DTYPE_LAST; dtype++) {
        if (!oct__dtype_is_8bit(dtype)) {
            continue;
        }
        for (size_t k = 0; k < 3; k++) {
            for (uint32_t code = 0; code < 256; code++) {
                uint8_t row[64];
                for (uint32_t at = 0; at < dims[k]; at += 7) {
                    memset(row, 0x35, sizeof(row));
                    row[at] = (uint8_t)code;
                    check_decoding(dtype, row, dims[k]);
                }
            }
        }
    }
    uint16_t *codes = rig_alloc(65536 * 2);
    for (uint32_t i = 0; i < 65536; i++) {
        codes[i] = (uint16_t)i;
    }
    check_decoding(OCT_DTYPE_BF16, (const uint8_t *)codes, 65536);
    check_decoding(OCT_DTYPE_F16, (const uint8_t *)codes, 65536);
    free(codes);
}

static void test_decoding(void **state)
{
    (void)state;
    check_all_codes();
}

static void test_decoding_with_daz(void **state)
{
    (void)state;
    const unsigned int mode = _mm_getcsr();
    float got[64], expected[64];
    uint8_t row[64];
    for (uint32_t dtype = OCT_DTYPE_E4M3FN; dtype <= OCT_DTYPE_I8; dtype++) {
        for (uint32_t code = 0; code < 256; code += 64) {
            for (uint32_t i = 0; i < 64; i++) {
                row[i] = (uint8_t)(code + i);
            }
            decoders[dtype](expected, row, 64);
            _mm_setcsr(mode | 0x8040);
            decoders[dtype](got, row, 64);
            _mm_setcsr(mode);
            assert_memory_equal(got, expected, sizeof(got));
        }
    }
}

/* ---- encoding ------------------------------------------------------------------------------------------------------------- */

typedef uint32_t encode_row(uint8_t *to, const float *x, uint32_t n, const float *scale);
#define ENCODE(format)                                                                           \
    static uint32_t encode_##format(uint8_t *to, const float *x, uint32_t n, const float *scale) \
    {                                                                                            \
        return avx512_encode(to, x, n, scale, false, AVX512_DIVIDE_ONE, OCT_DTYPE_##format);         \
    }
ENCODE(E4M3FN)
ENCODE(E4M3FNUZ)
ENCODE(E5M2)
ENCODE(I8)
ENCODE(BF16) /* without a scale; the argument is not looked at */
ENCODE(F16)
#undef ENCODE

/* What fits must come out the same without clamping and counting. */
#define FIT(format)                                                                           \
    static uint32_t fit_##format(uint8_t *to, const float *x, uint32_t n, const float *scale) \
    {                                                                                         \
        return avx512_encode(to, x, n, scale, false, AVX512_FIT_ONE, OCT_DTYPE_##format);         \
    }
FIT(E4M3FN)
FIT(E4M3FNUZ)
FIT(E5M2)
FIT(I8)
static encode_row *const fitting[OCT__DTYPE_LAST + 1] = {
    [OCT_DTYPE_E4M3FN] = fit_E4M3FN,
    [OCT_DTYPE_E4M3FNUZ] = fit_E4M3FNUZ,
    [OCT_DTYPE_E5M2] = fit_E5M2,
    [OCT_DTYPE_I8] = fit_I8,
};
static encode_row *const encoders[] = {
    [OCT_DTYPE_F32] = NULL,
    [OCT_DTYPE_F16] = encode_F16,
    [OCT_DTYPE_BF16] = encode_BF16,
    [OCT_DTYPE_E4M3FN] = encode_E4M3FN,
    [OCT_DTYPE_E4M3FNUZ] = encode_E4M3FNUZ,
    [OCT_DTYPE_E5M2] = encode_E5M2,
    [OCT_DTYPE_I8] = encode_I8,
};

enum { CHUNK = 4096 };

static void check_encoding(const float *x, float scale)
{
    uint8_t *got = rig_alloc((size_t)CHUNK * 4), *expected = rig_alloc((size_t)CHUNK * 4);
    for (uint32_t dtype = OCT_DTYPE_F16; dtype <= OCT_DTYPE_I8; dtype++) {
        struct oct__convert_count count = { 0, 0 };
        if (!oct__dtype_is_8bit(dtype) && scale != 1.0f) {
            continue; /* wide formats have no scale */
        }
        /* A length that is no multiple of 64 takes the tail as well. */
        const uint32_t n = CHUNK - 24;
        const uint32_t saturated = encoders[dtype](got, x, n, &scale);
        oct__row_from_f32(expected, dtype, x, n, scale, &count);
        if (memcmp(got, expected, (size_t)n * oct__dtype_size_bytes(dtype)) != 0) {
            for (uint32_t i = 0; i < n; i++) {
                const size_t size = oct__dtype_size_bytes(dtype);
                if (memcmp(got + i * size, expected + i * size, size) != 0) {
                    fail_msg("%s of %a / %a: %02x, number/ says %02x", oct__dtype_name(dtype), (double)x[i], (double)scale, got[i * size],
                             expected[i * size]);
                }
            }
        }
        assert_int_equal(saturated, count.saturated);
        if (fitting[dtype] != NULL) {
            /* The same row with what saturates replaced by zero. */
            float *y = rig_alloc(CHUNK * sizeof(float));
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t bits = oct__f32_to_bits(oct__f32_divide(x[i], scale)) & OCT__F32_ABS_MASK;
                y[i] = bits >= oct__dtype_saturates_from_bits(dtype) ? 0.0f : x[i];
            }
            assert_int_equal(fitting[dtype](got, y, n, &scale), 0);
            oct__row_from_f32(expected, dtype, y, n, scale, NULL);
            assert_memory_equal(got, expected, n);
            free(y);
        }
    }
    free(got);
    free(expected);
}

/* All exponents and signs, with mantissas at and beside every tie of a 2-, 3- and 10-bit mantissa; then random bits. */
static void test_encoding(void **state)
{
    (void)state;
    float *x = rig_alloc(CHUNK * sizeof(float));
    static const float scales[] = { 1.0f, 0.037f, 3.1f, 1e-6f, 1e30f, 1e-42f };
    uint64_t seed = 20240731;
    uint32_t n = 0;
    for (size_t s = 0; s < sizeof(scales) / sizeof(scales[0]); s++) {
        for (uint32_t exponent = 0; exponent < 255; exponent++) {
            for (uint32_t tie = 0; tie < 32; tie++) {
                for (uint32_t beside = 0; beside < 3; beside++) {
                    for (uint32_t sign = 0; sign < 2; sign++) {
                        const uint32_t bits = (exponent << 23) + (tie << 18) + beside - 1;
                        x[n++] = oct__f32_of_bits(((bits & 0x7FFFFFFF) < OCT__F32_INF_BITS ? bits & 0x7FFFFFFF : 0) | sign << 31);
                        if (n == CHUNK - 24) {
                            for (; n < CHUNK; n++) {
                                x[n] = 0;
                            }
                            check_encoding(x, scales[s]);
                            n = 0;
                        }
                    }
                }
            }
        }
        for (uint32_t round = 0; round < MACHINE_SEEDS(60); round++) {
            for (uint32_t i = 0; i < CHUNK; i++) {
                const uint32_t bits = (uint32_t)rig_random(&seed);
                x[i] = round % 2 ? rig_normal(&seed) * 100 * scales[s] : oct__f32_of_bits(oct__f32_bits_are_finite(bits) ? bits : 0);
                if (!oct__f32_bits_are_finite(oct__f32_to_bits(x[i]))) {
                    x[i] = 0;
                }
            }
            check_encoding(x, scales[s]);
        }
    }
    free(x);
}

/* ---- functions ------------------------------------------------------------------------------------------------------------ */

static void test_exp2(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -126; x <= 0; x += 16 * MACHINE_STEP(2e-5)) {
        float in[16], out[16];
        for (int l = 0; l < 16; l++) {
            in[l] = (float)(x + l * 2e-5);
        }
        _mm512_storeu_ps(out, avx512_exp2(_mm512_loadu_ps(in)));
        for (int l = 0; l < 16; l++) {
            const double error = fabs((double)out[l] / exp2((double)in[l]) - 1);
            worst = error > worst ? error : worst;
        }
    }
    print_message("exp2: largest relative error %.2e\n", worst);
    assert_true(worst < 2.5e-7);
    const float special[16] = { 0.0f, -0.0f, -INFINITY, NAN, -126.1f, -1000.0f, -3e38f, -1e-40f, -126.0f };
    float out[16];
    _mm512_storeu_ps(out, avx512_exp2(_mm512_loadu_ps(special)));
    assert_true(out[0] == 1.0f && out[1] == 1.0f && out[2] == 0.0f && isnan(out[3]) && out[4] == 0.0f && out[5] == 0.0f && out[6] == 0.0f &&
                out[7] == 1.0f && out[8] == 0x1p-126f);
}

static void test_tanh(void **state)
{
    (void)state;
    double worst = 0;
    for (double x = -12; x <= 12; x += 16 * MACHINE_STEP(3e-6)) {
        float in[16], out[16];
        for (int l = 0; l < 16; l++) {
            in[l] = (float)(x + l * 3e-6);
        }
        _mm512_storeu_ps(out, avx512_tanh(_mm512_loadu_ps(in)));
        for (int l = 0; l < 16; l++) {
            const double expected = tanh((double)in[l]);
            const double error = in[l] == 0 ? fabs((double)out[l]) : fabs((double)out[l] / expected - 1);
            worst = error > worst ? error : worst;
        }
    }
    print_message("tanh: largest relative error %.2e\n", worst);
    assert_true(worst < 4e-7);
    const float special[16] = { 0.0f, -0.0f, -INFINITY, NAN, INFINITY, 3e38f, -3e38f, 1e-30f };
    float out[16];
    _mm512_storeu_ps(out, avx512_tanh(_mm512_loadu_ps(special)));
    assert_true(out[0] == 0.0f && out[1] == 0.0f && out[2] == -1.0f && isnan(out[3]) && out[4] == 1.0f && out[5] == 1.0f &&
                out[6] == -1.0f && out[7] == 1e-30f);
}

/* ---- rotation -------------------------------------------------------------------------------------------------------------- */

static void test_rotation(void **state)
{
    (void)state;
    uint64_t seed = 77;
    for (uint32_t dim = 16; dim <= 512; dim += 8) {
        float *x = rig_alloc(dim * sizeof(float)), *to = rig_alloc(528 * sizeof(float));
        float largest = 0;
        for (uint32_t i = 0; i < dim; i++) {
            x[i] = rig_below(&seed, 9) == 0 ? 0.0f : rig_normal(&seed) * (rig_below(&seed, 9) == 0 ? 1e-39f : 3.0f);
        }
        const float got = avx512_rotate(to, (const uint8_t *)x, dim, AVX512_F32);
        oct__hadamard_f32(x, dim);
        for (uint32_t i = 0; i < dim; i++) {
            largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
        }
        assert_memory_equal(to, x, dim * sizeof(float));
        assert_true(got == largest);
        x[3] = NAN;
        x[5] = INFINITY;
        assert_false(isfinite(avx512_rotate(to, (const uint8_t *)x, dim, AVX512_F32)));
        free(x);
        free(to);
    }
}

int main(void)
{
    if (!machine_has(MACHINE_AVX512_VBMI)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_decoding), cmocka_unit_test(test_decoding_with_daz),
                                        cmocka_unit_test(test_encoding), cmocka_unit_test(test_exp2), cmocka_unit_test(test_tanh),
                                        cmocka_unit_test(test_rotation) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
