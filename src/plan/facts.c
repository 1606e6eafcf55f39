/* facts.c: see facts.h. The list itself is fact.def. */
#include "plan/facts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const fact_names[OCT__FACT_COUNT] = {
#define FACT(id, name) [OCT__FACT_##id] = name,
#include "plan/fact.def"
#undef FACT
};

const char *oct__fact_name(oct__fact fact)
{
    return (unsigned)fact < OCT__FACT_COUNT ? fact_names[fact] : "?";
}

oct__fact oct__fact_of_name(const char *name)
{
    unsigned fact = 0;
    while (fact < OCT__FACT_COUNT && strcmp(name, fact_names[fact]) != 0) {
        fact++;
    }
    return (oct__fact)fact;
}

bool oct__fact_is_machine(oct__fact fact)
{
    return strncmp(oct__fact_name(fact), "prob.", 5) != 0;
}

bool oct__fact_is_device(oct__fact fact)
{
    return strncmp(oct__fact_name(fact), "dev.", 4) == 0;
}

const char *oct__device_name(oct__device device)
{
    return device == OCT__DEVICE_CUDA ? "cuda" : device == OCT__DEVICE_HIP ? "hip" : "cpu";
}

void oct__fact_value_text(oct__fact fact, uint64_t value, char *text, size_t size)
{
    const bool is_dtype = fact == OCT__FACT_K_DTYPE || fact == OCT__FACT_V_DTYPE || fact == OCT__FACT_Q_DTYPE || fact == OCT__FACT_SRC_DTYPE;
    if (is_dtype && value <= UINT32_MAX && oct_dtype_name((uint32_t)value) != NULL) {
        snprintf(text, size, "%s", oct_dtype_name((uint32_t)value));
    } else {
        snprintf(text, size, "%" PRIu64, value);
    }
}

static void add_kv(oct__facts *facts, const oct_kv_spec *kv)
{
    facts->v[OCT__FACT_HEAD_DIM_K] = kv->dim_k;
    facts->v[OCT__FACT_HEAD_DIM_V] = kv->dim_v;
    facts->v[OCT__FACT_PAGE_SIZE] = kv->page_size;
    facts->v[OCT__FACT_LAYOUT] = kv->layout;
    facts->v[OCT__FACT_K_DTYPE] = kv->k.dtype;
    facts->v[OCT__FACT_V_DTYPE] = kv->v.dtype;
    facts->v[OCT__FACT_K_ROTATED] = kv->k.rotated;
    facts->v[OCT__FACT_K_SCALE_MODE] = kv->k.scale_mode;
    facts->v[OCT__FACT_V_SCALE_MODE] = kv->v.scale_mode;
}

oct__facts oct__facts_of_attn(const oct__facts *machine, const oct_attn_spec *spec)
{
    oct__facts facts = *machine;
    add_kv(&facts, &spec->kv);
    facts.v[OCT__FACT_GQA_GROUP] = spec->heads_q / spec->kv.heads;
    facts.v[OCT__FACT_Q_DTYPE] = spec->q_dtype;
    facts.v[OCT__FACT_WINDOW] = spec->window_tokens;
    facts.v[OCT__FACT_PRODUCTS] = spec->products;
    return facts;
}

oct__facts oct__facts_of_write(const oct__facts *machine, const oct_kv_spec *spec, uint32_t src_dtype)
{
    oct__facts facts = *machine;
    add_kv(&facts, spec);
    facts.v[OCT__FACT_SRC_DTYPE] = src_dtype;
    return facts;
}
