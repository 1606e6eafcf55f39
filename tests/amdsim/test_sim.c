/* test_sim.c: what the simulator does beyond single values: memory, LDS, lanes, matrix units, waits and barriers, against results worked out by
 * hand. Runs the tests of test_arith.c, test_ops.c and test_faults.c too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "amdsim/arith.h"
#include "amdsim/snippet.h"

int test_arith(void);
int test_faults(void);
int test_ops(void);

enum { LANE_WORDS = 3, OUT_WORDS = 256 * LANE_WORDS };

static uint32_t out[OUT_WORDS], input[1024];

/* Words of `input` are their indices times 3 plus 1 unless a test says otherwise. */
static void fill_input(void)
{
    for (uint32_t i = 0; i < 1024; i++)
        input[i] = 3 * i + 1;
}

static sim_report run_on(const char *arch, const char *body, uint32_t threads, uint32_t lds_bytes)
{
    const snippet s = { arch, body, threads, lds_bytes, 1, input, 1024, out, OUT_WORDS };
    sim_report report;
    snippet_run(&s, &report);
    return report;
}

static void run_well(const char *body, uint32_t threads, uint32_t lds_bytes)
{
    const sim_report report = run_on("gfx950", body, threads, lds_bytes);
    if (report.fault != SIM_OK)
        print_message("%s\n", report.text);
    assert_int_equal(report.fault, SIM_OK);
}

/* lane's v8, v9, v10. */
static uint32_t result(uint32_t lane, uint32_t word) { return out[lane * LANE_WORDS + word]; }

#define ZEROS "v_mov_b32_e32 v8, 0\nv_mov_b32_e32 v9, 0\nv_mov_b32_e32 v10, 0\n"

/* ---- global memory -------------------------------------------------------------------------------------------------------------------- */

static void global_loads(void **state)
{
    (void)state;
    fill_input();
    input[0] = 0x80FF7F01;
    run_well(PROLOGUE ZEROS "v_lshlrev_b32_e32 v1, 2, v0\nglobal_load_dword v8, v1, s[6:7] offset:40\nglobal_load_dwordx2 v[20:21], v1, s[6:7]\n"
                            "s_waitcnt vmcnt(1)\nv_add_u32_e32 v8, 5, v8\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v9, v21\n" EPILOGUE, 64, 0);
    for (uint32_t lane = 0; lane < 64; lane++) {
        assert_int_equal(result(lane, 0), input[lane + 10] + 5);
        assert_int_equal(result(lane, 1), input[lane + 1]);
    }
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v1, 0\nglobal_load_ubyte v8, v1, s[6:7] offset:2\nglobal_load_sbyte v9, v1, s[6:7] offset:2\n"
                            "global_load_sshort v10, v1, s[6:7] offset:2\ns_waitcnt vmcnt(0)\n" EPILOGUE, 64, 0);
    assert_int_equal(result(3, 0), 0xFF);
    assert_int_equal(result(3, 1), 0xFFFFFFFF);
    assert_int_equal(result(3, 2), 0xFFFF80FF);
    run_well(PROLOGUE "v_mov_b32_e32 v2, s6\nv_mov_b32_e32 v3, s7\nglobal_load_dwordx4 v[20:23], v[2:3], off offset:16\nglobal_load_dwordx3 v[24:26], v[2:3], off\n"
                      "global_load_ushort a1, v[2:3], off\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v8, v23\nv_mov_b32_e32 v9, v26\nv_accvgpr_read_b32 v10, a1\n" EPILOGUE, 64, 0);
    assert_int_equal(result(0, 0), input[7]);
    assert_int_equal(result(0, 1), input[2]);
    assert_int_equal(result(0, 2), 0x7F01);
    run_well("s_load_dword s4, s[0:1], 0x0\ns_load_dword s5, s[0:1], 0x4\ns_load_dwordx2 s[6:7], s[0:1], 0x8\ns_waitcnt lgkmcnt(0)\n"
             "s_load_dwordx8 s[12:19], s[6:7], 0x10\ns_load_dwordx16 s[20:35], s[6:7], 0x40\ns_waitcnt lgkmcnt(0)\n"
             "v_mov_b32_e32 v8, s12\nv_mov_b32_e32 v9, s19\nv_mov_b32_e32 v10, s35\n" EPILOGUE, 64, 0);
    assert_int_equal(result(0, 0), input[4]);
    assert_int_equal(result(0, 1), input[11]);
    assert_int_equal(result(0, 2), input[31]);
}

