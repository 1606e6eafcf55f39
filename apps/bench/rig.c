/* rig.c: see rig.h. */
#include "apps/bench/rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/error.h"

static const char where[] = "octavo bench";

enum { FILL_TOKENS = 256, LAYERS_MAX = 1 << 14, BLOCKS_MAX = 16,
       GRAPH_RUNS_MIN = 4, GRAPH_RUNS_MAX = 64 /* a graph's own beginning must not count, nor its making take longer than its runs */ };
static const double graph_flops = 2e10;   /* in a graph; what takes so much is long beside its beginning, be it a single run */

struct bench_rig {
    bench_problem problem;
    oct_context *context;
    oct_kv_pool *pool;
    oct_kv_layer *layers;
    bench_device_clock *clock;  /* of a GPU, or NULL */
    void *stream;               /* the clock's */
    uint32_t n_layers, at;      /* of a merge: sets of parts */
    bool is_cold;
    /* What the context's device reads: its own memory, or the host's. */
    int32_t *table, *qo_indptr, *kv_len, *slots;
    int64_t n_pages, pages_of_sequence;
    void *q, *out;              /* of a write: K and V as they come; of a merge: the parts and what they make */
    float *lse, *lse_merged;
    oct_kv_counts counts[2];
    char variant[64];           /* of a write or a merge */
    struct { void *memory; size_t size_bytes; } blocks[BLOCKS_MAX];
    uint32_t n_blocks;
};

/* Memory of the context's device, freed with the rig; NULL when there is none. */
static void *make_room(bench_rig *rig, size_t size_bytes)
{
    void *memory = NULL;
    if (size_bytes == 0 || rig->n_blocks == BLOCKS_MAX || oct_device_alloc(rig->context, size_bytes, &memory) != OCT_OK) {
        return NULL;
    }
    rig->blocks[rig->n_blocks].memory = memory;
    rig->blocks[rig->n_blocks++].size_bytes = size_bytes;
    return memory;
}

static void free_last(bench_rig *rig)
{
    rig->n_blocks--;
    oct_device_free(rig->context, rig->blocks[rig->n_blocks].memory, rig->blocks[rig->n_blocks].size_bytes);
}

/* The same bytes there; takes the host's block, NULL included. */
static void *send(bench_rig *rig, void *host, size_t size_bytes)
{
    void *const memory = host != NULL ? make_room(rig, size_bytes) : NULL;
    const bool sent = memory != NULL && oct_device_copy_in(rig->context, memory, host, size_bytes, rig->stream) == OCT_OK;
    free(host);
    return sent ? memory : NULL;
}

/* splitmix64 */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* About normal: the sum of four uniform numbers, of variance 1. */
static float draw_normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (float)(draw(state) >> 40) * (1.0f / (1 << 24));
    }
    return (sum - 2.0f) * 1.7320508f;
}

static uint16_t to_16_bits(float x, uint32_t dtype)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (dtype == OCT_DTYPE_BF16) {
        return (uint16_t)(bits >> 16);   /* truncated: any value will do */
    }
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    const uint32_t sign = bits >> 16 & 0x8000;
    /* Normal f16 only; what is smaller becomes 0. |x| stays below 4 here. */
    return magnitude < 0x38800000 ? (uint16_t)sign : (uint16_t)(sign | ((magnitude >> 13) - ((127 - 15) << 10)));
}

static void *make_operand(size_t n, uint32_t dtype, uint64_t seed)
{
    const size_t size = oct_dtype_size_bytes(dtype);
    unsigned char *const bytes = n > 0 && n <= SIZE_MAX / size ? malloc(n * size) : NULL;
    if (bytes == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        const float x = draw_normal(&seed);
        const uint16_t half = size == 2 ? to_16_bits(x, dtype) : 0;
        memcpy(bytes + i * size, size == 2 ? (const void *)&half : (const void *)&x, size);
    }
    return bytes;
}

static oct_status out_of_memory(oct_error *error)
{
    return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the operands");
}

