/* test_ops.c: every instruction of the simulator's tables against results worked out by hand, on gfx942 and gfx950. test_sim.c fails when a
 * table has an instruction without a case here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "amdsim/snippet.h"

static const char *const archs[] = { "gfx942", "gfx950" };

/* Runs a body on both chips; lane 0's v[8:9] and v10. */
static void run_body(const char *body, uint32_t *result)
{
    for (size_t arch = 0; arch < 2; arch++) {
        static uint32_t out[64 * 3];
        const uint32_t in[1] = { 0 };
        const snippet s = { .arch = archs[arch], .body = body, .in = in, .n_in = 1, .out = out, .n_out = 64 * 3 };
        sim_report report;
        if (snippet_run(&s, &report) != SIM_OK)
            print_message("%s\n%s\n", report.text, body);
        assert_int_equal(report.fault, SIM_OK);
        memcpy(result, out, 3 * sizeof *result);
    }
}

/* ---- 32 bits: sources v2, v3, v4 = a, b, c; result v8 -------------------------------------------------------------------------------- */

typedef struct case32 { const char *text; uint32_t a, b, c, expected; } case32;

#define ONE 0x3F800000
#define TWO 0x40000000
#define INFINITE 0x7F800000

static const case32 cases32[] = {
    { "v_mov_b32_e32 v8, v2", 7, 0, 0, 7 },
    { "v_mov_b32_e32 v8, 1.0", 0, 0, 0, ONE },
    { "v_mov_b32_e32 v8, -4.0", 0, 0, 0, 0xC0800000 },
    { "v_mov_b32_e32 v8, -16", 0, 0, 0, 0xFFFFFFF0 },
    { "v_not_b32_e32 v8, v2", 0x0F0F0000, 0, 0, 0xF0F0FFFF },
    { "v_and_b32_e32 v8, v2, v3", 12, 10, 0, 8 },
    { "v_and_b32_e32 v8, 0xff00, v3", 0, 0x12345678, 0, 0x5600 },
    { "v_or_b32_e32 v8, v2, v3", 12, 10, 0, 14 },
    { "v_xor_b32_e32 v8, v2, v3", 12, 10, 0, 6 },
    { "v_and_or_b32 v8, v2, v3, v4", 12, 10, 1, 9 },
    { "v_or3_b32 v8, v2, v3, v4", 1, 2, 8, 11 },
    { "v_xad_u32 v8, v2, v3, v4", 12, 10, 5, 11 },
    { "v_bfi_b32 v8, v2, v3, v4", 0xFF00, 0x1234, 0x5678, 0x1278 },
    { "v_bfe_u32 v8, v2, v3, v4", 0xABCD1234, 8, 12, 0xD12 },
    { "v_bfe_u32 v8, v2, 16, 1", 0x00010000, 0, 0, 1 },
    { "v_bfe_i32 v8, v2, v3, v4", 0xABCD1234, 8, 12, 0xFFFFFD12 },
    { "v_bfrev_b32_e32 v8, v2", 0x80000001, 0, 0, 0x80000001 },
    { "v_bfrev_b32_e32 v8, v2", 0x0000000D, 0, 0, 0xB0000000 },
    { "v_ffbh_u32_e32 v8, v2", 0x00010000, 0, 0, 15 },
    { "v_ffbh_u32_e32 v8, v2", 0, 0, 0, UINT32_MAX },
    { "v_ffbl_b32_e32 v8, v2", 0x00010000, 0, 0, 16 },
    { "v_bcnt_u32_b32 v8, v2, v3", 0xFF, 100, 0, 108 },
    { "v_perm_b32 v8, v2, v3, v4", 0x77665544, 0x33221100, 0x04050007, 0x44550077 },
    { "v_perm_b32 v8, v2, v3, v4", 0x80665544, 0x33229100, 0x080B0C0D, 0xFFFF00FF },
    { "v_alignbit_b32 v8, v2, v3, v4", 0x00000012, 0x34567890, 8, 0x12345678 },
    { "v_mbcnt_lo_u32_b32 v8, v2, v3", UINT32_MAX, 5, 0, 5 },
    { "v_mbcnt_hi_u32_b32 v8, v2, v3", UINT32_MAX, 5, 0, 5 },
    { "v_accvgpr_write_b32 a3, v2\nv_accvgpr_mov_b32 a4, a3\nv_accvgpr_read_b32 v8, a4", 77, 0, 0, 77 },
    { "v_cmp_eq_u32_e32 vcc, v2, v3\nv_cndmask_b32_e32 v8, v3, v4, vcc", 1, 1, 2, 2 },
    { "v_cmp_eq_u32_e64 s[10:11], v2, v3\nv_cndmask_b32_e64 v8, v3, v4, s[10:11]", 0, 1, 2, 1 },
    { "v_cmp_eq_u32_e32 vcc, v2, v3\nv_cndmask_b32_e64 v8, -v3, |v4|, vcc", 0, ONE, 2, 0xBF800000 },

    { "v_add_u32_e32 v8, v2, v3", 0xFFFFFFFF, 3, 0, 2 },
    { "v_sub_u32_e32 v8, v2, v3", 1, 3, 0, 0xFFFFFFFE },
    { "v_subrev_u32_e32 v8, v2, v3", 1, 3, 0, 2 },
    { "v_add3_u32 v8, v2, v3, v4", 1, 2, 3, 6 },
    { "v_add_lshl_u32 v8, v2, v3, v4", 1, 2, 3, 24 },
    { "v_lshl_add_u32 v8, v2, v3, v4", 1, 2, 3, 7 },
    { "v_lshl_or_b32 v8, v2, v3, v4", 1, 2, 5, 5 },
    { "v_lshlrev_b32_e32 v8, v2, v3", 33, 3, 0, 6 },
    { "v_lshlrev_b32_e64 v8, v2, -1", 4, 0, 0, 0xFFFFFFF0 },
    { "v_lshrrev_b32_e32 v8, v2, v3", 4, 0x80000000, 0, 0x08000000 },
    { "v_ashrrev_i32_e32 v8, v2, v3", 4, 0x80000000, 0, 0xF8000000 },
    { "v_mul_lo_u32 v8, v2, v3", 0x10001, 0x10001, 0, 0x20001 },
    { "v_mul_hi_u32 v8, v2, v3", 0x80000000, 6, 0, 3 },
    { "v_mul_hi_i32 v8, v2, v3", 0xFFFFFFFF, 6, 0, 0xFFFFFFFF },
    { "v_mul_u32_u24_e32 v8, v2, v3", 0xFF000003, 5, 0, 15 },
    { "v_mul_hi_u32_u24_e32 v8, v2, v3", 0xFF800000, 0xFF000600, 0, 3 },
    { "v_mad_u32_u24 v8, v2, v3, v4", 0xFF000003, 5, 1, 16 },
    { "v_min_u32_e32 v8, v2, v3", 0xFFFFFFFF, 1, 0, 1 },
    { "v_max_u32_e32 v8, v2, v3", 0xFFFFFFFF, 1, 0, 0xFFFFFFFF },
    { "v_min_i32_e32 v8, v2, v3", 0xFFFFFFFF, 1, 0, 0xFFFFFFFF },
    { "v_max_i32_e32 v8, v2, v3", 0xFFFFFFFF, 1, 0, 1 },
    { "v_min3_u32 v8, v2, v3, v4", 3, 1, 2, 1 },
    { "v_max3_u32 v8, v2, v3, v4", 1, 3, 2, 3 },
    { "v_med3_u32 v8, v2, v3, v4", 3, 1, 2, 2 },
    { "v_med3_u32 v8, v2, v3, v4", 1, 9, 7, 7 },
    { "v_add_u16_e32 v8, v2, v3", 0x1FFFF, 2, 0, 1 },
    { "v_min_u16_e32 v8, v2, v3", 0x10009, 8, 0, 8 },
    { "v_lshlrev_b16_e32 v8, v2, v3", 8, 0x1FF, 0, 0xFF00 },
    { "v_lshrrev_b16_e32 v8, v2, v3", 8, 0x1FF00, 0, 0xFF },
    { "v_add_co_u32_e32 v8, vcc, v2, v3\nv_addc_co_u32_e32 v8, vcc, v4, v4, vcc", 0xFFFFFFFF, 1, 10, 21 },
    { "v_sub_co_u32_e32 v8, vcc, v2, v3\nv_subb_co_u32_e32 v8, vcc, v4, v3, vcc", 0, 1, 10, 8 },
    { "v_subrev_co_u32_e64 v8, s[10:11], v2, v3\nv_subbrev_co_u32_e64 v8, s[10:11], v2, v4, s[10:11]", 5, 1, 10, 4 },

    { "v_add_f32_e32 v8, v2, v3", ONE, ONE, 0, TWO },
    { "v_add_f32_e32 v8, v2, v3", INFINITE, 0xFF800000, 0, 0x7FC00000 },
    { "v_add_f32_e32 v8, v2, v3", ONE, 0xFFA00001, 0, 0xFFE00001 },
    { "v_add_f32_e64 v8, -v2, |v3|", ONE, 0xC0000000, 0, ONE },
    { "v_add_f32_e64 v8, v2, v3 clamp", ONE, ONE, 0, ONE },
    { "v_add_f32_e64 v8, v2, v3 mul:4", ONE, ONE, 0, 0x41000000 },
    { "v_add_f32_e64 v8, v2, v3 div:2", ONE, ONE, 0, ONE },
    { "v_sub_f32_e32 v8, v2, v3", ONE, TWO, 0, 0xBF800000 },
    { "v_subrev_f32_e32 v8, v2, v3", ONE, TWO, 0, ONE },
    { "v_mul_f32_e32 v8, v2, v3", TWO, TWO, 0, 0x40800000 },
    { "v_mul_f32_e32 v8, v2, v3", 0x00800000, 0x3F000000, 0, 0x00400000 },   /* subnormals stay */
    { "v_fma_f32 v8, v2, v3, v4", 0x3F800001, 0x3F800001, 0xBF800002, 0x28800000 },   /* 2^-46, which a product rounded to f32 loses */
    { "v_mov_b32_e32 v8, v4\nv_fmac_f32_e32 v8, v2, v3", TWO, TWO, ONE, 0x40A00000 },
    { "v_fmaak_f32 v8, v2, v3, 0x3f800000", TWO, TWO, 0, 0x40A00000 },
    { "v_fmamk_f32 v8, v2, 0x40000000, v4", TWO, 0, ONE, 0x40A00000 },
    { "v_max_f32_e32 v8, v2, v3", 0x80000000, 0, 0, 0 },
    { "v_max_f32_e32 v8, v2, v3", 0x7FC00000, ONE, 0, ONE },
    { "v_max_f32_e32 v8, v2, v3", ONE, 0x7F800001, 0, 0x7FC00001 },   /* IEEE mode: a signalling NaN comes out quiet */
    { "v_min_f32_e32 v8, v2, v3", 0, 0x80000000, 0, 0x80000000 },
    { "v_max3_f32 v8, v2, v3, v4", ONE, TWO, 0, TWO },
    { "v_rcp_f32_e32 v8, v2", TWO, 0, 0, 0x3F000000 },
    { "v_rcp_f32_e32 v8, v2", 0x00000001, 0, 0, INFINITE },
    { "v_rcp_iflag_f32_e32 v8, v2", 0xC0000000, 0, 0, 0xBF000000 },
    { "v_exp_f32_e32 v8, v2", 0x40400000, 0, 0, 0x41000000 },
    { "v_exp_f32_e32 v8, v2", 0xC3000000, 0, 0, 0 },   /* 2^-128 is subnormal */
    { "v_exp_f32_e32 v8, v2", 0xFF800000, 0, 0, 0 },
    { "v_log_f32_e32 v8, v2", 0x41000000, 0, 0, 0x40400000 },
    { "v_log_f32_e32 v8, v2", 0, 0, 0, 0xFF800000 },
    { "v_log_f32_e32 v8, v2", 0xBF800000, 0, 0, 0x7FC00000 },
    { "v_sqrt_f32_e32 v8, v2", 0x40800000, 0, 0, TWO },
    { "v_rndne_f32_e32 v8, v2", 0x40200000, 0, 0, TWO },   /* 2.5 */
    { "v_trunc_f32_e32 v8, v2", 0xC0200000, 0, 0, 0xC0000000 },
    { "v_floor_f32_e32 v8, v2", 0xC0200000, 0, 0, 0xC0400000 },
    { "v_ceil_f32_e32 v8, v2", 0xC0200000, 0, 0, 0xC0000000 },
    { "v_ldexp_f32 v8, v2, v3", ONE, 3, 0, 0x41000000 },
    { "v_cmp_class_f32_e32 vcc, v2, v3\nv_cndmask_b32_e64 v8, 0, 1, vcc", 0xFF800000, 1 << 2, 0, 1 },
    { "v_cmp_class_f32_e32 vcc, v2, v3\nv_cndmask_b32_e64 v8, 0, 1, vcc", 0x00000001, 1 << 7, 0, 1 },
    { "v_cmp_class_f32_e64 s[10:11], v2, v3\nv_cndmask_b32_e64 v8, 0, 1, s[10:11]", ONE, 0x2FF, 0, 0 },

    { "v_cvt_u32_f32_e32 v8, v2", 0x40200000, 0, 0, 2 },
    { "v_cvt_u32_f32_e32 v8, v2", 0xC0200000, 0, 0, 0 },
    { "v_cvt_u32_f32_e32 v8, v2", 0x7F000000, 0, 0, UINT32_MAX },
    { "v_cvt_i32_f32_e32 v8, v2", 0xC0200000, 0, 0, 0xFFFFFFFE },
    { "v_cvt_i32_f32_e32 v8, v2", 0x7FC00000, 0, 0, 0 },
    { "v_cvt_f32_u32_e32 v8, v2", 0xFFFFFFFF, 0, 0, 0x4F800000 },
    { "v_cvt_f32_i32_e32 v8, v2", 0xFFFFFFFF, 0, 0, 0xBF800000 },
    { "v_cvt_f32_i32_sdwa v8, sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1", 0x8000, 0, 0, 0xC3000000 },
    { "v_cvt_f32_ubyte0_e32 v8, v2", 0x02030401, 0, 0, ONE },
    { "v_cvt_f32_ubyte1_e32 v8, v2", 0x02030102, 0, 0, ONE },
    { "v_cvt_f32_ubyte2_e32 v8, v2", 0x02010402, 0, 0, ONE },
    { "v_cvt_f32_ubyte3_e32 v8, v2", 0x01030402, 0, 0, ONE },
    { "v_cvt_f32_f16_e32 v8, v2", 0x3C00, 0, 0, ONE },
    { "v_cvt_f32_f16_e32 v8, v2", 0x0001, 0, 0, 0x33800000 },
    { "v_cvt_f32_f16_e32 v8, v2", 0xFC01, 0, 0, 0xFFC02000 },
    { "v_cvt_f32_f16_sdwa v8, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1", 0xC0003C00, 0, 0, 0xC0000000 },
    { "v_cvt_f16_f32_e32 v8, v2", 0x3F801000, 0, 0, 0x3C00 },   /* halfway, to even */
    { "v_cvt_f16_f32_e32 v8, v2", 0x3F803000, 0, 0, 0x3C02 },
    { "v_cvt_f16_f32_e32 v8, v2", 0x477FF000, 0, 0, 0x7C00 },   /* 65520 */
    { "v_cvt_f16_f32_e32 v8, v2", 0xB3800000, 0, 0, 0x8001 },
    { "v_cvt_f16_f32_e32 v8, v2", 0x33000000, 0, 0, 0 },
    { "v_cvt_pkrtz_f16_f32 v8, v2, v3", 0x3F803FFF, 0x7F000000, 0, 0x7BFF3C01 },
    { "v_pack_b32_f16 v8, v2, v3", 0x12343C00, 0x56784000, 0, 0x40003C00 },

    { "v_lshrrev_b32_sdwa v8, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD", 4, 0x12345, 0, 0x12340000 },
    { "v_mov_b32_e32 v8, v4\nv_or_b32_sdwa v8, v2, v3 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3 src1_sel:DWORD", 0x12000000, 1, 0xAABBCCDD, 0xAABB13DD },
    { "v_and_b32_sdwa v8, sext(v2), v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:DWORD", 0x8000, 0xFFFF0000, 0, 0xFFFF0000 },
    { "v_cmp_eq_u32_sdwa vcc, v2, v3 src0_sel:BYTE_2 src1_sel:DWORD\nv_cndmask_b32_e64 v8, 0, 1, vcc", 0x00330000, 0x33, 0, 1 },

    { "v_pk_add_f16 v8, v2, v3", 0x40003C00, 0x3C003C00, 0, 0x42004000 },
    { "v_pk_add_f16 v8, v2, v3 op_sel_hi:[1,0]", 0x40003C00, 0x00003C00, 0, 0x42004000 },
    { "v_pk_mul_f16 v8, v2, v3 neg_lo:[1,0] neg_hi:[0,0]", 0x40004000, 0x42003C00, 0, 0x4600C000 },
    { "v_pk_fma_f16 v8, v2, v3, v4", 0x40004000, 0x42003C00, 0x3C003C00, 0x47004200 },
    { "v_pk_lshlrev_b16 v8, 8, v2 op_sel_hi:[0,1]", 0x00AB01CD, 0, 0, 0xAB00CD00 },
};