static void global_stores(void **state)
{
    (void)state;
    fill_input();
    run_well(PROLOGUE "v_lshlrev_b32_e32 v1, 4, v0\nv_mov_b32_e32 v2, 0x11223344\nv_mov_b32_e32 v3, 2\nv_mov_b32_e32 v4, 3\nv_mov_b32_e32 v5, v0\n"
                      "v_mov_b64_e32 v[6:7], 0\nglobal_store_dwordx4 v1, v[2:5], s[4:5]\nglobal_store_byte v1, v0, s[4:5] offset:1\nglobal_store_short v1, v3, s[4:5] offset:4\n"
                      "s_endpgm\n", 64, 0);
    for (uint32_t lane = 0; lane < 64; lane++) {
        assert_int_equal(out[4 * lane], 0x11220044 | lane << 8);
        assert_int_equal(out[4 * lane + 1], 2);
        assert_int_equal(out[4 * lane + 3], lane);
    }
    /* Lanes that are masked off neither load nor store. */
    run_well(PROLOGUE ZEROS "s_mov_b64 s[10:11], exec\ns_mov_b64 exec, 5\nv_mov_b32_e32 v8, 7\nv_lshlrev_b32_e32 v1, 28, v0\nv_mul_lo_u32 v1, v1, 0\n"
                            "global_load_dword v9, v1, s[6:7]\ns_waitcnt vmcnt(0)\ns_mov_b64 exec, s[10:11]\n" EPILOGUE, 64, 0);
    assert_int_equal(result(0, 0), 7);
    assert_int_equal(result(1, 0), 0);
    assert_int_equal(result(2, 1), input[0]);
    assert_int_equal(result(3, 1), 0);
    run_well(PROLOGUE "v_lshlrev_b32_e32 v1, 3, v0\nv_mov_b32_e32 v2, 6\nv_mov_b32_e32 v3, 7\nglobal_store_dword v1, v2, s[4:5]\nglobal_store_dwordx2 v1, v[2:3], s[4:5]\n"
                      "s_endpgm\n", 64, 0);
    assert_int_equal(out[127], 7);
}

static void global_atomics(void **state)
{
    (void)state;
    /* 64 lanes add their number to one word; the old value of lane n is the sum of those before it. */
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v1, 0\nv_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 0\nv_mov_b32_e32 v4, 1\nglobal_store_dwordx2 v1, v[2:3], s[4:5] offset:3000\n"
                            "s_waitcnt vmcnt(0)\nglobal_atomic_add v8, v1, v0, s[4:5] offset:3000 sc0\nglobal_atomic_umax v1, v4, s[4:5] offset:3000\n"
                            "s_waitcnt vmcnt(0)\nglobal_atomic_or v9, v1, v2, s[4:5] offset:3000 sc0\nglobal_atomic_add_x2 v1, v[2:3], s[4:5] offset:3000\n"
                            "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)\nbuffer_inv sc1\n" EPILOGUE, 64, 0);
    for (uint32_t lane = 0; lane < 64; lane++) {
        assert_int_equal(result(lane, 0), lane * (lane - 1) / 2);
        assert_int_equal(result(lane, 1), 2016);
    }
}

/* ---- LDS and lanes -------------------------------------------------------------------------------------------------------------------- */

