/* scalar.c: owns the scalar instructions: those of scalar.def, branches and the changes of the lane mask. */
#include "amdsim/scalar.h"

#include "amdsim/arith.h"

#define LOW UINT64_C(0xFFFFFFFF)
#define WIDTH_b32(x) ((x) & LOW)
#define WIDTH_b64(x) (x)
#define KNOWN_AND(a, known_a, b, known_b) ((known_a & known_b) | (known_a & ~(a)) | (known_b & ~(b)))
#define KNOWN_OR(a, known_a, b, known_b) ((known_a & known_b) | (known_a & (a)) | (known_b & (b)))

#define X(name, signature, ...)                                             \
    void scalar_##name(scalar_io *io);                                      \
    void scalar_##name(scalar_io *io)                                       \
    {                                                                       \
        const uint64_t a = io->a, b = io->b, known_a = io->known_a, known_b = io->known_b; \
        uint64_t r = 0, known = io->known;                                  \
        uint32_t s = io->s;                                                 \
        (void)a, (void)b, (void)known_a, (void)known_b;                     \
        __VA_ARGS__;                                                        \
        io->r = r;                                                          \
        io->s = s;                                                          \
        io->known = known;                                                  \
    }
#include "amdsim/scalar.def"
#undef X

static uint32_t words_of(char type) { return type == 'q' || type == 'i' ? 2 : 1; }

void run_scalar(wave *w, const instruction *in)
{
    taint t[2] = { { ALL_LANES, 0 }, { ALL_LANES, 0 } };
    scalar_io io = { .s = w->scc };
    uint64_t value[2] = { 0, 0 };
    for (uint32_t i = 0; i < in->n_sources; i++)
        value[i] = read_scalar(w, in, &in->sources[i], words_of(in->source_types[i]), &t[i]);
    io.a = value[0];
    io.b = value[1];
    io.known_a = t[0].known;
    io.known_b = t[1].known;
    int origin = t[0].origin != 0 ? t[0].origin : t[1].origin, is_known = io.known_a == ALL_LANES && io.known_b == ALL_LANES;
    if (in->reads_scc && !w->scc_known) {
        is_known = 0;
        origin = origin != 0 ? origin : w->scc_origin;
        if (in->writes_scc == 0)
            io.known_a = io.known_b = 0;   /* s_cselect: either */
    }
    io.known = is_known ? ALL_LANES : 0;
    in->op->scalar(&io);
    if (in->n_targets > 0) {
        const uint32_t words = words_of(in->target_types[0]);
        if (words == 1)
            io.known |= ~LOW;
        write_scalar(w, in, in->targets[0].reg, words, io.r, (taint){ io.known, origin });
        is_known = io.known == ALL_LANES;
    }
    if (in->writes_scc) {
        w->scc = io.s & 1;
        w->scc_known = (uint8_t)is_known;
        w->scc_origin = origin;
    }
}

/* D = exec; exec = source op exec. first: the operation; second: whether exec is complemented. */
void run_saveexec(wave *w, const instruction *in)
{
    taint t = { ALL_LANES, 0 }, all = { ALL_LANES, 0 };
    uint64_t source = read_scalar(w, in, &in->sources[0], 2, &t), exec = exec_of(w, in), r;
    const uint64_t before = exec;
    if (in->op->second)
        exec = ~exec;
    if (in->op->first == '&') {
        r = source & exec;
        t.known = KNOWN_AND(source, t.known, exec, ALL_LANES);
    } else {
        r = source | exec;
        t.known = KNOWN_OR(source, t.known, exec, ALL_LANES);
    }
    write_scalar(w, in, in->targets[0].reg, 2, before, all);
    write_scalar(w, in, SGPR_EXEC, 2, r, t);
    w->scc = r != 0;
    w->scc_known = 1;
}

void run_branch(wave *w, const instruction *in)
{
    const int condition = in->op->first;
    int taken = 1;
    if (condition < 2) {
        if (!w->scc_known)
            raise_fault(w, in, SIM_UNDEFINED, -1, "scc comes from something that nobody wrote, first read in line %d", w->scc_origin);
        taken = w->scc == condition;
    } else if (condition < 6) {
        const operand mask = { .kind = OPERAND_SGPR, .count = 2, .reg = condition < 4 ? SGPR_VCC : SGPR_EXEC };
        taint t = { ALL_LANES, 0 };
        const uint64_t bits = read_scalar(w, in, &mask, 2, &t);
        require_scalar(w, in, t, "the mask of a branch");
        taken = (bits != 0) == (condition % 2);
    }
    if (taken)
        w->pc = in->branch_to;
}

void run_nop(wave *w, const instruction *in)
{
    (void)w;
    (void)in;
}