static void run32(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases32 / sizeof cases32[0]; i++) {
        char body[1024];
        uint32_t result[3];
        const case32 *c = &cases32[i];
        snprintf(body, sizeof body, PROLOGUE "v_mov_b32_e32 v2, 0x%x\nv_mov_b32_e32 v3, 0x%x\nv_mov_b32_e32 v4, 0x%x\n%s\nv_mov_b32_e32 v9, 0\nv_mov_b32_e32 v10, 0\n" EPILOGUE,
                 c->a, c->b, c->c, c->text);
        run_body(body, result);
        if (result[0] != c->expected)
            print_message("%s of 0x%08x, 0x%08x, 0x%08x is 0x%08x, expected 0x%08x\n", c->text, c->a, c->b, c->c, result[0], c->expected);
        assert_int_equal(result[0], c->expected);
    }
}

/* ---- 64 bits: v[2:3], v[4:5], v[6:7]; result v[8:9]; s[12:13] is b ----------------------------------------------------------------------- */

typedef struct case64 { const char *text; uint64_t a, b, c, expected; } case64;

#define ONE_64 UINT64_C(0x3FF0000000000000)
#define TWO_64 UINT64_C(0x4000000000000000)
#define PAIR(low, high) ((uint64_t)(high) << 32 | (low))

