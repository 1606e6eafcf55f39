/* machine.h: owns what the simulator's files share: instructions as they are read, and the state of a wave and its group.
 * Registers carry, beside their values, which of their lanes (of a scalar: bits) anyone has defined, and which counter still owes them. */
#ifndef AMDSIM_MACHINE_H
#define AMDSIM_MACHINE_H

#include <setjmp.h>

#include "amdsim/sim.h"

enum { LANES = 64, VGPRS = 512, AGPR0 = 256, SGPRS = 128, WAVES_MAX = 16, QUEUE_MAX = 256 };
enum { SGPR_VCC = 106, SGPR_M0 = 124, SGPR_EXEC = 126 };   /* the numbers of the encoding */
#define ALL_LANES UINT64_MAX

/* ---- instructions -------------------------------------------------------------------------------------------------------------- */

typedef enum operand_kind { OPERAND_NONE, OPERAND_VGPR, OPERAND_SGPR, OPERAND_NUMBER, OPERAND_OFF, OPERAND_LABEL } operand_kind;

typedef struct operand {
    uint8_t kind, count;           /* count: of registers */
    uint8_t is_negative, is_absolute, is_extended, is_float;
    uint16_t reg;                  /* accumulation registers follow the others at AGPR0 */
    int64_t integer;               /* of a number without a point */
    double real;                   /* of one with it */
    uint64_t bits;                 /* of a number, in the type that the instruction takes it as */
} operand;

enum { SELECT_BYTE_0, SELECT_WORD_0 = 4, SELECT_DWORD = 6 };
enum { UNUSED_PAD, UNUSED_SEXT, UNUSED_PRESERVE };
typedef enum dpp_kind { DPP_NONE, DPP_QUAD_PERM, DPP_ROW_SHL, DPP_ROW_SHR, DPP_ROW_ROR, DPP_WAVE_SHL, DPP_WAVE_SHR, DPP_WAVE_ROL, DPP_WAVE_ROR,
                        DPP_ROW_MIRROR, DPP_ROW_HALF_MIRROR, DPP_ROW_BCAST, DPP_ROW_NEWBCAST } dpp_kind;

enum { SOURCES_MAX = 5, TARGETS_MAX = 2, OPERANDS_MAX = 6 };

typedef struct instruction {
    const struct op *op;
    int line;
    uint8_t n_operands, n_targets, n_sources;
    operand operands[OPERANDS_MAX];                  /* as written */
    operand targets[TARGETS_MAX], sources[SOURCES_MAX];   /* as the op's signature sorts them, implied ones included */
    char target_types[TARGETS_MAX], source_types[SOURCES_MAX];
    int32_t branch_to;
    /* modifiers */
    uint8_t op_sel, op_sel_hi, neg_lo, neg_hi, has_op_sel, is_clamped, is_sdwa, dst_sel, dst_unused, src_sel[2], has_src_sel[2];
    uint8_t dpp, dpp_arg[4], row_mask, bank_mask, is_bound_zero, returns, bitop3, reads_scc, writes_scc, is_planted;
    int8_t omod;
    int32_t offset, offset0, offset1;
    int16_t vmcnt, lgkmcnt, expcnt;                  /* of s_waitcnt; -1: not waited for */
} instruction;

struct wave;
struct scalar_io;
typedef void instruction_run(struct wave *wave, const instruction *in);

/* What a vector instruction computes for 64 lanes, whatever the mask says. k: a bit a lane that comes in; m: one that goes out. */
typedef struct lanes32 { const uint32_t *a, *b, *c; uint32_t *r; uint64_t k, m; const instruction *in; } lanes32;
typedef struct lanes64 { const uint64_t *a, *b, *c; uint64_t *r; uint64_t k, m; const instruction *in; } lanes64;

/* One row of a table. Signature: types of what is written, '=', types of what is read, in the order of the text.
 *   w 32 bits   f f32   h f16   q 64 bits   Q the same, its lower half made of lower halves   i 64 bits signed   d f64   m a bit a lane   V vcc, not written   + the target once more
 *   p two f32   k two 16-bit parts (floats)   t two 16-bit parts (integers)   n, u 16-bit number, signed or not   x anything
 *   o offset   L label   A written only where sc0 asks for the old value   S, s scc is read, written (among the sources)
 * first, second: what an instruction's run makes of them. */
typedef struct op {
    const char *name, *signature;
    instruction_run *run;
    void (*lanes32)(lanes32 *io);
    void (*lanes64)(lanes64 *io);
    void (*scalar)(struct scalar_io *io);
    int first, second;
} op;

/* ops.c: by the mnemonic without _e32, _e64, _sdwa and _dpp. NULL when unknown. */
const op *op_find(const char *name, size_t length);
extern const op op_table[];
extern const size_t op_count;

/* ---- programs -------------------------------------------------------------------------------------------------------------------- */

typedef struct label { char name[24]; int32_t at; } label;

struct sim_kernel {
    const struct sim_program *program;
    char name[96], error[512];
    instruction *code;
    unsigned char *reached;   /* the caller's, or NULL */
    size_t n_code, code_room;
    label *labels;
    size_t n_labels, labels_room;
    uint32_t lds_bytes, kernarg_bytes, user_sgprs, n_vgprs, n_sgprs, accum_offset;
    uint8_t has_dispatch_ptr, has_queue_ptr, has_kernarg_ptr, has_dispatch_id, has_private_size, has_block_x, has_block_y, has_block_z, is_described;
};