static oct_kv_spec spec_of(const bench_problem *p)
{
    return (oct_kv_spec){
        .struct_size = sizeof(oct_kv_spec), .layout = OCT_LAYOUT_NHD, .heads = p->heads_kv, .dim_k = p->dim_k, .dim_v = p->dim_v, .page_size = p->page, .k = p->k, .v = p->v,
    };
}

/* ---- pages -------------------------------------------------------------------------------------------------------------- */

/* Static scales at which a normally distributed value uses the format's range without reaching its end often. */
static oct_status set_scales(bench_rig *rig, oct_error *error)
{
    const oct_kv_format *const formats[2] = { &rig->problem.k, &rig->problem.v };
    const uint32_t dims[2] = { rig->problem.dim_k, rig->problem.dim_v };
    for (uint32_t which = 0; which < 2; which++) {
        const uint32_t mode = formats[which]->scale_mode;
        if (mode == OCT_SCALE_NONE || mode == OCT_SCALE_TOKEN_HEAD) {
            continue;
        }
        const size_t n = mode == OCT_SCALE_CHANNEL ? (size_t)rig->problem.heads_kv * dims[which] : mode == OCT_SCALE_LAYER_HEAD ? rig->problem.heads_kv : 1;
        float *const scales = malloc(n * sizeof(*scales));
        for (size_t i = 0; i < n && scales != NULL; i++) {
            scales[i] = formats[which]->dtype == OCT_DTYPE_I8 ? 4.0f / 127 : 4.0f / 240;
        }
        oct_status status = scales != NULL ? OCT_OK : out_of_memory(error);
        const uint32_t n_layers = mode == OCT_SCALE_TENSOR ? 1 : rig->n_layers;
        for (uint32_t layer = 0; layer < n_layers && status == OCT_OK; layer++) {
            status = oct_kv_pool_set_scale(rig->pool, layer, which, scales, n, error);
        }
        free(scales);
        if (status != OCT_OK) {
            return status;
        }
    }
    return OCT_OK;
}

/* Every slot of the first n layers through the write, from a few tokens over and over. */
static oct_status fill_layers(bench_rig *rig, uint32_t n, oct_error *error)
{
    const bench_problem *const p = &rig->problem;
    const int64_t n_slots = rig->n_pages * p->page;
    const size_t n_k = (size_t)FILL_TOKENS * p->heads_kv * p->dim_k, n_v = (size_t)FILL_TOKENS * p->heads_kv * p->dim_v;
    const uint32_t n_before = rig->n_blocks;
    int32_t *const slots = malloc((size_t)n_slots * sizeof(*slots));
    for (int64_t i = 0; slots != NULL && i < n_slots; i++) {
        slots[i] = (int32_t)i;
    }
    const float *const k = send(rig, make_operand(n_k, OCT_DTYPE_F32, 11), n_k * sizeof(float)), *const v = send(rig, make_operand(n_v, OCT_DTYPE_F32, 12), n_v * sizeof(float));
    const int32_t *const there = send(rig, slots, (size_t)n_slots * sizeof(*slots));
    oct_kv_counts *const counts = send(rig, calloc(2, sizeof(*counts)), 2 * sizeof(*counts));
    oct_status status = k != NULL && v != NULL && there != NULL && counts != NULL ? OCT_OK : out_of_memory(error);
    for (uint32_t layer = 0; layer < n; layer++) {
        for (int64_t begin = 0; begin < n_slots && status == OCT_OK; begin += FILL_TOKENS) {
            const bool counts_it = layer == 0 && begin == 0;   /* the first tokens tell; all others repeat them */
            const oct_kv_write_args args = {
                .struct_size = sizeof(args), .layer = &rig->layers[layer], .slots = there + begin, .n_tokens = n_slots - begin < FILL_TOKENS ? n_slots - begin : FILL_TOKENS,
                .src_dtype = OCT_DTYPE_F32, .k = k, .v = v,
                .k_token_stride = (int64_t)p->heads_kv * p->dim_k, .k_head_stride = p->dim_k, .v_token_stride = (int64_t)p->heads_kv * p->dim_v, .v_head_stride = p->dim_v,
                .k_counts = counts_it ? &counts[0] : NULL, .v_counts = counts_it ? &counts[1] : NULL, .n_counts = counts_it, .stream = rig->stream,
            };
            status = oct_kv_write(rig->context, &args);
        }
    }
    if (status == OCT_OK) {
        status = oct_device_copy_out(rig->context, rig->counts, counts, sizeof(rig->counts), rig->stream);
    }
    if (status == OCT_OK) {
        status = oct_device_wait(rig->context, rig->stream);
    }
    while (rig->n_blocks > n_before) {
        free_last(rig);
    }
    return status == OCT_OK ? OCT_OK : oct__error_set(error, status, where, "the pages could not be filled: %s", oct_status_message(status));
}