static const case64 cases64[] = {
    { "v_mov_b64_e32 v[8:9], v[2:3]", 0x123456789ABCDEF0, 0, 0, 0x123456789ABCDEF0 },
    { "v_mov_b64_e32 v[8:9], -1", 0, 0, 0, UINT64_MAX },
    { "v_mov_b64_e32 v[8:9], s[12:13]", 0, 0x8000000000000001, 0, 0x8000000000000001 },
    { "v_lshlrev_b64 v[8:9], v2, v[4:5]", 33, 3, 0, UINT64_C(6) << 32 },
    { "v_lshrrev_b64 v[8:9], v2, v[4:5]", 33, UINT64_C(6) << 32, 0, 3 },
    { "v_ashrrev_i64 v[8:9], v2, v[4:5]", 60, UINT64_C(1) << 63, 0, 0xFFFFFFFFFFFFFFF8 },
    { "v_lshl_add_u64 v[8:9], v[2:3], 2, v[6:7]", 0xC0000000, 0, 1, 0x300000001 },
    { "v_mad_u64_u32 v[8:9], s[10:11], v2, v4, v[6:7]\nv_cndmask_b32_e64 v9, 0, 1, s[10:11]", UINT32_MAX, UINT32_MAX, UINT64_MAX, PAIR(0, 1) },
    { "v_mad_u64_u32 v[8:9], s[10:11], v2, 3, 0", UINT32_MAX, 0, 0, UINT64_C(3) * UINT32_MAX },
    { "v_mad_i64_i32 v[8:9], s[10:11], v2, 40, v[6:7]", 0xFFFFFFFF, 0, 100, 60 },
    { "v_mad_i64_i32 v[8:9], s[10:11], v2, v4, v[6:7]\nv_cndmask_b32_e64 v9, 0, 1, s[10:11]", 1, 1, INT64_MAX, PAIR(0, 1) },
    { "v_add_f64 v[8:9], v[2:3], 1.0", ONE_64, 0, 0, TWO_64 },
    { "v_add_f64 v[8:9], v[2:3], -v[4:5]", TWO_64, ONE_64, 0, ONE_64 },
    { "v_mul_f64 v[8:9], v[2:3], v[4:5]", TWO_64, TWO_64, 0, 0x4010000000000000 },
    { "v_mul_f64 v[8:9], v[2:3], s[12:13]", TWO_64, TWO_64, 0, 0x4010000000000000 },
    { "v_fma_f64 v[8:9], v[2:3], v[4:5], v[6:7]", TWO_64, TWO_64, ONE_64, 0x4014000000000000 },
    { "v_mov_b64_e32 v[8:9], v[6:7]\nv_fmac_f64_e32 v[8:9], v[2:3], v[4:5]", TWO_64, TWO_64, ONE_64, 0x4014000000000000 },
    { "v_ldexp_f64 v[8:9], v[2:3], -1", TWO_64, 0, 0, ONE_64 },
    { "v_ldexp_f64 v[8:9], -v[2:3], v4", TWO_64, 1, 0, 0xC010000000000000 },
    { "v_rcp_f64_e32 v[8:9], v[2:3]", TWO_64, 0, 0, 0x3FE0000000000000 },
    { "v_trunc_f64_e32 v[8:9], v[2:3]", 0xC004000000000000, 0, 0, 0xC000000000000000 },
    { "v_floor_f64_e32 v[8:9], v[2:3]", 0xC004000000000000, 0, 0, 0xC008000000000000 },
    { "v_trunc_f64_e64 v[8:9], |v[2:3]|", 0xC004000000000000, 0, 0, 0x4000000000000000 },
    { "v_cvt_f32_f64_e32 v8, v[2:3]\nv_mov_b32_e32 v9, 0", TWO_64, 0, 0, TWO },
    { "v_cvt_f64_f32_e32 v[8:9], v2", TWO, 0, 0, TWO_64 },
    { "v_cvt_f64_i32_e32 v[8:9], v2", 0xFFFFFFFE, 0, 0, 0xC000000000000000 },
    { "v_cvt_f64_u32_e32 v[8:9], v2", 2, 0, 0, TWO_64 },
    { "v_cvt_i32_f64_e32 v8, v[2:3]\nv_mov_b32_e32 v9, 0", 0xC004000000000000, 0, 0, 0xFFFFFFFE },
    { "v_cvt_u32_f64_e32 v8, v[2:3]\nv_mov_b32_e32 v9, 0", 0x41F0000000000000, 0, 0, UINT32_MAX },
    { "v_pk_add_f32 v[8:9], v[2:3], v[4:5]", PAIR(ONE, TWO), PAIR(ONE, ONE), 0, PAIR(TWO, 0x40400000) },
    { "v_pk_add_f32 v[8:9], v[2:3], v[4:5] neg_lo:[0,1] neg_hi:[0,1]", PAIR(ONE, TWO), PAIR(ONE, ONE), 0, PAIR(0, ONE) },
    { "v_pk_add_f32 v[8:9], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1]", PAIR(ONE, TWO), PAIR(0, 0), 0, PAIR(TWO, ONE) },
    { "v_pk_mul_f32 v[8:9], v[2:3], v[4:5] op_sel_hi:[1,0]", PAIR(ONE, TWO), PAIR(TWO, ONE), 0, PAIR(TWO, 0x40800000) },
    { "v_pk_mul_f32 v[8:9], v[2:3], s[12:13]", PAIR(ONE, TWO), PAIR(TWO, ONE), 0, PAIR(TWO, TWO) },
    { "v_pk_fma_f32 v[8:9], v[2:3], v[4:5], v[6:7] op_sel_hi:[0,1,1]", PAIR(TWO, ONE), PAIR(ONE, TWO), PAIR(ONE, ONE), PAIR(0x40400000, 0x40A00000) },
    { "v_pk_mov_b32 v[8:9], v[2:3], v[4:5] op_sel:[1,0]", PAIR(1, 2), PAIR(3, 4), 0, PAIR(2, 3) },
    { "v_pk_mov_b32 v[8:9], v[2:3], v[4:5] op_sel:[0,1]", PAIR(1, 2), PAIR(3, 4), 0, PAIR(1, 4) },
    { "v_cvt_pk_f32_bf8_e32 v[8:9], v2\nv_cvt_pk_f32_bf8_sdwa v[8:9], v2 src0_sel:WORD_1", 0, 0, 0, 0 },
    { "v_cvt_f32_bf8_e32 v8, v2\nv_cvt_f32_fp8_e32 v9, v2", 0, 0, 0, 0 },
};

