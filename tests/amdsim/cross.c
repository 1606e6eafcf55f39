/* cross.c: owns what moves values between lanes: DPP, v_readlane and its kin, ds_bpermute. */
#include <string.h>

#include "amdsim/machine.h"

/* The lane that `lane` reads; -1: none. Rows are of 16 lanes. */
static int dpp_source(const instruction *in, int lane)
{
    const int row = lane & ~15, at = lane & 15, n = in->dpp_arg[0];
    switch ((dpp_kind)in->dpp) {
    case DPP_QUAD_PERM:
        return (lane & ~3) + in->dpp_arg[lane & 3];
    case DPP_ROW_SHL:
        return at + n < 16 ? lane + n : -1;
    case DPP_ROW_SHR:
        return at - n >= 0 ? lane - n : -1;
    case DPP_ROW_ROR:
        return row + ((at - n) & 15);
    case DPP_WAVE_SHL:
        return lane + 1 < LANES ? lane + 1 : -1;
    case DPP_WAVE_SHR:
        return lane - 1;
    case DPP_WAVE_ROL:
        return (lane + 1) % LANES;
    case DPP_WAVE_ROR:
        return (lane + LANES - 1) % LANES;
    case DPP_ROW_MIRROR:
        return row + 15 - at;
    case DPP_ROW_HALF_MIRROR:
        return (lane & ~7) + 7 - (lane & 7);
    case DPP_ROW_BCAST:   /* 15: the last lane of a row for the next row; 31: lane 31 for rows 2 and 3 */
        return n == 15 ? row - 1 : lane >= 32 ? 31 : -1;
    case DPP_ROW_NEWBCAST:
        return row + n;
    default:
        return lane;
    }
}

/* valid: the lanes that are written. A lane whose source does not exist or is masked off is not, or reads 0 with bound_ctrl. */
void dpp_apply(const instruction *in, const uint32_t *from, uint32_t *to, uint64_t exec, uint64_t *valid, taint *t)
{
    uint64_t known = ALL_LANES;
    *valid = 0;
    for (int lane = 0; lane < LANES; lane++) {
        const int source = dpp_source(in, lane);
        to[lane] = 0;
        if (!(in->row_mask >> (lane / 16) & 1) || !(in->bank_mask >> (lane / 4 % 4) & 1))
            continue;
        if (source < 0 || !(exec >> source & 1)) {
            *valid |= (uint64_t)(in->is_bound_zero != 0) << lane;
            continue;
        }
        to[lane] = from[source];
        *valid |= UINT64_C(1) << lane;
        if (!(t->known >> source & 1))
            known &= ~(UINT64_C(1) << lane);
    }
    t->known = known;
}

/* A whole scalar from one bit of a lane mask. */
static taint of_lane(taint t, uint32_t lane)
{
    return (taint){ t.known >> lane & 1 ? ALL_LANES : 0, t.origin };
}

void run_readlane(wave *w, const instruction *in)
{
    const uint32_t *lanes;
    taint t = { ALL_LANES, 0 }, at = { ALL_LANES, 0 };
    const uint32_t lane = (uint32_t)read_scalar(w, in, &in->sources[1], 1, &at) % LANES;
    require_scalar(w, in, at, "the number of a lane");
    read_vector(w, in, in->sources[0].reg, &lanes, &t);
    write_scalar(w, in, in->targets[0].reg, 1, lanes[lane], of_lane(t, lane));
}

void run_readfirstlane(wave *w, const instruction *in)
{
    const uint32_t *lanes;
    const uint64_t exec = exec_of(w, in);
    const uint32_t lane = exec == 0 ? 0 : (uint32_t)__builtin_ctzll(exec);
    taint t = { ALL_LANES, 0 };
    if (in->sources[0].kind != OPERAND_VGPR)
        raise_fault(w, in, SIM_UNKNOWN, -1, "v_readfirstlane of a scalar is not modelled");
    read_vector(w, in, in->sources[0].reg, &lanes, &t);
    write_scalar(w, in, in->targets[0].reg, 1, lanes[lane], of_lane(t, lane));
}

void run_writelane(wave *w, const instruction *in)
{
    taint t = { ALL_LANES, 0 }, at = { ALL_LANES, 0 };
    uint32_t lanes[LANES];
    const uint32_t value = (uint32_t)read_scalar(w, in, &in->sources[0], 1, &t);
    const uint32_t lane = (uint32_t)read_scalar(w, in, &in->sources[1], 1, &at) % LANES;
    require_scalar(w, in, at, "the number of a lane");
    memset(lanes, 0, sizeof lanes);
    lanes[lane] = value;
    t.known = t.known == ALL_LANES ? ALL_LANES : 0;
    write_vector(w, in, in->targets[0].reg, lanes, UINT64_C(1) << lane, t);   /* whatever the mask says */
}

/* Both go through LDS's crossbar, so their results are owed. */
static void permute(wave *w, const instruction *in, int is_forward)
{
    const uint32_t *address, *data;
    const uint64_t exec = exec_of(w, in);
    taint at = { ALL_LANES, 0 }, t = { ALL_LANES, 0 }, result = { ALL_LANES, 0 };
    uint32_t r[LANES];
    memset(r, 0, sizeof r);
    read_vector(w, in, in->sources[0].reg, &address, &at);
    read_vector(w, in, in->sources[1].reg, &data, &t);
    require_known(w, in, exec, at, "the number of a lane");
    result.origin = t.origin;
    for (uint64_t left = exec; left != 0; left &= left - 1) {
        const uint32_t lane = (uint32_t)__builtin_ctzll(left), other = ((address[lane] + (uint32_t)in->offset) / 4) % LANES;
        const uint32_t from = is_forward ? lane : other, to = is_forward ? other : lane;
        if (!(exec >> from & 1))
            continue;   /* 0 */
        r[to] = data[from];
        if (!(t.known >> from & 1))
            result.known &= ~(UINT64_C(1) << to);
    }
    write_vector(w, in, in->targets[0].reg, r, exec, result);
    owe(w, in, COUNTER_LDS, 0, in->targets[0].reg, 1, 0);
}

void run_bpermute(wave *w, const instruction *in) { permute(w, in, 0); }
void run_permute(wave *w, const instruction *in) { permute(w, in, 1); }