static void copy_layer(const bench_rig *rig, oct_kv_layer *to)
{
    const oct_kv_layer *const from = &rig->layers[0];
    const size_t n = (size_t)rig->n_pages;
    memcpy(to->k, from->k, (size_t)oct_dtype_bytes(from->spec.k.dtype, n * (uint64_t)from->k_page_stride));
    memcpy(to->v, from->v, (size_t)oct_dtype_bytes(from->spec.v.dtype, n * (uint64_t)from->v_page_stride));
    if (from->k_token_scale != NULL) {
        memcpy(to->k_token_scale, from->k_token_scale, n * (size_t)from->k_scale_page_stride * oct_dtype_size_bytes(from->spec.k.scale_dtype));
    }
    if (from->v_token_scale != NULL) {
        memcpy(to->v_token_scale, from->v_token_scale, n * (size_t)from->v_scale_page_stride * oct_dtype_size_bytes(from->spec.v.scale_dtype));
    }
}

/* Keys of a sequence before those that its first row sees. */
static int64_t hidden_keys(const bench_problem *p)
{
    const int64_t seen = (int64_t)p->kv_len - p->q_len + 1;
    return (p->op == BENCH_DECODE || p->op == BENCH_EXTEND) && p->window > 0 && seen > p->window ? seen - p->window : 0;
}