static void run64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases64 / sizeof cases64[0]; i++) {
        char body[1024];
        uint32_t result[3];
        const case64 *c = &cases64[i];
        snprintf(body, sizeof body,
                 PROLOGUE "v_mov_b32_e32 v2, 0x%x\nv_mov_b32_e32 v3, 0x%x\nv_mov_b32_e32 v4, 0x%x\nv_mov_b32_e32 v5, 0x%x\nv_mov_b32_e32 v6, 0x%x\nv_mov_b32_e32 v7, 0x%x\n"
                          "s_mov_b32 s12, 0x%x\ns_mov_b32 s13, 0x%x\n%s\nv_mov_b32_e32 v10, 0\n" EPILOGUE,
                 (uint32_t)c->a, (uint32_t)(c->a >> 32), (uint32_t)c->b, (uint32_t)(c->b >> 32), (uint32_t)c->c, (uint32_t)(c->c >> 32), (uint32_t)c->b,
                 (uint32_t)(c->b >> 32), c->text);
        run_body(body, result);
        const uint64_t r = PAIR(result[0], result[1]);
        if (r != c->expected)
            print_message("%s is 0x%016llx, expected 0x%016llx\n", c->text, (unsigned long long)r, (unsigned long long)c->expected);
        assert_true(r == c->expected);
    }
}

