/* wgmma_sm90a.h: the instructions of a warpgroup (four warps, 64 rows): D += A B with 16-bit operands and f32 sums, for nvcc. The text is of one mould,
 * a function for each N. wgmma_model.h has the same words for the host executor.
 *
 *   wg_mma_shared_<N>(d, a, b, is_first, is_bf16)   A [64][16] from shared memory, rows of 16 elements along K; B [N][16] likewise. is_first: D = A B
 *   wg_mma_<N>(d, a, b, is_k_major, is_bf16)        A in registers; B's rows along K (is_k_major) or [16][N], dims side by side
 *   wg_mma8_shared_<N>(d, a, b, is_first), wg_mma8_<N>(d, a, b)   the same of e4m3, 32 along K, B's rows along K
 * d: [N / 2], a: [4], as for m16n8k16, of the warp's own 16 rows. a, b of shared memory: descriptors (wg_rows, wg_columns). */
#ifndef OCT_CUDA_WGMMA_SM90A_H
#define OCT_CUDA_WGMMA_SM90A_H

#define OCT__WG_F8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OCT__WG_D64 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31"
#define OCT__WG_F64 OCT__WG_F8(0), OCT__WG_F8(8), OCT__WG_F8(16), OCT__WG_F8(24)
#define OCT__WG_D128 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define OCT__WG_F128 OCT__WG_F8(0), OCT__WG_F8(8), OCT__WG_F8(16), OCT__WG_F8(24), OCT__WG_F8(32), OCT__WG_F8(40), OCT__WG_F8(48), OCT__WG_F8(56)
#define OCT__WG_D256 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71," \
    "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119," \
    "%120,%121,%122,%123,%124,%125,%126,%127"
#define OCT__WG_F256 OCT__WG_F8(0), OCT__WG_F8(8), OCT__WG_F8(16), OCT__WG_F8(24), OCT__WG_F8(32), OCT__WG_F8(40), OCT__WG_F8(48), OCT__WG_F8(56), OCT__WG_F8(64), OCT__WG_F8(72), OCT__WG_F8(80), OCT__WG_F8(88), OCT__WG_F8(96), OCT__WG_F8(104), OCT__WG_F8(112), OCT__WG_F8(120)

/* The types of the operands and a flag whose word is "0" are parts of an instruction: one of four. */
#define OCT__WG_TYPED(instruction, flag) \
    do {                                 \
        if (is_bf16) {                   \
            if (flag) {                  \
                instruction("bf16", "0"); \
            } else {                     \
                instruction("bf16", "1"); \
            }                            \
        } else if (flag) {               \
            instruction("f16", "0");     \
        } else {                         \
            instruction("f16", "1");     \
        }                                \
    } while (0)

#define OCT__WG_SHARED_64(type, first)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" OCT__WG_D64 "}, %32, %33, " first ", 1, 1, 0, 0;" \
                 : OCT__WG_F64 : "l"(a), "l"(b))
DEV void wg_mma_shared_64(float *d, uint64_t a, uint64_t b, const uint32_t is_first, const uint32_t is_bf16)
{
    OCT__WG_TYPED(OCT__WG_SHARED_64, is_first);
}

#define OCT__WG_64(type, trans)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" OCT__WG_D64 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, " trans ";" \
                 : OCT__WG_F64 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
DEV void wg_mma_64(float *d, const uint32_t *a, uint64_t b, const uint32_t is_k_major, const uint32_t is_bf16)
{
    OCT__WG_TYPED(OCT__WG_64, is_k_major);
}

#define OCT__WG_SHARED_128(type, first)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" OCT__WG_D128 "}, %64, %65, " first ", 1, 1, 0, 0;" \
                 : OCT__WG_F128 : "l"(a), "l"(b))
DEV void wg_mma_shared_128(float *d, uint64_t a, uint64_t b, const uint32_t is_first, const uint32_t is_bf16)
{
    OCT__WG_TYPED(OCT__WG_SHARED_128, is_first);
}

#define OCT__WG_128(type, trans)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" OCT__WG_D128 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, " trans ";" \
                 : OCT__WG_F128 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
DEV void wg_mma_128(float *d, const uint32_t *a, uint64_t b, const uint32_t is_k_major, const uint32_t is_bf16)
{
    OCT__WG_TYPED(OCT__WG_128, is_k_major);
}

#define OCT__WG_256(type, trans)                                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" OCT__WG_D256 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, " trans ";" \
                 : OCT__WG_F256 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
DEV void wg_mma_256(float *d, const uint32_t *a, uint64_t b, const uint32_t is_k_major, const uint32_t is_bf16)
{
    OCT__WG_TYPED(OCT__WG_256, is_k_major);
}

/* A and B of e4m3, 32 along K; 136: 128 columns and eight of ones. */
#define OCT__WG_D136 OCT__WG_D128 ",%64,%65,%66,%67"
#define OCT__WG_F136 OCT__WG_F128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define OCT__WG8_SHARED_32(first)                                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, " first ", 1, 1;" \
                 : OCT__WG_F8(0), OCT__WG_F8(8) : "l"(a), "l"(b))
DEV void wg_mma8_shared_32(float *d, uint64_t a, uint64_t b, const uint32_t is_first)
{
    if (is_first) {
        OCT__WG8_SHARED_32("0");
    } else {
        OCT__WG8_SHARED_32("1");
    }
}

#define OCT__WG8_SHARED_64(first)                                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {" OCT__WG_D64 "}, %32, %33, " first ", 1, 1;" : OCT__WG_F64 : "l"(a), "l"(b))
DEV void wg_mma8_shared_64(float *d, uint64_t a, uint64_t b, const uint32_t is_first)
{
    if (is_first) {
        OCT__WG8_SHARED_64("0");
    } else {
        OCT__WG8_SHARED_64("1");
    }
}

DEV void wg_mma8_128(float *d, const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" OCT__WG_D128 "}, {%64,%65,%66,%67}, %68, 1, 1, 1;"
                 : OCT__WG_F128 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

DEV void wg_mma8_136(float *d, const uint32_t *a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 {" OCT__WG_D136 "}, {%68,%69,%70,%71}, %72, 1, 1, 1;"
                 : OCT__WG_F136 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#endif