static oct_status make_pages(bench_rig *rig, uint64_t cold_bytes, oct_error *error)
{
    const bench_problem *const p = &rig->problem;
    const oct_kv_spec spec = spec_of(p);
    oct_status status = oct_kv_spec_check(&spec, error);
    if (status != OCT_OK) {
        return status;
    }
    rig->pages_of_sequence = ((int64_t)p->kv_len + p->page - 1) / p->page;
    /* Pages that no row sees are not there: layers are as large as what a run reads of them, or going round them would leave a window's keys in the cache. */
    const int64_t n_hidden = hidden_keys(p) / p->page, n_table = rig->pages_of_sequence * p->batch;
    rig->n_pages = (rig->pages_of_sequence - n_hidden) * p->batch;
    const uint64_t layer_bytes = oct_kv_page_bytes(&spec) * (uint64_t)rig->n_pages;
    uint64_t wanted = cold_bytes > 0 ? (cold_bytes + layer_bytes - 1) / layer_bytes + (layer_bytes < cold_bytes) : 1;
    if (rig->clock != NULL) {   /* the clock flushes the caches before a graph, which meets each layer once */
        const double fit = graph_flops / (bench_amount_of(p).flops + 1);
        wanted = cold_bytes == 0 ? 1 : wanted < GRAPH_RUNS_MIN ? GRAPH_RUNS_MIN : wanted > GRAPH_RUNS_MAX ? GRAPH_RUNS_MAX : wanted;
        wanted = fit < 1 ? 1 : fit < (double)wanted ? (uint64_t)fit : wanted;
    }
    rig->n_layers = wanted < LAYERS_MAX ? (uint32_t)wanted : LAYERS_MAX;
    const oct_kv_pool_options pool = { .struct_size = sizeof(pool), .n_layers = rig->n_layers, .n_pages = rig->n_pages, .spec = spec };
    status = oct_kv_pool_create(rig->context, &pool, &rig->pool, error);
    rig->layers = calloc(rig->n_layers, sizeof(*rig->layers));
    const size_t n_tokens = (size_t)p->batch * p->q_len;
    int32_t *const table = malloc((size_t)n_table * sizeof(*table)), *const qo_indptr = malloc(((size_t)p->batch + 1) * sizeof(*qo_indptr)),
                   *const kv_len = malloc((size_t)p->batch * sizeof(*kv_len)), *const slots = malloc(n_tokens * sizeof(*slots));
    if (status == OCT_OK && (rig->layers == NULL || table == NULL || qo_indptr == NULL || kv_len == NULL || slots == NULL)) {
        status = out_of_memory(error);
    }
    if (status != OCT_OK) {
        free(table);
        free(qo_indptr);
        free(kv_len);
        free(slots);
        return status;
    }
    uint64_t seed = 5;
    for (int64_t i = 0; i < rig->n_pages; i++) {
        const int64_t k = (int64_t)(draw(&seed) % (uint64_t)(i + 1));
        table[i] = table[k];
        table[k] = (int32_t)i;
    }
    for (int64_t i = n_table, from = rig->n_pages; i > 0; i--) {   /* each sequence's behind its hidden ones; never below where they come from */
        table[i - 1] = (i - 1) % rig->pages_of_sequence < n_hidden ? OCT_PAGE_NONE : table[--from];
    }
    for (uint32_t b = 0; b <= p->batch; b++) {
        qo_indptr[b] = (int32_t)(b * p->q_len);
    }
    for (uint32_t b = 0; b < p->batch; b++) {
        kv_len[b] = (int32_t)p->kv_len;
    }
    for (size_t i = 0; i < n_tokens; i++) {   /* of a write: the last tokens of each sequence */
        const uint32_t position = p->kv_len - p->q_len + (uint32_t)(i % p->q_len);
        slots[i] = table[(int64_t)(i / p->q_len) * rig->pages_of_sequence + position / p->page] * (int32_t)p->page + (int32_t)(position % p->page);
    }
    rig->table = send(rig, table, (size_t)n_table * sizeof(*table));
    rig->qo_indptr = send(rig, qo_indptr, ((size_t)p->batch + 1) * sizeof(*qo_indptr));
    rig->kv_len = send(rig, kv_len, (size_t)p->batch * sizeof(*kv_len));
    rig->slots = send(rig, slots, n_tokens * sizeof(*slots));
    if (rig->table == NULL || rig->qo_indptr == NULL || rig->kv_len == NULL || rig->slots == NULL) {
        return out_of_memory(error);
    }
    status = set_scales(rig, error);
    for (uint32_t layer = 0; layer < rig->n_layers && status == OCT_OK; layer++) {
        rig->layers[layer].struct_size = sizeof(rig->layers[layer]);
        status = oct_kv_pool_layer(rig->pool, layer, &rig->layers[layer], error);
    }
    /* Copies are cheaper than writes, where the host can make them. */
    const uint32_t n_written = rig->clock != NULL ? rig->n_layers : 1;
    if (status == OCT_OK) {
        status = fill_layers(rig, n_written, error);
    }
    for (uint32_t layer = n_written; layer < rig->n_layers && status == OCT_OK; layer++) {
        copy_layer(rig, &rig->layers[layer]);
    }
    return status;
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

static oct_status plan_attention(bench_rig *rig, const char *force, const char *deny, bench_choice *choice, oct_error *error)
{
    const bench_problem *const p = &rig->problem;
    const oct_attn_spec spec = {
        .struct_size = sizeof(spec), .heads_q = p->heads_q, .kv = spec_of(p), .q_dtype = p->operand, .out_dtype = p->operand, .sm_scale = 1 / sqrtf((float)p->dim_k),
        .causal = 1, .window_tokens = p->window, .force_variant = force, .deny_variant = deny,
        .max_sequences = p->batch, .max_rows = (int64_t)p->batch * p->q_len, .max_keys = p->kv_len,
    };
    const oct_attn_batch batch = {
        .struct_size = sizeof(batch), .n_sequences = p->batch, .qo_indptr = rig->qo_indptr, .block_table = rig->table, .seq_lens = rig->kv_len,
        .max_pages = rig->pages_of_sequence, .n_pages = rig->n_pages, .stream = rig->stream,
    };
    oct_plan_info info = { .struct_size = sizeof(info) };
    oct_status status = oct_plan_create(rig->context, &spec, &choice->plan, error);
    if (status == OCT_OK) {
        status = oct_plan_update(choice->plan, &batch, error);
    }
    if (status == OCT_OK) {
        status = oct_plan_info_get(choice->plan, &info);
    }
    if (status != OCT_OK) {
        bench_choice_free(choice);
        return status;
    }
    choice->predicted_seconds = info.predicted_seconds;
    (void)snprintf(choice->variant, sizeof(choice->variant), "%s", p->op == BENCH_DECODE ? info.decode_variant : info.extend_variant);
    return OCT_OK;
}

static oct_status make_attention(bench_rig *rig, oct_error *error)
{
    const bench_problem *const p = &rig->problem;
    const size_t vectors = (size_t)p->batch * p->q_len * p->heads_q, size = oct_dtype_size_bytes(p->operand);
    rig->q = send(rig, make_operand(vectors * p->dim_k, p->operand, 21), vectors * p->dim_k * size);
    rig->out = make_room(rig, vectors * p->dim_v * size);
    return rig->q != NULL && rig->out != NULL ? OCT_OK : out_of_memory(error);
}

static oct_status run_attention(bench_rig *rig, oct_plan *plan, const oct_kv_layer *layer)
{
    const bench_problem *const p = &rig->problem;
    const oct_attn_args args = {
        .struct_size = sizeof(args), .layer = layer, .q = rig->q, .q_row_stride = (int64_t)p->heads_q * p->dim_k, .q_head_stride = p->dim_k, .out = rig->out,
        .out_row_stride = (int64_t)p->heads_q * p->dim_v, .out_head_stride = p->dim_v, .stream = rig->stream,
    };
    return oct_attn_run(plan, &args);
}

/* ---- write and merge ------------------------------------------------------------------------------------------------------ */

/* A write and a merge say which row they take only in words: what explain's JSON calls chosen. */
static void take_chosen(bench_rig *rig, const char *text)
{
    static const char key[] = "\"name\": \"";
    const char *at = strstr(text, "\"state\": \"chosen\"");
    char name[64];
    while (at != NULL && at > text && strncmp(at, key, sizeof(key) - 1) != 0) {
        at--;
    }
    if (at != NULL && sscanf(at, "\"name\": \"%63[^\"]", name) == 1) {
        (void)snprintf(rig->variant, sizeof(rig->variant), "%s", name);
    }
}

static oct_status make_write(bench_rig *rig, oct_error *error)
{
    const bench_problem *const p = &rig->problem;
    const oct_kv_spec spec = spec_of(p);
    const size_t vectors = (size_t)p->batch * p->q_len * p->heads_kv, size = oct_dtype_size_bytes(p->operand);
    rig->q = send(rig, make_operand(vectors * p->dim_k, p->operand, 31), vectors * p->dim_k * size);
    rig->out = send(rig, make_operand(vectors * p->dim_v, p->operand, 32), vectors * p->dim_v * size);
    if (rig->q == NULL || rig->out == NULL) {
        return out_of_memory(error);
    }
    char text[16384];
    (void)oct_kv_write_explain(rig->context, &spec, p->operand, OCT_TEXT_JSON, text, sizeof(text));
    take_chosen(rig, text);
    return OCT_OK;
}

static oct_status run_write(bench_rig *rig, const oct_kv_layer *layer)
{
    const bench_problem *const p = &rig->problem;
    const oct_kv_write_args args = {
        .struct_size = sizeof(args), .layer = layer, .slots = rig->slots, .n_tokens = (int64_t)p->batch * p->q_len, .src_dtype = p->operand, .k = rig->q, .v = rig->out,
        .k_token_stride = (int64_t)p->heads_kv * p->dim_k, .k_head_stride = p->dim_k, .v_token_stride = (int64_t)p->heads_kv * p->dim_v, .v_head_stride = p->dim_v,
        .stream = rig->stream,
    };
    return oct_kv_write(rig->context, &args);
}

/* The parts of one set, and what they make, in elements. */
static size_t merge_vectors(const bench_problem *p)
{
    return (size_t)p->batch * p->q_len * p->heads_q;
}

static oct_status make_merge(bench_rig *rig, uint64_t cold_bytes, oct_error *error)
{
    const bench_problem *const p = &rig->problem;
    const size_t vectors = merge_vectors(p), n_out = vectors * p->parts * p->dim_v, n_lse = vectors * p->parts;
    rig->n_layers = 1;
    if (rig->clock != NULL && cold_bytes > 0) {
        const uint64_t wanted = cold_bytes / (n_out * sizeof(float)) + 1;
        rig->n_layers = wanted < GRAPH_RUNS_MIN ? GRAPH_RUNS_MIN : wanted > GRAPH_RUNS_MAX ? GRAPH_RUNS_MAX : (uint32_t)wanted;
    }
    float *const out = make_operand(n_out, OCT_DTYPE_F32, 41), *const lse = make_operand(n_lse, OCT_DTYPE_F32, 42);
    float *const q = make_room(rig, rig->n_layers * n_out * sizeof(float));
    rig->lse = make_room(rig, rig->n_layers * n_lse * sizeof(float));
    rig->out = make_room(rig, vectors * p->dim_v * sizeof(float));
    rig->lse_merged = make_room(rig, vectors * sizeof(float));
    rig->q = q;
    oct_status status = out != NULL && lse != NULL && q != NULL && rig->lse != NULL && rig->out != NULL && rig->lse_merged != NULL ? OCT_OK : out_of_memory(error);
    for (uint32_t i = 0; i < rig->n_layers && status == OCT_OK; i++) {
        status = oct_device_copy_in(rig->context, q + i * n_out, out, n_out * sizeof(float), rig->stream);
        status = status == OCT_OK ? oct_device_copy_in(rig->context, rig->lse + i * n_lse, lse, n_lse * sizeof(float), rig->stream) : status;
    }
    free(out);
    free(lse);
    char text[16384];
    (void)oct_attn_merge_explain(rig->context, (int64_t)p->batch * p->q_len, p->heads_q, p->dim_v, p->parts, OCT_TEXT_JSON, text, sizeof(text));
    take_chosen(rig, text);
    return status == OCT_OK ? OCT_OK : oct__error_set(error, status, where, "the parts could not be made: %s", oct_status_message(status));
}

static oct_status run_merge(bench_rig *rig, uint32_t set)
{
    const bench_problem *const p = &rig->problem;
    const int64_t rows = (int64_t)p->batch * p->q_len, heads = p->heads_q, dim = p->dim_v;
    const size_t n_lse = merge_vectors(p) * p->parts;
    const oct_attn_merge_args args = {
        .struct_size = sizeof(args), .n_parts = p->parts, .rows = rows, .heads = p->heads_q, .dim = p->dim_v, .out = (const float *)rig->q + set * n_lse * p->dim_v,
        .out_part_stride = rows * heads * dim,
        .out_row_stride = heads * dim, .out_head_stride = dim, .lse = rig->lse + set * n_lse, .lse_part_stride = rows * heads, .lse_row_stride = heads, .lse_head_stride = 1,
        .merged = rig->out, .merged_row_stride = heads * dim, .merged_head_stride = dim, .lse_merged = rig->lse_merged, .lse_merged_row_stride = heads, .lse_merged_head_stride = 1,
        .stream = rig->stream,
    };
    return oct_attn_merge(rig->context, &args);
}

/* ---- the rig -------------------------------------------------------------------------------------------------------------- */

oct_status bench_rig_create(const bench_problem *problem, oct_context *context, bench_device_clock *clock, uint64_t cold_bytes, bench_rig **out, oct_error *error)
{
    bench_rig *const rig = calloc(1, sizeof(*rig));
    if (rig == NULL) {
        return out_of_memory(error);
    }
    rig->problem = *problem;
    rig->context = context;
    rig->clock = clock;
    rig->is_cold = cold_bytes > 0;
    rig->stream = clock != NULL ? bench_device_clock_stream(clock) : NULL;
    oct_status status = problem->op == BENCH_MERGE ? OCT_OK : make_pages(rig, cold_bytes, error);
    if (status == OCT_OK) {
        status = problem->op == BENCH_MERGE ? make_merge(rig, cold_bytes, error) : problem->op == BENCH_WRITE ? make_write(rig, error) : make_attention(rig, error);
    }
    if (status != OCT_OK) {
        bench_rig_destroy(rig);
        return status;
    }
    *out = rig;
    return OCT_OK;
}

void bench_rig_destroy(bench_rig *rig)
{
    if (rig == NULL) {
        return;
    }
    oct_kv_pool_destroy(rig->pool);
    free(rig->layers);
    while (rig->n_blocks > 0) {
        free_last(rig);
    }
    free(rig);
}

void bench_rig_saturated(const bench_rig *rig, uint64_t *n_saturated, uint64_t *n_values)
{
    *n_saturated = rig->counts[0].n_saturated + rig->counts[1].n_saturated;
    *n_values = rig->counts[0].n_values + rig->counts[1].n_values;
}

static oct_status run_all_layers(void *what)
{
    bench_choice *const choice = what;
    oct_status status = OCT_OK;
    choice->rig->at = 0;
    for (uint32_t i = 0; i < choice->rig->n_layers && status == OCT_OK; i++) {
        status = bench_choice_run(choice);
    }
    return status;
}

oct_status bench_choice_make(bench_rig *rig, const char *force, const char *deny, bench_choice *choice, oct_error *error)
{
    *choice = (bench_choice){ .rig = rig };
    oct_status status = OCT_OK;
    if (rig->problem.op == BENCH_DECODE || rig->problem.op == BENCH_EXTEND) {
        status = plan_attention(rig, force, deny, choice, error);
    } else {
        (void)snprintf(choice->variant, sizeof(choice->variant), "%s", rig->variant);
    }
    if (status == OCT_OK && rig->clock != NULL) {
        status = bench_device_graph_make(rig->clock, run_all_layers, choice, &choice->graph);
        if (status != OCT_OK) {
            char choice_name[64];
            (void)snprintf(choice_name, sizeof(choice_name), "%s", choice->variant);
            bench_choice_free(choice);
            (void)oct__error_set(error, status, where, "%s: no graph of its runs: %s %s", choice_name, oct_status_message(status),
                                bench_device_clock_fault(rig->clock));
        }
    }
    return status;
}

void bench_choice_free(bench_choice *choice)
{
    if (choice->graph != NULL) {
        bench_device_graph_drop(choice->rig->clock, choice->graph);
    }
    oct_plan_destroy(choice->plan);
    *choice = (bench_choice){ .rig = NULL };
}

oct_status bench_choice_run(bench_choice *choice)
{
    bench_rig *const rig = choice->rig;
    const uint32_t at = rig->at;
    rig->at = at + 1 < rig->n_layers ? at + 1 : 0;
    if (rig->problem.op == BENCH_MERGE) {
        return run_merge(rig, at);
    }
    return rig->problem.op == BENCH_WRITE ? run_write(rig, &rig->layers[at]) : run_attention(rig, choice->plan, &rig->layers[at]);
}

oct_status bench_choice_sample(void *what, uint32_t n_runs, double *seconds)
{
    bench_choice *const choice = what;
    const bench_rig *const rig = choice->rig;
    (void)n_runs;
    const uint32_t n = rig->is_cold ? 1 : GRAPH_RUNS_MAX;
    const oct_status status = bench_device_graph_time(rig->clock, choice->graph, n, rig->is_cold, seconds);
    *seconds /= (double)n * rig->n_layers;
    return status;
}