struct sim_program {
    const char *name;
    char *own_name, *text;
    const char **lines;      /* for reports: line n at n - 1, not terminated */
    size_t n_lines;
    char arch[16];
    struct sim_kernel **kernels;
    size_t n_kernels, kernels_room;
};

/* operand.c: the operands and modifiers of a line, without its mnemonic; 0, or -1 with the reason in `why`. Branches are bound later. */
int instruction_read(instruction *in, const char *text, size_t length, label *target, char *why, size_t why_bytes);
/* Sorts operands by the op's signature. */
int instruction_bind(instruction *in, char *why, size_t why_bytes);
uint64_t number_bits(const operand *o, char type);

/* ---- state ----------------------------------------------------------------------------------------------------------------------- */

typedef struct allocation { uint64_t at; size_t size_bytes; unsigned char *bytes, *known; const char *name; uint8_t is_read_only, is_known; } allocation;

struct sim_memory { allocation *all; size_t n, room, last; };

/* The allocation of a range, or NULL. */
allocation *memory_find(struct sim_memory *memory, uint64_t at, size_t size_bytes);
void memory_describe(const struct sim_memory *memory, uint64_t at, char *text, size_t size);

/* A word of LDS: who wrote and read it since the last barrier. */
typedef struct lds_word { uint32_t write_epoch, read_epoch; uint16_t readers, writers; uint8_t known, is_atomic; } lds_word;

typedef struct group {
    struct sim_memory *memory;
    const struct sim_kernel *kernel;
    struct sim_report *report;
    jmp_buf out;
    uint64_t block, instructions;
    unsigned char *lds;
    lds_word *lds_words;
    uint32_t lds_bytes, epoch;
    int is_fnuz;                    /* fp8 of gfx942 */
} group;

typedef enum counter { COUNTER_NONE, COUNTER_VM, COUNTER_LDS, COUNTER_SMEM } counter;

/* A memory operation that s_waitcnt has not seen done. Registers: of vectors, or SGPRs. */
typedef struct owed { uint8_t counter, count, is_scalar, writes_lds; uint16_t reg; int line; } owed;

typedef struct wave {
    group *group;
    uint32_t number;
    int32_t pc;
    int is_done, is_at_barrier;
    uint64_t all;                   /* lanes that exist */
    uint32_t v[VGPRS][LANES];
    uint64_t v_known[VGPRS];
    int v_origin[VGPRS];            /* line where something undefined came in */
    uint8_t v_owed[VGPRS], v_owed_by[VGPRS];   /* how many, and by which counter */
    uint32_t s[SGPRS], s_known[SGPRS];
    int s_origin[SGPRS];
    uint8_t s_owed[SGPRS];
    uint8_t scc, scc_known;
    int scc_origin;
    owed queue[QUEUE_MAX];
    uint32_t n_queue;
} wave;

/* wave.c: ends the launch. lane: -1 where none is to blame. */
_Noreturn void raise_fault(wave *w, const instruction *in, sim_fault fault, int lane, const char *form, ...) __attribute__((format(printf, 5, 6)));
void run_barrier(wave *w, const instruction *in);
void run_endpgm(wave *w, const instruction *in);

/* registers.c. known: which lanes (of scalars: bits) are defined. origin: set to the first line that brought something undefined. */
typedef struct taint { uint64_t known; int origin; } taint;
void read_vector(wave *w, const instruction *in, uint32_t reg, const uint32_t **lanes, taint *t);
/* A source as 64 lanes of 32 or 64 bits, modifiers applied; tmp holds them where the register file cannot. */
const uint32_t *read_lanes32(wave *w, const instruction *in, uint32_t source, uint32_t *tmp, taint *t);
const uint64_t *read_lanes64(wave *w, const instruction *in, uint32_t source, uint64_t *tmp, taint *low, taint *high);
uint64_t read_scalar(wave *w, const instruction *in, const operand *o, uint32_t words, taint *t);
uint64_t read_mask(wave *w, const instruction *in, const operand *o, taint *t);
void write_vector(wave *w, const instruction *in, uint32_t reg, const uint32_t *lanes, uint64_t exec, taint t);
void write_scalar(wave *w, const instruction *in, uint32_t reg, uint32_t words, uint64_t value, taint t);
/* Ends the launch where lanes, or bits of a scalar, that matter are undefined. */
void require_known(wave *w, const instruction *in, uint64_t lanes, taint t, const char *what);
void require_scalar(wave *w, const instruction *in, taint t, const char *what);
uint64_t exec_of(wave *w, const instruction *in);

/* counters.c */
void owe(wave *w, const instruction *in, counter c, int is_scalar, uint32_t reg, uint32_t count, int writes_lds);
void run_waitcnt(wave *w, const instruction *in);
void require_lds_written(wave *w, const instruction *in);
_Noreturn void raise_owed(wave *w, const instruction *in, int is_scalar, uint32_t reg, const char *verb);

/* The runs of the tables' rows. */
instruction_run run_lanes32, run_lanes64, run_packed_f32, run_packed_16, run_pk_mov, run_readlane, run_readfirstlane, run_writelane, run_mfma, run_cvt_pk_f32_fp8, run_cvt_pk_fp8_f32,
    run_scalar, run_saveexec, run_branch, run_nop, run_s_load, run_global_load, run_global_store, run_global_atomic, run_lds_read, run_lds_write,
    run_lds_atomic, run_bpermute, run_permute;

void dpp_apply(const instruction *in, const uint32_t *from, uint32_t *to, uint64_t exec, uint64_t *valid, taint *t);

#endif
