/* mfma.c: owns the matrix units: D (M x N, f32, or i32 of i8) = A (M x K) B (K x N) + C over the wave's 64 lanes, whatever the mask says.
 * Layouts, from the documents of CDNA3 and CDNA4, with n = M K / 64 elements of A and B a lane and g = 64 / M groups of M lanes:
 *   A: lane l holds row l % M, columns n (l / M) onwards; B: column l % M, rows n (l / M) onwards; neighbours in a register, low bits first
 *   D, C: lane l holds column l % M; register r is row 4 g (r / 4) + 4 (l / M) + r % 4
 *   Scaled: a lane's 32 elements are one block, and their scale is a byte of the lane's scale register, which op_sel (its low bit) and op_sel_hi choose
 * Products are exact; sums are taken in the order of k and rounded to f32 each time, which no document promises. */
#include <string.h>

#include "amdsim/arith.h"
#include "amdsim/machine.h"

enum { K_MAX = 128 };
typedef enum element { ELEMENT_F16, ELEMENT_BF16, ELEMENT_FP8, ELEMENT_BF8, ELEMENT_I8 } element;

static element element_of(const char *name, int of_b)
{
    const char *last = strrchr(name, '_') + 1;
    if (strcmp(last, "f16") == 0)
        return ELEMENT_F16;
    if (strcmp(last, "bf16") == 0)
        return ELEMENT_BF16;
    if (strcmp(last, "i8") == 0)
        return ELEMENT_I8;
    if (strcmp(last, "f8f6f4") == 0)
        return ELEMENT_FP8;
    return strncmp(of_b ? last : last - 4, "fp8", 3) == 0 ? ELEMENT_FP8 : ELEMENT_BF8;
}

static float value_of(uint32_t word, uint32_t at, element e, int is_fnuz)
{
    switch (e) {
    case ELEMENT_F16:
        return F(f32_of_f16(word >> (16 * at) & 0xFFFF));
    case ELEMENT_BF16:
        return F(word >> (16 * at) << 16);
    case ELEMENT_I8:
        return (float)(int8_t)(word >> (8 * at));
    default:
        return F(f32_of_fp8(word >> (8 * at), e == ELEMENT_BF8, is_fnuz));
    }
}

/* A row of A or a column of B each, and which of them are defined. */
static void read_matrix(wave *w, const instruction *in, uint32_t source, uint32_t m, uint32_t n_k, float (*to)[K_MAX], uint32_t *known, int *origin)
{
    const operand *o = &in->sources[source];
    const element e = element_of(in->op->name, (int)source);
    const uint32_t n = m * n_k / LANES, a_word = e >= ELEMENT_FP8 ? 4 : 2;
    if (o->kind != OPERAND_VGPR || o->count * a_word != n)
        raise_fault(w, in, SIM_UNKNOWN, -1, "an operand of another size");
    *known = UINT32_MAX;
    for (uint32_t r = 0; r < o->count; r++) {
        const uint32_t *lanes;
        taint t = { ALL_LANES, 0 };
        read_vector(w, in, o->reg + r, &lanes, &t);
        for (uint32_t l = 0; l < LANES; l++) {
            for (uint32_t i = 0; i < a_word; i++)
                to[l % m][n * (l / m) + r * a_word + i] = value_of(lanes[l], i, e, w->group->is_fnuz);
            if (!(t.known >> l & 1)) {
                *known &= ~(1u << (l % m));
                *origin = t.origin;
            }
        }
    }
    if (in->n_sources == 5) {   /* a lane's elements are one block, its scale one of the four bytes of the lane's scale register */
        uint32_t tmp[LANES];
        taint t = { ALL_LANES, 0 };
        const uint32_t *scales = read_lanes32(w, in, 3 + source, tmp, &t), byte = (in->op_sel >> source & 1) | (in->op_sel_hi >> source & 1) << 1;
        for (uint32_t l = 0; l < LANES; l++) {
            const uint32_t exponent = scales[l] >> (8 * byte) & 0xFF;
            for (uint32_t i = 0; i < n; i++)
                to[l % m][n * (l / m) + i] *= exponent == 0xFF ? NAN : ldexpf(1.0f, (int)exponent - 127);
            if (!(t.known >> l & 1)) {
                *known &= ~(1u << (l % m));
                *origin = t.origin;
            }
        }
    }
}

void run_mfma(wave *w, const instruction *in)
{
    float a[32][K_MAX], b[32][K_MAX];
    const int is_integer = element_of(in->op->name, 0) == ELEMENT_I8;
    const uint32_t m = (uint32_t)in->op->first, n_k = (uint32_t)in->op->second, groups = LANES / m, registers = m * m / LANES;
    const operand *c = &in->sources[2], *d = &in->targets[0];
    uint32_t known_a, known_b, r[16][LANES];
    taint t[16];
    int origin = 0;
    if (d->kind != OPERAND_VGPR || d->count != registers || (c->kind == OPERAND_VGPR && c->count != registers))
        raise_fault(w, in, SIM_UNKNOWN, -1, "an operand of another size");
    read_matrix(w, in, 0, m, n_k, a, &known_a, &origin);
    read_matrix(w, in, 1, m, n_k, b, &known_b, &origin);
    for (uint32_t i = 0; i < registers; i++) {
        const uint32_t *from = NULL;
        t[i] = (taint){ ALL_LANES, origin };
        if (c->kind == OPERAND_VGPR)
            read_vector(w, in, c->reg + i, &from, &t[i]);
        for (uint32_t l = 0; l < LANES; l++) {
            const uint32_t row = 4 * groups * (i / 4) + 4 * (l / m) + i % 4, column = l % m;
            float sum = F(from != NULL ? from[l] : (uint32_t)c->bits);
            for (uint32_t k = 0; k < n_k; k++)
                sum = (float)((double)a[row][k] * (double)b[column][k] + (double)sum);
            r[i][l] = is_nan(B(sum)) ? NAN_32 : B(sum);
            if (is_integer) {
                uint32_t n = from != NULL ? from[l] : (uint32_t)c->bits;
                for (uint32_t k = 0; k < n_k; k++)
                    n += (uint32_t)((int32_t)a[row][k] * (int32_t)b[column][k]);
                r[i][l] = n;
            }
            if (!(known_a >> row & 1) || !(known_b >> column & 1))
                t[i].known &= ~(UINT64_C(1) << l);
        }
    }
    for (uint32_t i = 0; i < registers; i++)
        write_vector(w, in, d->reg + i, r[i], ALL_LANES, t[i]);
}
