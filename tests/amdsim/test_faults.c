/* test_faults.c: the faults that the simulator is there to find, planted one by one: what it calls them, and that it names place and instruction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "amdsim/snippet.h"

enum { OUT_WORDS = 768, IN_WORDS = 1024 };

#define ZEROS "v_mov_b32_e32 v8, 0\nv_mov_b32_e32 v9, 0\nv_mov_b32_e32 v10, 0\n"

typedef struct planted { sim_fault fault; const char *body, *says; uint32_t threads, lds_bytes; } planted;

#define LOAD PROLOGUE ZEROS "v_lshlrev_b32_e32 v1, 2, v0\n"

static const planted plants[] = {
    /* waits */
    { SIM_WAIT, "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_add_u32 s8, s4, 4\ns_endpgm\n", "reads s4, which line 4 still owes: no s_waitcnt lgkmcnt", 64, 0 },
    { SIM_WAIT, "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_waitcnt vmcnt(0)\ns_mov_b32 s7, 0\ns_endpgm\n", "overwrites s7", 64, 0 },
    { SIM_WAIT, "s_load_dwordx4 s[4:7], s[0:1], 0x0\nv_mov_b32_e32 v8, s6\ns_endpgm\n", "reads s6", 64, 0 },
    { SIM_WAIT, "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_load_dwordx2 s[6:7], s[0:1], 0x8\ns_waitcnt lgkmcnt(1)\ns_add_u32 s8, s4, 4\ns_endpgm\n", "reads s4", 64, 0 },   /* out of order */
    { SIM_WAIT, LOAD "global_load_dword v8, v1, s[6:7]\n" EPILOGUE, "reads v8, which line 10 still owes: no s_waitcnt vmcnt in between", 64, 0 },
    { SIM_WAIT, LOAD "global_load_dword v8, v1, s[6:7]\nglobal_load_dword v9, v1, s[6:7]\ns_waitcnt vmcnt(1)\n" EPILOGUE, "reads v9, which line 11", 64, 0 },
    { SIM_WAIT, LOAD "global_load_dword v8, v1, s[6:7]\nv_mov_b32_e32 v8, 0\n" EPILOGUE, "overwrites v8", 64, 0 },
    { SIM_WAIT, LOAD "global_load_dword a8, v1, s[6:7]\ns_waitcnt lgkmcnt(0)\nv_accvgpr_read_b32 v8, a8\n" EPILOGUE, "reads a8", 64, 0 },
    { SIM_WAIT, LOAD "global_load_dwordx2 v[2:3], v1, s[6:7]\nglobal_load_dword v8, v[2:3], off\n" EPILOGUE, "reads v2", 64, 0 },
    { SIM_WAIT, LOAD "ds_write_b32 v1, v0\nds_read_b32 v8, v1\n" EPILOGUE, "reads v8, which line 11 still owes: no s_waitcnt lgkmcnt", 64, 256 },
    { SIM_WAIT, LOAD "ds_write_b32 v1, v0\nds_read_b32 v8, v1\nds_read_b32 v9, v1\ns_waitcnt lgkmcnt(1)\nv_add_u32_e32 v8, v8, v9\n" EPILOGUE, "reads v9", 64, 256 },
    { SIM_WAIT, LOAD "ds_bpermute_b32 v8, v1, v0\nv_add_u32_e32 v8, 1, v8\n" EPILOGUE, "reads v8", 64, 0 },
    { SIM_WAIT, LOAD "global_load_dword v8, v1, s[6:7]\nds_bpermute_b32 v8, v1, v0\ns_waitcnt vmcnt(0) lgkmcnt(0)\n" EPILOGUE, "overwrites v8", 64, 0 },
    { SIM_WAIT, LOAD "v_mov_b32_e32 v2, 0\nglobal_store_dword v2, v2, s[4:5]\nglobal_atomic_add v8, v2, v0, s[4:5] sc0\nv_add_u32_e32 v8, 1, v8\n" EPILOGUE, "reads v8", 64, 0 },
    { SIM_WAIT, LOAD "ds_write_b32 v1, v0\ns_barrier\n" EPILOGUE, "no s_waitcnt lgkmcnt since line 10", 128, 512 },
    { SIM_WAIT, LOAD "global_load_dwordx4 v[20:23], v1, s[6:7]\nv_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[22:23], 0\n" EPILOGUE, "reads v20", 64, 0 },
    /* bounds */
    { SIM_GLOBAL_BOUNDS, LOAD "global_load_dword v8, v1, s[6:7] offset:4092\ns_waitcnt vmcnt(0)\n" EPILOGUE, "lane 1: reads 4 bytes at 0 bytes past the end of 'in'", 64, 0 },
    { SIM_GLOBAL_BOUNDS, LOAD "global_load_dword v8, v1, s[6:7] offset:-4\ns_waitcnt vmcnt(0)\n" EPILOGUE, "lane 0: reads 4 bytes at 4 bytes before 'in'", 64, 0 },
    { SIM_GLOBAL_BOUNDS, LOAD "global_load_dwordx4 v[20:23], v1, s[6:7] offset:4084\ns_endpgm\n", "lane 0: reads 16 bytes at byte 4084 of the 4096 of 'in'", 64, 0 },
    { SIM_GLOBAL_BOUNDS, LOAD "global_store_dword v1, v8, s[4:5] offset:3072\ns_endpgm\n", "writes 4 bytes", 64, 0 },
    { SIM_GLOBAL_BOUNDS, "s_load_dword s4, s[0:1], 0x10\ns_endpgm\n", "past the end of 'kernel arguments'", 64, 0 },
    { SIM_READ_ONLY, LOAD "global_store_dword v1, v8, s[6:7]\ns_endpgm\n", "read-only", 64, 0 },
    { SIM_READ_ONLY, LOAD "global_atomic_umax v1, v8, s[6:7]\ns_endpgm\n", "read-only", 64, 0 },
    { SIM_LDS_BOUNDS, LOAD "ds_write_b32 v1, v0\ns_endpgm\n", "lane 63: writes 4 bytes at 252 of the group's 252 bytes", 64, 252 },
    { SIM_LDS_BOUNDS, LOAD "ds_read_b128 v[20:23], v8 offset:48\ns_endpgm\n", "reads 16 bytes at 48 of the group's 56", 64, 56 },
    { SIM_LDS_BOUNDS, LOAD "ds_read2st64_b32 v[20:21], v8 offset1:1\ns_endpgm\n", "at 256 of the group's 256", 64, 256 },
    { SIM_MISALIGNED, LOAD "ds_read_b64 v[20:21], v8 offset:4\ns_endpgm\n", "which is not a multiple of 8", 64, 64 },
    { SIM_MISALIGNED, "s_load_dword s4, s[0:1], 0x2\ns_endpgm\n", "reads 4 bytes", 64, 0 },
    { SIM_MISALIGNED, LOAD "global_atomic_umax v8, v8, s[4:5] offset:2\ns_endpgm\n", "adds to", 64, 0 },
    /* what nobody wrote */
    { SIM_UNDEFINED, LOAD "v_add_u32_e32 v2, v40, v0\nv_lshlrev_b32_e32 v8, 1, v2\n" EPILOGUE, "a stored value comes from something that nobody wrote, first read in line 10", 64, 0 },
    { SIM_UNDEFINED, LOAD "v_add_u32_e32 v8, s40, v0\n" EPILOGUE, "first read in line 10", 64, 0 },
    { SIM_UNDEFINED, LOAD "v_cmp_eq_u32_e32 vcc, 0, v40\ns_cbranch_vccz .Lx\nv_mov_b32_e32 v8, 0\n.Lx:\n" EPILOGUE, "the mask of a branch", 64, 0 },
    { SIM_UNDEFINED, LOAD "v_cmp_eq_u32_e32 vcc, 0, v40\ns_and_saveexec_b64 s[8:9], vcc\n" EPILOGUE, "the lane mask", 64, 0 },
    { SIM_UNDEFINED, LOAD "s_cmp_eq_u32 s40, 0\ns_cbranch_scc1 .Lx\nv_mov_b32_e32 v8, 0\n.Lx:\n" EPILOGUE, "scc comes from", 64, 0 },
    { SIM_UNDEFINED, "s_cbranch_scc1 .Lx\n.Lx:\ns_endpgm\n", "scc comes from", 64, 0 },
    { SIM_UNDEFINED, LOAD "global_load_dword v8, v40, s[6:7]\ns_endpgm\n", "an address", 64, 0 },
    { SIM_UNDEFINED, LOAD "ds_read_b32 v8, v1\ns_waitcnt lgkmcnt(0)\n" EPILOGUE, "first read in line 10", 64, 256 },
    { SIM_UNDEFINED, LOAD "global_load_dword v8, v1, s[4:5]\ns_waitcnt vmcnt(0)\n" EPILOGUE, "first read in line 10", 64, 0 },
    { SIM_UNDEFINED, LOAD "global_atomic_umax v1, v8, s[4:5]\ns_endpgm\n", "an atomic on bytes that nobody wrote", 64, 0 },
    { SIM_UNDEFINED, LOAD "v_mov_b32_e32 v20, 0\nv_mov_b32_e32 v21, 0\nv_mfma_f32_16x16x16_f16 v[24:27], v[20:21], v[40:41], 0\nv_mov_b32_e32 v8, v24\n" EPILOGUE, "a stored value", 64, 0 },
    { SIM_UNDEFINED, LOAD "s_mov_b64 s[8:9], exec\ns_mov_b64 exec, 1\nv_mov_b32_e32 v20, 0\ns_mov_b64 exec, s[8:9]\nv_mov_b32_e32 v8, v20\n" EPILOGUE, "lane 1", 64, 0 },
    { SIM_UNDEFINED, LOAD "s_mov_b64 exec, -1\ns_endpgm\n", "lanes that do not exist are enabled", 40, 0 },
    /* barriers */
    { SIM_BARRIER, LOAD "s_mov_b64 exec, 1\ns_barrier\ns_endpgm\n", "lanes are masked off", 128, 0 },
    { SIM_BARRIER, LOAD "v_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc1 .Lx\ns_barrier\n.Lx:\ns_endpgm\n", "1 waves of 2 have ended", 128, 0 },
    { SIM_BARRIER, LOAD "v_readfirstlane_b32 s8, v0\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc1 .Lx\ns_barrier\ns_endpgm\n.Lx:\ns_barrier\ns_endpgm\n", "wave 0 waits in line 16", 128, 0 },
    { SIM_RACE, LOAD "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\nv_and_b32_e32 v1, 0xff, v1\nds_read_b32 v8, v1\ns_waitcnt lgkmcnt(0)\n" EPILOGUE, "another wave wrote", 128, 512 },
    { SIM_RACE, LOAD "v_mov_b32_e32 v2, 0\nds_write_b32 v2, v0\ns_endpgm\n", "writes byte 0 of LDS, which another wave wrote", 128, 512 },
    { SIM_RACE, LOAD "ds_write_b32 v1, v0\ns_waitcnt lgkmcnt(0)\ns_barrier\nv_or_b32_e32 v2, 0x100, v1\nds_read_b32 v8, v2\ns_waitcnt lgkmcnt(0)\nds_write_b32 v1, v0\ns_endpgm\n",
      "which another wave reads", 128, 512 },
    /* what is not known */
    { SIM_UNKNOWN, "v_dance_b32 v1, v0\ns_endpgm\n", "snippet.s:4: unknown instruction: v_dance_b32 v1, v0", 64, 0 },
    { SIM_UNKNOWN, "v_add_u32_e32 v1, v0\ns_endpgm\n", "operand 3 is not what v_add_u32 reads", 64, 0 },
    { SIM_UNKNOWN, "v_add_u32_e32 v1, v0, v0, v0\ns_endpgm\n", "operands too many", 64, 0 },
    { SIM_UNKNOWN, "v_add_f64 v[2:3], v4, v[6:7]\ns_endpgm\n", "operand 2 is not what v_add_f64 reads", 64, 0 },
    { SIM_UNKNOWN, "v_add_u32_e32 v1, v0, v0 twice\ns_endpgm\n", "unknown modifier 'twice'", 64, 0 },
    { SIM_UNKNOWN, "v_mfma_f32_16x16x16_f16 v[4:7], v[8:9], v[8:9], v[4:7] cbsz:1\ns_endpgm\n", "unknown modifier 'cbsz:1'", 64, 0 },
    { SIM_UNKNOWN, "s_branch .Lnowhere\ns_endpgm\n", "no such label", 64, 0 },
    { SIM_UNKNOWN, "v_mov_b32_e32 v1, ttmp3\ns_endpgm\n", "unknown operand 'ttmp3'", 64, 0 },
    { SIM_UNKNOWN, "v_mov_b32_e32 v1, v0\n", "without s_endpgm", 64, 0 },
    { SIM_BAD_LAUNCH, "s_endpgm\n", "more LDS than the chip has", 64, 163844 },
    { SIM_BAD_LAUNCH, "s_endpgm\n", "more than 1024 lanes", 1025, 0 },
};

static void planted_faults(void **state)
{
    static uint32_t out[OUT_WORDS], input[IN_WORDS];
    (void)state;
    for (size_t i = 0; i < sizeof plants / sizeof plants[0]; i++) {
        const planted *p = &plants[i];
        const snippet s = { "gfx950", p->body, p->threads, p->lds_bytes, 1, input, IN_WORDS, out, OUT_WORDS };
        sim_report report;
        snippet_run(&s, &report);
        if (report.fault != p->fault || strstr(report.text, p->says) == NULL)
            print_message("%s\nfound: %s (%s), expected %s: %s\n", p->body, sim_fault_name(report.fault), report.text, sim_fault_name(p->fault), p->says);
        assert_int_equal(report.fault, p->fault);
        assert_non_null(strstr(report.text, p->says));
        assert_non_null(strstr(report.text, "snippet"));   /* the kernel */
    }
    print_message("%zu planted faults found\n", sizeof plants / sizeof plants[0]);
}

int test_faults(void);
int test_faults(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(planted_faults) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