static void lds(void **state)
{
    (void)state;
    /* Two waves: each lane writes its number, all read their neighbour of the other wave. */
    run_well(PROLOGUE ZEROS "v_lshlrev_b32_e32 v1, 2, v0\nds_write_b32 v1, v0 offset:16\ns_waitcnt lgkmcnt(0)\ns_barrier\nv_xor_b32_e32 v2, 0x100, v1\n"
                            "ds_read_b32 v8, v2 offset:16\ns_waitcnt lgkmcnt(0)\n" EPILOGUE, 128, 528);
    for (uint32_t lane = 0; lane < 128; lane++)
        assert_int_equal(result(lane, 0), lane ^ 64);
    run_well(PROLOGUE ZEROS "v_lshlrev_b32_e32 v1, 4, v0\nv_mov_b32_e32 v2, v0\nv_mov_b32_e32 v3, 5\nv_mov_b32_e32 v4, 6\nv_mov_b32_e32 v5, 7\n"
                            "ds_write_b128 v1, v[2:5]\nds_read_b64 v[8:9], v1 offset:8\nds_read_b96 v[20:22], v1\nds_read_b128 v[24:27], v1\ns_waitcnt lgkmcnt(0)\n"
                            "v_mov_b32_e32 v10, v22\nds_write_b96 v1, v[2:4]\nds_write_b64 v1, v[4:5]\nds_write2_b32 v1, v2, v3 offset0:2 offset1:3\n"
                            "ds_read2_b32 v[30:31], v1 offset1:3\nds_read2_b64 v[32:35], v1 offset1:1\ns_waitcnt lgkmcnt(0)\nv_add_u32_e32 v10, v10, v30\n" EPILOGUE, 64, 1024);
    for (uint32_t lane = 0; lane < 64; lane++) {
        assert_int_equal(result(lane, 0), 6);
        assert_int_equal(result(lane, 1), 7);
        assert_int_equal(result(lane, 2), 12);
    }
    run_well(PROLOGUE ZEROS "v_lshlrev_b32_e32 v1, 3, v0\nv_mov_b32_e32 v2, v0\nv_mov_b32_e32 v3, 1\nds_write2_b64 v1, v[2:3], v[2:3] offset1:64\n"
                            "ds_write2st64_b64 v1, v[2:3], v[2:3] offset0:2 offset1:3\nds_read2st64_b64 v[20:23], v1 offset1:3\n"
                            "v_lshlrev_b32_e32 v1, 2, v0\nds_write2st64_b32 v1, v0, v3 offset1:1\nds_read2st64_b32 v[24:25], v1 offset1:1\n"
                            "s_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v8, v22\nv_mov_b32_e32 v9, v24\nv_mov_b32_e32 v10, v25\n" EPILOGUE, 64, 2048);
    for (uint32_t lane = 0; lane < 64; lane++) {
        assert_int_equal(result(lane, 0), lane);
        assert_int_equal(result(lane, 1), lane);
        assert_int_equal(result(lane, 2), 1);
    }
    /* Atomics of two waves do not race with each other. */
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v1, 0\nv_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 0\ns_mov_b64 s[10:11], exec\nv_cmp_eq_u32_e32 vcc, 0, v0\ns_and_b64 exec, exec, vcc\nds_write_b64 v1, v[2:3]\n"
                            "s_waitcnt lgkmcnt(0)\ns_mov_b64 exec, s[10:11]\ns_barrier\nv_lshlrev_b32_e64 v3, v0, 1\nds_or_b32 v1, v3\nds_add_u32 v1, v0 offset:4\n"
                            "s_waitcnt lgkmcnt(0)\ns_barrier\nds_read_b64 v[8:9], v1\ns_waitcnt lgkmcnt(0)\n" EPILOGUE, 128, 8);
    assert_int_equal(result(0, 0), UINT32_MAX);
    assert_int_equal(result(0, 1), 127 * 64);
}

static void run_dpp(const char *modifier, const int *expected)
{
    char body[512];
    snprintf(body, sizeof body, PROLOGUE ZEROS "v_mov_b32_e32 v8, 0x3e7\nv_mov_b32_dpp v8, v0 %s\n" EPILOGUE, modifier);
    run_well(body, 64, 0);
    for (uint32_t lane = 0; lane < 64; lane++) {
        if (result(lane, 0) != (uint32_t)expected[lane])
            print_message("%s: lane %u is %u\n", modifier, lane, result(lane, 0));
        assert_int_equal(result(lane, 0), expected[lane]);
    }
}