/* ---- comparisons: a < b, a == b, a > b, a NaN ---------------------------------------------------------------------------------------------- */

static void run_comparison(const char *name, const char *type, const char *pattern)
{
    static const uint64_t values[6][4][2] = {
        { { 1, 0x80000001 }, { 7, 7 }, { 0x80000001, 1 }, { 0, 0 } },                       /* u */
        { { 0xFFFFFFFF, 1 }, { 7, 7 }, { 1, 0xFFFFFFFF }, { 0, 0 } },                       /* i */
        { { 0xBF800000, ONE }, { 0x80000000, 0 }, { TWO, ONE }, { 0x7FC00000, ONE } },      /* f32 */
        { { UINT64_C(0xBFF0000000000000), ONE_64 }, { ONE_64, ONE_64 }, { TWO_64, ONE_64 }, { UINT64_C(0x7FF8000000000000), ONE_64 } },
        { { 0xFFFF, 1 }, { 7, 7 }, { 1, 0xFFFF }, { 0, 0 } },                               /* i16 */
        { { 0x50001, 0x8001 }, { 0x10007, 7 }, { 0x8001, 0x50001 }, { 0, 0 } },             /* u16 */
    };
    const int kind = strcmp(type, "i16") == 0 ? 4 : strcmp(type, "u16") == 0 ? 5 : strcmp(type, "f64") == 0 ? 3 : type[0] == 'f' ? 2 : type[0] == 'i' ? 1 : 0;
    for (int i = 0; pattern[i] != 0; i++) {
        char body[1024];
        uint32_t result[3];
        uint64_t a = values[kind][i][0], b = values[kind][i][1];
        const int wide = strcmp(type + 1, "64") == 0;
        if (wide && kind == 1) {
            a = (uint64_t)(int64_t)(int32_t)a;
            b = (uint64_t)(int64_t)(int32_t)b;
        }
        snprintf(body, sizeof body,
                 PROLOGUE "v_mov_b32_e32 v2, 0x%x\nv_mov_b32_e32 v3, 0x%x\nv_mov_b32_e32 v4, 0x%x\nv_mov_b32_e32 v5, 0x%x\n%s_%s_e64 s[10:11], %s, %s\n"
                          "v_cndmask_b32_e64 v8, 0, 1, s[10:11]\nv_mov_b32_e32 v9, 0\nv_mov_b32_e32 v10, 0\n" EPILOGUE,
                 (uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32), name, type, wide ? "v[2:3]" : "v2", wide ? "v[4:5]" : "v4");
        run_body(body, result);
        if (result[0] != (uint32_t)(pattern[i] - '0'))
            print_message("%s_%s of case %d\n", name, type, i);
        assert_int_equal(result[0], pattern[i] - '0');
    }
}

