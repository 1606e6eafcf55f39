/* packed.c: owns instructions that do two things at once: v_pk_* and the conversions of pairs of fp8. */
#include "amdsim/arith.h"
#include "amdsim/machine.h"

/* Which half of source i the lower or upper result takes. */
static uint32_t half_of(const instruction *in, uint32_t i, int is_high)
{
    return (uint32_t)((is_high ? in->op_sel_hi : in->op_sel) >> i) & 1;
}

static uint32_t sign_of(const instruction *in, uint32_t i, int is_high, uint32_t sign)
{
    return ((is_high ? in->neg_hi : in->neg_lo) >> i & 1) != 0 ? sign : 0;
}

/* A register of a pair, a scalar or a number as lanes. */
static const uint32_t *word_of(wave *w, const instruction *in, uint32_t i, uint32_t half, uint32_t *tmp, taint *t)
{
    const operand *o = &in->sources[i];
    const uint32_t *lanes = tmp;
    if (o->kind == OPERAND_VGPR) {
        read_vector(w, in, o->reg + half, &lanes, t);
        return lanes;
    }
    operand one = *o;
    taint each = { ALL_LANES, 0 };
    one.reg = (uint16_t)(o->reg + (o->count > 1 ? half : 0));
    const uint32_t value = (uint32_t)read_scalar(w, in, &one, 1, &each);
    if (each.known != ALL_LANES) {
        t->known = 0;
        t->origin = t->origin != 0 ? t->origin : each.origin;
    }
    for (int lane = 0; lane < LANES; lane++)
        tmp[lane] = value;
    return lanes;
}

void run_packed_f32(wave *w, const instruction *in)
{
    uint32_t r[2][LANES], tmp[3][LANES];
    const uint64_t exec = exec_of(w, in);
    const int is_sum = in->op->first == '+', is_fma = in->op->first == 'f';
    taint t[2] = { { ALL_LANES, 0 }, { ALL_LANES, 0 } };
    for (int high = 0; high < 2; high++) {
        const uint32_t *s[3] = { tmp[0], tmp[1], tmp[2] };
        uint32_t sign[3] = { 0, 0, 0 };
        for (uint32_t i = 0; i < in->n_sources; i++) {
            s[i] = word_of(w, in, i, half_of(in, i, high), tmp[i], &t[high]);
            sign[i] = sign_of(in, i, high, 0x80000000);
        }
        for (int lane = 0; !is_fma && lane < LANES; lane++) {
            const uint32_t a = s[0][lane] ^ sign[0], b = s[1][lane] ^ sign[1];
            r[high][lane] = is_sum ? settle2(a, b, F(a) + F(b)) : settle2(a, b, F(a) * F(b));
        }
        for (int lane = 0; is_fma && lane < LANES; lane++) {
            const uint32_t a = s[0][lane] ^ sign[0], b = s[1][lane] ^ sign[1], c = s[2][lane] ^ sign[2];
            r[high][lane] = settle3(a, b, c, fmaf(F(a), F(b), F(c)));
        }
    }
    for (uint32_t high = 0; high < 2; high++)
        write_vector(w, in, in->targets[0].reg + high, r[high], exec, t[high]);
}

/* The lower result from source 0, the upper one from source 1. */
void run_pk_mov(wave *w, const instruction *in)
{
    uint32_t tmp[2][LANES], r[2][LANES];
    const uint64_t exec = exec_of(w, in);
    taint t[2] = { { ALL_LANES, 0 }, { ALL_LANES, 0 } };
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t *from = word_of(w, in, i, in->op_sel >> i & 1, tmp[i], &t[i]);
        for (int lane = 0; lane < LANES; lane++)
            r[i][lane] = from[lane];
    }
    for (uint32_t i = 0; i < 2; i++)
        write_vector(w, in, in->targets[0].reg + i, r[i], exec, t[i]);
}

/* Sums and products of halves are exact in double, so that they round once. */
static uint32_t f16_result(uint32_t a, uint32_t b, uint32_t c, int operation)
{
    const uint32_t x = f32_of_f16(a), y = f32_of_f16(b), z = f32_of_f16(c);
    const double p = operation == '+' ? (double)F(x) + (double)F(y) : (double)F(x) * (double)F(y), r = operation == 'f' ? p + (double)F(z) : p;
    if (isnan(r))
        return f16_of_f32(operation == 'f' ? settle3(x, y, z, NAN) : settle2(x, y, NAN));
    return f16_bits(r, signbit(r) ? 0x8000 : 0, 0);
}

void run_packed_16(wave *w, const instruction *in)
{
    uint32_t r[LANES], tmp[3][LANES];
    const uint32_t *s[3] = { tmp[0], tmp[0], tmp[0] };
    taint t = { ALL_LANES, 0 };
    for (uint32_t i = 0; i < in->n_sources; i++)
        s[i] = word_of(w, in, i, 0, tmp[i], &t);
    for (int lane = 0; lane < LANES; lane++) {
        r[lane] = 0;
        for (int high = 0; high < 2; high++) {
            uint32_t v[3] = { 0, 0, 0 };
            for (uint32_t i = 0; i < in->n_sources; i++)
                v[i] = (s[i][lane] >> (16 * half_of(in, i, high)) & 0xFFFF) ^ sign_of(in, i, high, 0x8000);
            r[lane] |= (in->op->second ? f16_result(v[0], v[1], v[2], in->op->first) : v[1] << (v[0] & 15) & 0xFFFF) << (16 * high);
        }
    }
    write_vector(w, in, in->targets[0].reg, r, exec_of(w, in), t);
}

/* Into one half of the target, whose other half stays. */
void run_cvt_pk_fp8_f32(wave *w, const instruction *in)
{
    uint32_t tmp[3][LANES], r[LANES];
    const uint32_t *s[3];
    const uint32_t high = in->op_sel >> 2 & 1;
    taint t = { ALL_LANES, 0 }, of_old = { ALL_LANES, 0 };
    for (uint32_t i = 0; i < 2; i++)
        s[i] = read_lanes32(w, in, i, tmp[i], &t);
    s[2] = read_lanes32(w, in, 2, tmp[2], high ? &t : &of_old);   /* a lower half comes first: what lies above it is not looked at before it is written too */
    for (int lane = 0; lane < LANES; lane++) {
        const uint32_t two = fp8_of_f32(s[0][lane], in->op->first, w->group->is_fnuz) | fp8_of_f32(s[1][lane], in->op->first, w->group->is_fnuz) << 8;
        r[lane] = high ? (s[2][lane] & 0xFFFF) | two << 16 : (s[2][lane] & 0xFFFF0000) | two;
    }
    write_vector(w, in, in->targets[0].reg, r, exec_of(w, in), t);
}

void run_cvt_pk_f32_fp8(wave *w, const instruction *in)
{
    uint32_t tmp[LANES], r[LANES];
    const uint64_t exec = exec_of(w, in);
    taint t = { ALL_LANES, 0 };
    const uint32_t *lanes = read_lanes32(w, in, 0, tmp, &t);
    if (lanes != tmp)
        for (int lane = 0; lane < LANES; lane++)
            tmp[lane] = lanes[lane];
    const uint32_t half = in->op_sel & 1;   /* of the 64-bit form; SDWA selects its own */
    for (uint32_t i = 0; i < (uint32_t)in->op->first; i++) {
        for (int lane = 0; lane < LANES; lane++)
            r[lane] = f32_of_fp8(tmp[lane] >> (16 * half + 8 * i), in->op->second, w->group->is_fnuz);
        write_vector(w, in, in->targets[0].reg + i, r, exec, t);
    }
}