static void dpp(void **state)
{
    int e[64];
    (void)state;
    for (int i = 0; i < 64; i++)
        e[i] = (i & ~3) + (int[]){ 1, 0, 3, 2 }[i & 3];
    run_dpp("quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i % 16 < 8 ? i + 8 : 999;
    run_dpp("row_shl:8 row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i % 16 >= 1 ? i - 1 : 0;
    run_dpp("row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", e);
    for (int i = 0; i < 64; i++)
        e[i] = i / 16 * 16 + (i + 12) % 16;
    run_dpp("row_ror:4 row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i ^ 15;
    run_dpp("row_mirror row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i ^ 7;
    run_dpp("row_half_mirror row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i / 16 % 2 == 1 ? i / 16 * 16 - 1 : 999;
    run_dpp("row_bcast:15 row_mask:0xa bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i >= 32 ? 31 : 999;
    run_dpp("row_bcast:31 row_mask:0xc bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i / 16 * 16 + 5;
    run_dpp("row_newbcast:5 row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i > 0 ? i - 1 : 999;
    run_dpp("wave_shr:1 row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = (i + 1) % 64;
    run_dpp("wave_rol:1 row_mask:0xf bank_mask:0xf", e);
    for (int i = 0; i < 64; i++)
        e[i] = i / 4 % 4 == 1 ? i ^ 15 : 999;
    run_dpp("row_mirror row_mask:0xf bank_mask:0x2", e);
}

static void permutes(void **state)
{
    (void)state;
    run_well(PROLOGUE ZEROS "v_xor_b32_e32 v1, 5, v0\nv_lshlrev_b32_e32 v1, 2, v1\nv_lshlrev_b32_e32 v2, 1, v0\nds_bpermute_b32 v8, v1, v2\nds_permute_b32 v9, v1, v0\n"
                            "s_waitcnt lgkmcnt(0)\n" EPILOGUE, 64, 0);
    for (uint32_t lane = 0; lane < 64; lane++) {
        assert_int_equal(result(lane, 0), 2 * (lane ^ 5));
        assert_int_equal(result(lane, 1), lane ^ 5);
    }
    /* A lane that is masked off gives 0. */
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v1, 40\nv_mov_b32_e32 v2, 9\ns_mov_b64 exec, 3\nds_bpermute_b32 v8, v1, v2\ns_waitcnt lgkmcnt(0)\ns_mov_b64 exec, -1\n" EPILOGUE, 64, 0);
    assert_int_equal(result(0, 0), 0);
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v1, -1\nv_mbcnt_lo_u32_b32 v8, v1, 0\nv_mbcnt_hi_u32_b32 v8, v1, v8\n" EPILOGUE, 64, 0);
    for (uint32_t lane = 0; lane < 64; lane++)
        assert_int_equal(result(lane, 0), lane);
}

static void branches(void **state)
{
    (void)state;
    /* Lane n goes round n times. */
    run_well(PROLOGUE ZEROS "s_mov_b64 s[10:11], exec\ns_nop 1\n.Lloop:\nv_cmp_lt_u32_e32 vcc, v8, v0\ns_and_b64 exec, exec, vcc\ns_cbranch_execz .Ldone\n"
                            "v_add_u32_e32 v8, 1, v8\ns_setprio 1\ns_sleep 0\ns_branch .Lloop\n.Ldone:\ns_mov_b64 exec, s[10:11]\n" EPILOGUE, 64, 0);
    for (uint32_t lane = 0; lane < 64; lane++)
        assert_int_equal(result(lane, 0), lane);
    run_well(PROLOGUE ZEROS "s_mov_b32 s8, 0\n.L1:\ns_add_u32 s8, s8, 1\ns_cmp_lt_u32 s8, 10\ns_cbranch_scc1 .L1\ns_cmp_eq_u32 s8, 10\ns_cbranch_scc0 .L3\n"
                            "v_cmp_gt_u32_e32 vcc, 5, v0\ns_cbranch_vccz .L3\nv_mov_b32_e32 v8, s8\ns_cbranch_vccnz .L2\ns_branch .L3\n.L2:\nv_mov_b32_e32 v9, 1\n"
                            "s_cbranch_execnz .L4\n.L3:\nv_mov_b32_e32 v8, 99\n.L4:\n" EPILOGUE, 64, 0);
    assert_int_equal(result(7, 0), 10);
    assert_int_equal(result(7, 1), 1);
}

static void divisions(void **state)
{
    (void)state;
    /* 1 / 3, by the compiler's sequences. */
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v2, 1.0\nv_mov_b32_e32 v3, 0x40400000\nv_div_scale_f32 v4, s[8:9], v3, v3, v2\nv_rcp_f32_e32 v5, v4\n"
                            "v_div_scale_f32 v6, vcc, v2, v3, v2\nv_fma_f32 v7, -v4, v5, 1.0\nv_fmac_f32_e32 v5, v7, v5\nv_mul_f32_e32 v7, v6, v5\nv_fma_f32 v20, -v4, v7, v6\n"
                            "v_fmac_f32_e32 v7, v20, v5\nv_fma_f32 v4, -v4, v7, v6\nv_div_fmas_f32 v4, v4, v5, v7\nv_div_fixup_f32 v8, v4, v3, v2\n" EPILOGUE, 64, 0);
    assert_int_equal(result(0, 0), B(1.0f / 3.0f));
    run_well(PROLOGUE ZEROS "v_cvt_f64_u32_e32 v[2:3], 1\nv_cvt_f64_u32_e32 v[4:5], 3\nv_div_scale_f64 v[6:7], s[8:9], v[4:5], v[4:5], v[2:3]\nv_rcp_f64_e32 v[20:21], v[6:7]\n"
                            "v_fma_f64 v[22:23], -v[6:7], v[20:21], 1.0\nv_fmac_f64_e32 v[20:21], v[20:21], v[22:23]\nv_fma_f64 v[22:23], -v[6:7], v[20:21], 1.0\n"
                            "v_fmac_f64_e32 v[20:21], v[20:21], v[22:23]\nv_div_scale_f64 v[22:23], vcc, v[2:3], v[4:5], v[2:3]\nv_mul_f64 v[24:25], v[22:23], v[20:21]\n"
                            "v_fma_f64 v[6:7], -v[6:7], v[24:25], v[22:23]\nv_div_fmas_f64 v[6:7], v[6:7], v[20:21], v[24:25]\nv_div_fixup_f64 v[8:9], v[6:7], v[4:5], v[2:3]\n" EPILOGUE, 64, 0);
    assert_true(((uint64_t)result(0, 1) << 32 | result(0, 0)) == B64(1.0 / 3.0));
}

/* Instructions that gfx942 lacks. Bit 4a + 2b + c of a truth table. */
static void only_on_gfx950(void **state)
{
    (void)state;
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v2, 0xf0\nv_mov_b32_e32 v3, 0xcc\nv_mov_b32_e32 v4, 0xaa\nv_bitop3_b32 v8, v2, v3, v4 bitop3:0xc4\nv_bitop3_b32 v9, v2, v3, v4 bitop3:0x3f\n"
                            "v_bitop3_b16 v10, v2, v3, v4 bitop3:0x3f\n" EPILOGUE, 64, 0);
    assert_int_equal(result(0, 0), 0xC4);
    assert_int_equal(result(0, 1), 0xFFFFFF3F);
    assert_int_equal(result(0, 2), 0xFF3F);
    run_well(PROLOGUE ZEROS "v_mov_b32_e32 v2, 0x3f808000\nv_mov_b32_e32 v3, 0x3f818000\nv_cvt_pk_f16_f32 v8, v2, v3\nv_cvt_pk_bf16_f32 v9, v2, v3\n" EPILOGUE, 64, 0);
    assert_int_equal(result(0, 0), 0x3C0C3C04);
    assert_int_equal(result(0, 1), 0x3F823F80);   /* halfway, to even */
}

/* ---- fp8 and the matrix units ------------------------------------------------------------------------------------------------------------- */

static void fp8(void **state)
{
    static const struct { uint32_t byte; float ocp, fnuz, bf8_ocp, bf8_fnuz; } codes[] = {
        { 0x00, 0.0f, 0.0f, 0.0f, 0.0f },
        { 0x01, 0x1p-9f, 0x1p-10f, 0x1p-16f, 0x1p-17f },
        { 0x38, 1.0f, 0.5f, 0.5f, 0.25f },
        { 0x3C, 1.5f, 0.75f, 1.0f, 0.5f },
        { 0x7E, 448.0f, 224.0f, NAN, 49152.0f },
        { 0x7F, NAN, 240.0f, NAN, 57344.0f },
        { 0x7C, 384.0f, 192.0f, INFINITY, 32768.0f },
        { 0x80, -0.0f, NAN, -0.0f, NAN },
        { 0xFF, NAN, -240.0f, NAN, -57344.0f },
    };
    (void)state;
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        for (int is_950 = 0; is_950 < 2; is_950++) {
            char body[512];
            snprintf(body, sizeof body, PROLOGUE "v_mov_b32_e32 v2, 0x%x\nv_cvt_f32_fp8_e32 v8, v2\nv_cvt_f32_bf8_e32 v9, v2\n"
                                                 "v_cvt_pk_f32_fp8_sdwa v[20:21], v2 src0_sel:WORD_1\nv_cvt_pk_f32_bf8_e32 v[22:23], v2\nv_cvt_pk_f32_fp8_e32 v[24:25], v2\n"
                                                 "v_mov_b32_e32 v10, v21\n" EPILOGUE, codes[i].byte | codes[i].byte << 24 | 0x380000);
            assert_int_equal(run_on(is_950 ? "gfx950" : "gfx942", body, 64, 0).fault, SIM_OK);
            const float expected[3] = { is_950 ? codes[i].ocp : codes[i].fnuz, is_950 ? codes[i].bf8_ocp : codes[i].bf8_fnuz, is_950 ? codes[i].ocp : codes[i].fnuz };
            for (uint32_t word = 0; word < 3; word++)
                assert_true(isnan(expected[word]) ? is_nan(result(0, word)) : result(0, word) == B(expected[word]));
        }
}

/* Codes of 0, 1, 2, 3 in each element type. */
static uint32_t code_of(const char *type, int is_fnuz, uint32_t v)
{
    if (strcmp(type, "i8") == 0)
        return v;
    static const uint32_t f16[] = { 0, 0x3C00, 0x4000, 0x4200 }, bf16[] = { 0, 0x3F80, 0x4000, 0x4040 }, e4m3[] = { 0, 0x38, 0x40, 0x44 }, e5m2[] = { 0, 0x3C, 0x40, 0x42 };
    if (strcmp(type, "f16") == 0)
        return f16[v];
    if (strcmp(type, "bf16") == 0)
        return bf16[v];
    return strcmp(type, "fp8") == 0 ? e4m3[v] + (is_fnuz && v > 0 ? 8 : 0) : e5m2[v] + (is_fnuz && v > 0 ? 4 : 0);
}

static uint32_t a_at(uint32_t row, uint32_t k) { return (row * 7 + k * 3 + row * k) % 4; }
static uint32_t b_at(uint32_t k, uint32_t column) { return (column * 5 + k + column / 3) % 4; }

/* The layouts as the vendor's matrix calculator prints them, written out: for each lane and byte, the row (or column) and k it holds. */
static void run_matrix(const char *arch, const char *name, uint32_t m, uint32_t n_k, const char *type_a, const char *type_b)
{
    const uint32_t bytes_a = strchr(type_a, '8') != NULL ? 1 : 2, n_registers = m * n_k * bytes_a / 256, n_sums = m * m / 64;
    const int is_fnuz = strcmp(arch, "gfx942") == 0, is_integer = strcmp(type_a, "i8") == 0;
    char body[2048], words[32];
    memset(input, 0, sizeof input);
    for (uint32_t lane = 0; lane < 64; lane++)
        for (uint32_t i = 0; i < n_registers * 4 / bytes_a; i++) {
            const uint32_t row = lane % m, k = lane / m * (n_registers * 4 / bytes_a) + i, at = lane * n_registers + i * bytes_a / 4, shift = i * bytes_a % 4 * 8;
            input[at] |= code_of(type_a, is_fnuz, a_at(row, k)) << shift;
            input[512 + at] |= code_of(type_b, is_fnuz, b_at(k, row)) << shift;
        }
    snprintf(words, sizeof words, n_registers == 1 ? "dword" : "dwordx%u", n_registers);
    int n = snprintf(body, sizeof body, PROLOGUE "v_mul_u32_u24_e32 v1, %u, v0\nglobal_load_%s v[4:%u], v1, s[6:7]\nglobal_load_%s v[8:%u], v1, s[6:7] offset:2048\n"
                     "s_waitcnt vmcnt(0)\nv_accvgpr_write_b32 a0, 1.0\n", 4 * n_registers, words, 3 + n_registers, words, 7 + n_registers);
    for (uint32_t i = 1; i < n_sums; i++)
        n += snprintf(body + n, sizeof body - (size_t)n, "v_accvgpr_write_b32 a%u, 1.0\n", i);
    n += snprintf(body + n, sizeof body - (size_t)n, "%s a[0:%u], v[4:%u], v[8:%u], a[0:%u]\n%s v[32:%u], v[4:%u], v[8:%u], 0\n", name, n_sums - 1,
                  3 + n_registers, 7 + n_registers, n_sums - 1, name, 31 + n_sums, 3 + n_registers, 7 + n_registers);
    /* 16 sums of a lane are too many for `out`: each is stored and checked in turn. */
    for (uint32_t r = 0; r < n_sums; r++) {
        char whole[4096];
        snprintf(whole, sizeof whole, "%sv_accvgpr_read_b32 v8, a%u\nv_mov_b32_e32 v9, v%u\nv_mov_b32_e32 v10, 0\n" EPILOGUE, body, r, 32 + r);
        const sim_report report = run_on(arch, whole, 64, 0);
        if (report.fault != SIM_OK)
            print_message("%s\n", report.text);
        assert_int_equal(report.fault, SIM_OK);
        for (uint32_t lane = 0; lane < 64; lane++) {
            const uint32_t column = lane % m, row = m == 16 ? lane / 16 * 4 + r : r / 4 * 8 + lane / 32 * 4 + r % 4;
            float sum = 0.0f;
            for (uint32_t k = 0; k < n_k; k++)
                sum += (float)(a_at(row, k) * b_at(k, column));
            const uint32_t more = is_integer ? B(1.0f) + (uint32_t)sum : B(sum + 1.0f), alone = is_integer ? (uint32_t)sum : B(sum);
            if (result(lane, 0) != more || result(lane, 1) != alone)
                print_message("%s: lane %u, sum %u\n", name, lane, r);
            assert_int_equal(result(lane, 0), more);
            assert_int_equal(result(lane, 1), alone);
        }
    }
}

/* 16x16x128: lane l of A holds row l % 16, k from 32 (l / 16) on; a block of 32 has a scale. A's are 2^(l / 16) in the second byte, B's 1/2 in the third. */
static void scaled_matrices(void **state)
{
    (void)state;
    memset(input, 0, sizeof input);
    for (uint32_t lane = 0; lane < 64; lane++)
        for (uint32_t i = 0; i < 32; i++) {
            const uint32_t k = lane / 16 * 32 + i;
            input[lane * 8 + i / 4] |= code_of("fp8", 0, a_at(lane % 16, k)) << (i % 4 * 8);
            input[512 + lane * 8 + i / 4] |= code_of("fp8", 0, b_at(k, lane % 16)) << (i % 4 * 8);
        }
    for (uint32_t r = 0; r < 4; r++) {
        char body[2048];
        snprintf(body, sizeof body, PROLOGUE "v_mul_u32_u24_e32 v1, 32, v0\nglobal_load_dwordx4 v[16:19], v1, s[6:7]\nglobal_load_dwordx4 v[20:23], v1, s[6:7] offset:16\n"
                 "global_load_dwordx4 v[24:27], v1, s[6:7] offset:2048\nglobal_load_dwordx4 v[28:31], v1, s[6:7] offset:2064\ns_waitcnt vmcnt(0)\n"
                 "v_lshrrev_b32_e32 v2, 4, v0\nv_add_u32_e32 v2, 0x7f, v2\nv_lshlrev_b32_e32 v2, 8, v2\nv_mov_b32_e32 v3, 0x7e0000\nv_mov_b32_e32 v4, 0x7f7f7f7f\n"
                 "v_mfma_scale_f32_16x16x128_f8f6f4 v[32:35], v[16:23], v[24:31], 0, v2, v3 op_sel:[1,0,0] op_sel_hi:[0,1,0]\n"
                 "v_mfma_scale_f32_16x16x128_f8f6f4 v[36:39], v[16:23], v[24:31], v[32:35], v4, v4 op_sel_hi:[0,0,0]\n"
                 "v_mov_b32_e32 v8, v%u\nv_mov_b32_e32 v9, v%u\nv_mov_b32_e32 v10, 0\n" EPILOGUE, 32 + r, 36 + r);
        const sim_report report = run_on("gfx950", body, 64, 0);
        if (report.fault != SIM_OK)
            print_message("%s\n", report.text);
        assert_int_equal(report.fault, SIM_OK);
        for (uint32_t lane = 0; lane < 64; lane++) {
            float plain = 0.0f, scaled = 0.0f;
            for (uint32_t k = 0; k < 128; k++) {
                const float product = (float)(a_at(lane / 16 * 4 + r, k) * b_at(k, lane % 16));
                plain += product;
                scaled += 0.5f * (float)(1u << k / 32) * product;
            }
            assert_int_equal(result(lane, 0), B(scaled));
            assert_int_equal(result(lane, 1), B(scaled + plain));
        }
    }
}

/* To the nearest, ties to even, into either half; the largest and what lies beyond; subnormals. */
static void fp8_from_f32(void **state)
{
    static const struct { float x; uint32_t ocp, fnuz, bf8_ocp, bf8_fnuz; } cases[] = {
        { 1.0f, 0x38, 0x40, 0x3C, 0x40 },          { 1.0625f, 0x38, 0x40, 0x3C, 0x40 },       { 1.1875f, 0x3A, 0x42, 0x3D, 0x41 },
        { -1.125f, 0xB9, 0xC1, 0xBC, 0xC0 },       { 0.0f, 0x00, 0x00, 0x00, 0x00 },          { 240.0f, 0x77, 0x7F, 0x5C, 0x60 },
        { 448.0f, 0x7E, 0x80, 0x5F, 0x63 },        { 0x1p-9f, 0x01, 0x02, 0x18, 0x1C },       { 0x1.8p-10f, 0x01, 0x02, 0x16, 0x1A },
        { 0x1p-10f, 0x00, 0x01, 0x14, 0x18 },      { 0x1p-17f, 0x00, 0x00, 0x00, 0x01 },      { 57344.0f, 0x7F, 0x80, 0x7B, 0x7F },
        { 1e9f, 0x7F, 0x80, 0x7C, 0x80 },          { NAN, 0x7F, 0x80, 0x7E, 0x80 },           { -0x1p-30f, 0x80, 0x80, 0x80, 0x80 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int is_950 = 0; is_950 < 2; is_950++) {
            char body[512];
            snprintf(body, sizeof body, PROLOGUE "v_mov_b32_e32 v1, 0x%x\nv_mov_b32_e32 v2, 1.0\nv_mov_b32_e32 v8, 0\nv_mov_b32_e32 v9, -1\nv_mov_b32_e32 v10, 0\n"
                     "v_cvt_pk_fp8_f32 v8, v2, v1\nv_cvt_pk_fp8_f32 v8, v1, v2 op_sel:[0,0,1]\nv_cvt_pk_bf8_f32 v9, v1, v2\n" EPILOGUE, B(cases[i].x));
            assert_int_equal(run_on(is_950 ? "gfx950" : "gfx942", body, 64, 0).fault, SIM_OK);
            const uint32_t one = is_950 ? 0x38 : 0x40, code = is_950 ? cases[i].ocp : cases[i].fnuz;
            if (result(0, 0) != (one | code << 8 | code << 16 | one << 24))
                print_message("%g: 0x%08x\n", (double)cases[i].x, result(0, 0));
            assert_int_equal(result(0, 0), one | code << 8 | code << 16 | one << 24);
            assert_int_equal(result(0, 1), (is_950 ? cases[i].bf8_ocp | 0x3C00u : cases[i].bf8_fnuz | 0x4000u) | 0xFFFF0000u);
        }
}

static void matrices(void **state)
{
    static const char *const eights[] = { "fp8", "bf8" };
    (void)state;
    for (int is_950 = 0; is_950 < 2; is_950++) {
        const char *arch = is_950 ? "gfx950" : "gfx942";
        run_matrix(arch, "v_mfma_f32_16x16x16_f16", 16, 16, "f16", "f16");
        run_matrix(arch, "v_mfma_f32_16x16x16_bf16", 16, 16, "bf16", "bf16");
        run_matrix(arch, "v_mfma_i32_16x16x32_i8", 16, 32, "i8", "i8");
        run_matrix(arch, "v_mfma_f32_32x32x8_f16", 32, 8, "f16", "f16");
        run_matrix(arch, "v_mfma_f32_32x32x8_bf16", 32, 8, "bf16", "bf16");
        for (int a = 0; a < 2; a++)
            for (int b = 0; b < 2; b++) {
                char name[64];
                snprintf(name, sizeof name, "v_mfma_f32_16x16x32_%s_%s", eights[a], eights[b]);
                run_matrix(arch, name, 16, 32, eights[a], eights[b]);
                snprintf(name, sizeof name, "v_mfma_f32_32x32x16_%s_%s", eights[a], eights[b]);
                run_matrix(arch, name, 32, 16, eights[a], eights[b]);
            }
    }
    run_matrix("gfx950", "v_mfma_f32_16x16x32_f16", 16, 32, "f16", "f16");
    run_matrix("gfx950", "v_mfma_f32_16x16x32_bf16", 16, 32, "bf16", "bf16");
    run_matrix("gfx950", "v_mfma_f32_32x32x16_f16", 32, 16, "f16", "f16");
    run_matrix("gfx950", "v_mfma_f32_32x32x16_bf16", 32, 16, "bf16", "bf16");
}

static void every_instruction_has_a_case(void **state)
{
    size_t missing = 0;
    (void)state;
    for (size_t i = 0; i < op_count; i++)
        if (!snippet_has_run(i)) {
            print_message("%s has no case\n", op_table[i].name);
            missing++;
        }
    print_message("%zu instructions\n", op_count);
    assert_int_equal(missing, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(global_loads),
        cmocka_unit_test(global_stores),
        cmocka_unit_test(global_atomics),
        cmocka_unit_test(lds),
        cmocka_unit_test(dpp),
        cmocka_unit_test(permutes),
        cmocka_unit_test(branches),
        cmocka_unit_test(divisions),
        cmocka_unit_test(only_on_gfx950),
        cmocka_unit_test(fp8),
        cmocka_unit_test(fp8_from_f32),
        cmocka_unit_test(matrices),
        cmocka_unit_test(scaled_matrices),
        cmocka_unit_test(every_instruction_has_a_case),
    };
    const int failed = test_arith() + test_ops() + test_faults();
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