static void comparisons(void **state)
{
    static const char *const integers[] = { "u32", "i32", "u16", "i16", "u64", "i64" };
    static const struct { const char *name, *pattern; } whole[] = { { "v_cmp_eq", "010" }, { "v_cmp_ne", "101" }, { "v_cmp_lt", "100" },
                                                                    { "v_cmp_le", "110" }, { "v_cmp_gt", "001" }, { "v_cmp_ge", "011" } };
    static const struct { const char *name, *pattern; } floats[] = {
        { "v_cmp_eq", "0100" }, { "v_cmp_lt", "1000" }, { "v_cmp_le", "1100" }, { "v_cmp_gt", "0010" }, { "v_cmp_ge", "0110" },
        { "v_cmp_neq", "1011" }, { "v_cmp_nlt", "0111" }, { "v_cmp_nle", "0011" }, { "v_cmp_ngt", "1101" }, { "v_cmp_nge", "1001" },
    };
    (void)state;
    for (size_t t = 0; t < sizeof integers / sizeof integers[0]; t++)
        for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
            run_comparison(whole[i].name, integers[t], whole[i].pattern);
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        run_comparison(floats[i].name, "f32", floats[i].pattern);
        run_comparison(floats[i].name, "f64", floats[i].pattern);
    }
    run_comparison("v_cmp_lg", "f32", "1010");
    run_comparison("v_cmp_nlg", "f32", "0101");
    run_comparison("v_cmp_o", "f32", "1110");
    run_comparison("v_cmp_u", "f32", "0001");
}

/* ---- scalars: s[8:9], s[10:11] = a, b, scc; result s[12:13] and scc ------------------------------------------------------------------------- */

typedef struct scalar_case { const char *text; uint64_t a, b; uint32_t scc; uint64_t expected; uint32_t scc_after; } scalar_case;

static const scalar_case scalar_cases[] = {
    { "s_mov_b32 s12, s8", 5, 0, 1, 5, 1 },
    { "s_mov_b32 s12, 0.5", 0, 0, 0, 0x3F000000, 0 },
    { "s_mov_b64 s[12:13], s[8:9]", 0x8000000000000001, 0, 0, 0x8000000000000001, 0 },
    { "s_mov_b64 s[12:13], 0xfffffffe", 0, 0, 0, 0xFFFFFFFE, 0 },   /* a literal is zero-extended, an inline number is not */
    { "s_mov_b64 s[12:13], -2", 0, 0, 0, 0xFFFFFFFFFFFFFFFE, 0 },
    { "s_movk_i32 s12, 0xfff0", 0, 0, 0, 0xFFFFFFF0, 0 },
    { "s_cselect_b32 s12, s8, s10", 1, 2, 1, 1, 1 },
    { "s_cselect_b64 s[12:13], -1, 0", 0, 0, 0, 0, 0 },
    { "s_not_b32 s12, s8", 0xFFFFFFFF, 0, 1, 0, 0 },
    { "s_not_b64 s[12:13], s[8:9]", 1, 0, 0, 0xFFFFFFFFFFFFFFFE, 1 },
    { "s_and_b32 s12, s8, s10", 12, 10, 0, 8, 1 },
    { "s_and_b64 s[12:13], s[8:9], s[10:11]", 12, 3, 1, 0, 0 },
    { "s_or_b32 s12, s8, s10", 12, 10, 0, 14, 1 },
    { "s_or_b64 s[12:13], s[8:9], s[10:11]", UINT64_C(1) << 40, 1, 0, (UINT64_C(1) << 40) | 1, 1 },
    { "s_xor_b32 s12, s8, s10", 12, 12, 1, 0, 0 },
    { "s_xor_b64 s[12:13], s[8:9], -1", 1, 0, 0, 0xFFFFFFFFFFFFFFFE, 1 },
    { "s_andn2_b32 s12, s8, s10", 12, 8, 0, 4, 1 },
    { "s_andn2_b64 s[12:13], s[8:9], s[10:11]", 12, 12, 1, 0, 0 },
    { "s_orn2_b32 s12, s8, s10", 0, 0xFFFFFFFF, 1, 0, 0 },
    { "s_orn2_b64 s[12:13], s[8:9], s[10:11]", 1, UINT64_MAX, 0, 1, 1 },
    { "s_nor_b32 s12, s8, s10", 0xFFFF0000, 0x0000FFFF, 1, 0, 0 },
    { "s_nor_b64 s[12:13], s[8:9], s[10:11]", 1, 2, 0, 0xFFFFFFFFFFFFFFFC, 1 },
    { "s_nand_b32 s12, s8, s10", 0xFFFFFFFF, 0xFFFFFFFF, 1, 0, 0 },
    { "s_nand_b64 s[12:13], s[8:9], s[10:11]", 3, 1, 0, 0xFFFFFFFFFFFFFFFE, 1 },
    { "s_xnor_b32 s12, s8, s10", 12, 12, 0, 0xFFFFFFFF, 1 },
    { "s_xnor_b64 s[12:13], s[8:9], s[10:11]", 0, UINT64_MAX, 1, 0, 0 },
    { "s_lshl_b32 s12, s8, s10", 3, 33, 0, 6, 1 },
    { "s_lshr_b32 s12, s8, s10", 1, 1, 1, 0, 0 },
    { "s_ashr_i32 s12, s8, s10", 0x80000000, 31, 0, 0xFFFFFFFF, 1 },
    { "s_lshl_b64 s[12:13], s[8:9], s10", 3, 33, 0, UINT64_C(6) << 32, 1 },
    { "s_lshr_b64 s[12:13], s[8:9], s10", UINT64_C(6) << 32, 33, 0, 3, 1 },
    { "s_ashr_i64 s[12:13], s[8:9], s10", UINT64_C(1) << 63, 62, 0, 0xFFFFFFFFFFFFFFFE, 1 },
    { "s_bfe_u32 s12, s8, s10", 0xABCD1234, 0x000C0008, 0, 0xD12, 1 },
    { "s_brev_b32 s12, s8", 1, 0, 0, 0x80000000, 0 },
    { "s_ff1_i32_b32 s12, s8", 0, 0, 0, 0xFFFFFFFF, 0 },
    { "s_ff1_i32_b64 s12, s[8:9]", UINT64_C(1) << 40, 0, 0, 40, 0 },
    { "s_flbit_i32_b32 s12, s8", 0x00800000, 0, 0, 8, 0 },
    { "s_bcnt1_i32_b32 s12, s8", 0xFF, 0, 0, 8, 1 },
    { "s_bcnt1_i32_b64 s12, s[8:9]", 0, 0, 1, 0, 0 },
    { "s_sext_i32_i8 s12, s8", 0x180, 0, 0, 0xFFFFFF80, 0 },
    { "s_sext_i32_i16 s12, s8", 0x18000, 0, 0, 0xFFFF8000, 0 },
    { "s_add_u32 s12, s8, s10", 0xFFFFFFFF, 2, 0, 1, 1 },
    { "s_addc_u32 s12, s8, s10", 0xFFFFFFFE, 1, 1, 0, 1 },
    { "s_sub_u32 s12, s8, s10", 1, 2, 0, 0xFFFFFFFF, 1 },
    { "s_subb_u32 s12, s8, s10", 5, 2, 1, 2, 0 },
    { "s_subb_u32 s12, s8, s10", 2, 2, 1, 0xFFFFFFFF, 1 },
    { "s_add_i32 s12, s8, s10", 0x7FFFFFFF, 1, 0, 0x80000000, 1 },
    { "s_sub_i32 s12, s8, s10", 1, 2, 1, 0xFFFFFFFF, 0 },
    { "s_mov_b32 s12, s8\ns_addk_i32 s12, 0xfffe", 5, 0, 1, 3, 0 },
    { "s_mul_i32 s12, s8, s10", 0xFFFFFFFF, 5, 1, 0xFFFFFFFB, 1 },
    { "s_mul_hi_u32 s12, s8, s10", 0xFFFFFFFF, 0xFFFFFFFF, 0, 0xFFFFFFFE, 0 },
    { "s_mul_hi_i32 s12, s8, s10", 0xFFFFFFFF, 5, 0, 0xFFFFFFFF, 0 },
    { "s_abs_i32 s12, s8", 0xFFFFFFFB, 0, 0, 5, 1 },
    { "s_min_u32 s12, s8, s10", 0xFFFFFFFF, 1, 1, 1, 0 },
    { "s_max_u32 s12, s8, s10", 0xFFFFFFFF, 1, 0, 0xFFFFFFFF, 1 },
    { "s_min_i32 s12, s8, s10", 0xFFFFFFFF, 1, 0, 0xFFFFFFFF, 1 },
    { "s_max_i32 s12, s8, s10", 0xFFFFFFFF, 1, 1, 1, 0 },
    { "s_lshl1_add_u32 s12, s8, s10", 3, 1, 1, 7, 0 },
    { "s_lshl2_add_u32 s12, s8, s10", 3, 1, 1, 13, 0 },
    { "s_lshl3_add_u32 s12, s8, s10", 3, 1, 1, 25, 0 },
    { "s_lshl4_add_u32 s12, s8, s10", 0x10000000, 1, 0, 1, 1 },
    { "s_mov_b32 s12, 0\ns_cmp_eq_u32 s8, s10", 3, 3, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmp_lg_u32 s8, s10", 3, 3, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmp_lt_u32 s8, s10", 1, 0xFFFFFFFF, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmp_le_u32 s8, s10", 3, 3, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmp_gt_u32 s8, s10", 1, 0xFFFFFFFF, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmp_ge_u32 s8, s10", 1, 0xFFFFFFFF, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmp_eq_i32 s8, s10", 3, 4, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmp_lg_i32 s8, s10", 3, 4, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmp_lt_i32 s8, s10", 1, 0xFFFFFFFF, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmp_le_i32 s8, s10", 1, 0xFFFFFFFF, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmp_gt_i32 s8, s10", 1, 0xFFFFFFFF, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmp_ge_i32 s8, s10", 1, 0xFFFFFFFF, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmp_eq_u64 s[8:9], s[10:11]", UINT64_C(1) << 40, 0, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmp_lg_u64 s[8:9], 0", UINT64_C(1) << 40, 0, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmpk_eq_u32 s8, 0xfff0", 0xFFF0, 0, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmpk_lg_u32 s8, 0xfff0", 0xFFF0, 0, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmpk_lt_u32 s8, 0xfff0", 5, 0, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmpk_le_u32 s8, 0x5", 5, 0, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmpk_gt_u32 s8, 0xfff0", 5, 0, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmpk_ge_u32 s8, 0x5", 5, 0, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmpk_eq_i32 s8, 0xfff0", 0xFFFFFFF0, 0, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmpk_lg_i32 s8, 0xfff0", 0xFFFFFFF0, 0, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmpk_lt_i32 s8, 0xfff0", 5, 0, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmpk_le_i32 s8, 0xfff0", 5, 0, 1, 0, 0 },
    { "s_mov_b32 s12, 0\ns_cmpk_gt_i32 s8, 0xfff0", 5, 0, 0, 0, 1 },
    { "s_mov_b32 s12, 0\ns_cmpk_ge_i32 s8, 0xfff0", 5, 0, 0, 0, 1 },
    /* exec: all 64 lanes before; it is put back, and its change is what comes out. */
    { "s_mov_b64 s[14:15], exec\ns_and_saveexec_b64 s[12:13], s[8:9]\ns_mov_b64 s[12:13], exec\ns_mov_b64 exec, s[14:15]", 5, 0, 0, 5, 1 },
    { "s_mov_b64 s[14:15], exec\ns_mov_b64 exec, 3\ns_or_saveexec_b64 s[12:13], s[8:9]\ns_mov_b64 s[12:13], exec\ns_mov_b64 exec, s[14:15]", 5, 0, 0, 7, 1 },
    { "s_mov_b64 s[14:15], exec\ns_mov_b64 exec, 3\ns_andn2_saveexec_b64 s[12:13], s[8:9]\ns_mov_b64 s[12:13], exec\ns_mov_b64 exec, s[14:15]", 5, 0, 0, 4, 1 },
    { "s_mov_b64 s[14:15], exec\ns_mov_b64 exec, 3\ns_and_saveexec_b64 s[12:13], s[8:9]\ns_mov_b64 exec, s[14:15]", 4, 0, 1, 3, 0 },
    { "v_readfirstlane_b32 s12, v0", 0, 0, 0, 0, 0 },
    { "s_mov_b64 exec, -8\nv_readfirstlane_b32 s12, v0\ns_mov_b64 exec, -1", 0, 0, 0, 3, 0 },
    { "v_readlane_b32 s12, v0, 37", 0, 0, 0, 37, 0 },
    { "v_mov_b32_e32 v20, 1\nv_writelane_b32 v20, s8, 9\nv_readlane_b32 s12, v20, 9\nv_readlane_b32 s13, v20, 8", 77, 0, 0, PAIR(77, 1), 0 },
};

static void scalars(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scalar_cases / sizeof scalar_cases[0]; i++) {
        char body[1024];
        uint32_t result[3];
        const scalar_case *c = &scalar_cases[i];
        snprintf(body, sizeof body,
                 PROLOGUE "s_mov_b32 s8, 0x%x\ns_mov_b32 s9, 0x%x\ns_mov_b32 s10, 0x%x\ns_mov_b32 s11, 0x%x\ns_mov_b32 s13, 0\ns_cmp_eq_u32 s13, %d\n%s\n"
                          "s_cselect_b32 s14, 1, 0\nv_mov_b32_e32 v8, s12\nv_mov_b32_e32 v9, s13\nv_mov_b32_e32 v10, s14\n" EPILOGUE,
                 (uint32_t)c->a, (uint32_t)(c->a >> 32), (uint32_t)c->b, (uint32_t)(c->b >> 32), c->scc ? 0 : 1, c->text);
        run_body(body, result);
        const uint64_t r = PAIR(result[0], result[1]);
        if (r != c->expected || result[2] != c->scc_after)
            print_message("%s is 0x%llx and scc %u, expected 0x%llx and %u\n", c->text, (unsigned long long)r, result[2], (unsigned long long)c->expected, c->scc_after);
        assert_true(r == c->expected && result[2] == c->scc_after);
    }
}

int test_ops(void);
int test_ops(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run32),
        cmocka_unit_test(run64),
        cmocka_unit_test(comparisons),
        cmocka_unit_test(scalars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
