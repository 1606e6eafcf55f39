/* inside_probe.c: see inside_probe.h. What the model made is copied before it is stored; what the cache gives back is read from its bytes; attention over both is
 * computed again in f64. So every layer is judged on its own inputs, and an error of one is not seen in the next. */
#include "apps/eval/inside_probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/eval/inside_decode.h"
#include "host/error.h"

static const char where[] = "octavo eval";

enum { ROWS_QUICK = 16, ROWS = 32, TOKENS_QUICK = 256, TOKENS = 512, BEYOND_WINDOW = 64 };
enum { MEMORY_BYTES = 192 << 20 };

double eval_energy_db(eval_energy e)
{
    return isnan(e.error) ? (double)NAN : e.error > 0 ? 10 * log10(e.signal / e.error) : e.signal > 0 ? EVAL_EXACT_DB : (double)NAN;
}

uint32_t eval_probe_tokens(const octe_model_info *info, uint32_t n_tokens, bool quick)
{
    const uint64_t token = (uint64_t)info->n_layers * info->n_heads_kv * info->head_dim * 4 * sizeof(float);
    uint64_t n = quick ? TOKENS_QUICK : TOKENS;
    if (info->n_layers_window > 0 && n < info->window_tokens + BEYOND_WINDOW) {
        n = info->window_tokens + BEYOND_WINDOW;
    }
    n = n < MEMORY_BYTES / token ? n : MEMORY_BYTES / token;
    n = n < n_tokens ? n : n_tokens;
    return (uint32_t)(n < info->n_ctx_train ? n : info->n_ctx_train);
}

uint32_t eval_probe_rows(uint32_t n_tokens, bool quick)
{
    const uint32_t n = quick ? ROWS_QUICK : ROWS, half = n_tokens > 1 ? n_tokens / 2 : 1;
    return n < half ? n : half;
}

static float *vector_at(const eval_probe *p, float *const *arrays, int side, uint32_t layer, uint32_t head, uint32_t token)
{
    return arrays[side] + (((size_t)layer * p->info->n_heads_kv + head) * p->n_tokens + token) * p->info->head_dim;
}

/* ---- in the engine's threads ---------------------------------------------------------------------------------------------------- */

static void before(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    const eval_probe *const p = user;
    const size_t bytes = p->info->head_dim * sizeof(float);
    for (uint32_t h = ith; h < p->info->n_heads_kv; h += nth) {
        for (uint32_t r = 0; r < rows->n_rows; r++) {
            memcpy(vector_at(p, p->made, 0, rows->layer, h, p->n_past + r), rows->k + r * rows->k_row_stride + h * rows->k_head_stride, bytes);
            memcpy(vector_at(p, p->made, 1, rows->layer, h, p->n_past + r), rows->v + r * rows->v_row_stride + h * rows->v_head_stride, bytes);
        }
    }
}

/* One stored vector back into the model's own axes, and what is to be counted on the way. room: 2 * dim. */
static bool read_back(const oct_kv_layer *layer, int side, int32_t slot, uint32_t head, const float *made, float *kept, float *room, uint64_t *saturated, uint64_t *zeroed,
                      double *range)
{
    const uint32_t dim = side == 0 ? layer->spec.dim_k : layer->spec.dim_v;
    const oct_kv_format *const f = side == 0 ? &layer->spec.k : &layer->spec.v;
    float *const limit = room, *const given = room + dim;
    if (!eval_decode(layer, side, slot, head, kept, limit)) {
        return false;
    }
    memcpy(given, made, dim * sizeof(float));
    if (f->rotated) {
        eval_rotate(given, dim);
    }
    for (uint32_t d = 0; d < dim; d++) {
        const float size = fabsf(given[d]);
        /* Ours and the library's rotation may round differently. */
        *saturated += limit[d] > 0 && size > limit[d] * (1 + 1e-5f);
        *zeroed += kept[d] == 0 && size > 0;
        *range = limit[d] > 0 && (double)(size / limit[d]) > *range ? (double)(size / limit[d]) : *range;
    }
    if (f->rotated) {
        eval_rotate(kept, dim);
    }
    return true;
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum[4] = { 0, 0, 0, 0 };
    for (uint32_t i = 0; i + 4 <= n; i += 4) {
        for (uint32_t j = 0; j < 4; j++) {
            sum[j] += (double)a[i + j] * (double)b[i + j];
        }
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);   /* dims are multiples of 8 */
}

/* sum += weight * v */
static void add_weighted(double *sum, double weight, const float *v, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++) {
        sum[d] += weight * (double)v[d];
    }
}

/* The scores' error, less its mean: softmax does not see a shift of them all. */
static void judge_scores(eval_energy *e, const double *made, const double *kept, uint32_t n)
{
    double mean = 0, mean_error = 0;
    for (uint32_t i = 0; i < n; i++) {
        mean += made[i] / n;
        mean_error += (kept[i] - made[i]) / n;
    }
    for (uint32_t i = 0; i < n; i++) {
        e->signal += (made[i] - mean) * (made[i] - mean);
        e->error += (kept[i] - made[i] - mean_error) * (kept[i] - made[i] - mean_error);
    }
}

static double largest_of(const double *x, uint32_t n)
{
    double most = x[0];
    for (uint32_t i = 1; i < n; i++) {
        most = x[i] > most ? x[i] : most;
    }
    return most;
}

/* One row of one query head against all that it sees. room: 2 * n_tokens + 6 * dim doubles. */
static void judge_row(eval_probe *p, const octe_tap_rows *rows, uint32_t row, uint32_t head, double *room)
{
    const octe_model_info *const info = p->info;
    const uint32_t dim = info->head_dim, group = head / (info->n_heads / info->n_heads_kv), position = p->n_past + row;
    const bool has_window = octe_model_layer_has_window(p->options->model, rows->layer) && position >= info->window_tokens;
    const uint32_t first = has_window ? position + 1 - info->window_tokens : 0, n = position + 1 - first;
    const float *const q = rows->q + row * rows->q_row_stride + head * rows->q_head_stride;
    const float *const out = rows->out + row * rows->out_row_stride + head * rows->out_head_stride;
    /* A window's alternative starts one key earlier: place 0. */
    const uint32_t earlier = has_window ? 1 : 0;
    double *const made = room, *const kept = made + p->n_tokens, *const truth = kept + p->n_tokens, *const less = truth + dim, *const right = less + dim, *const more = right + dim;
    for (uint32_t i = 0; i < n + earlier; i++) {
        made[i] = (double)info->attn_scale * dot(q, vector_at(p, p->made, 0, rows->layer, group, first - earlier + i), dim);
        kept[i] = (double)info->attn_scale * dot(q, vector_at(p, p->kept, 0, rows->layer, group, first - earlier + i), dim);
    }
    const size_t at = (size_t)rows->layer * info->n_heads + head;
    judge_scores(&p->scores[at], made + earlier, kept + earlier, n);
    const double most_made = largest_of(made + earlier, n), most_kept = largest_of(kept, n + earlier);
    double sum_made = 0, sum_less = 0;
    memset(truth, 0, 4 * dim * sizeof(double));
    for (uint32_t i = earlier; i < n + earlier; i++) {
        const uint32_t token = first - earlier + i;
        const double weight = exp(made[i] - most_made);
        sum_made += weight;
        add_weighted(truth, weight, vector_at(p, p->made, 1, rows->layer, group, token), dim);
        if (i > earlier || !has_window) {
            const double other = exp(kept[i] - most_kept);
            sum_less += other;
            add_weighted(less, other, vector_at(p, p->kept, 1, rows->layer, group, token), dim);
        }
    }
    double sum_right = sum_less, sum_more;
    memcpy(right, less, dim * sizeof(double));
    if (has_window) {
        const double weight = exp(kept[1] - most_kept);
        sum_right += weight;
        add_weighted(right, weight, vector_at(p, p->kept, 1, rows->layer, group, first), dim);
    }
    sum_more = sum_right;
    memcpy(more, right, dim * sizeof(double));
    if (has_window) {
        const double weight = exp(kept[0] - most_kept);
        sum_more += weight;
        add_weighted(more, weight, vector_at(p, p->kept, 1, rows->layer, group, first - 1), dim);
    }
    eval_energy *const e = &p->outputs[at];
    eval_kernel_sums *const k = &p->kernels[at];
    for (uint32_t d = 0; d < dim; d++) {
        const double given = (double)out[d], exact = truth[d] / sum_made, stored = right[d] / sum_right;
        e->signal += exact * exact;
        e->error += (given - exact) * (given - exact);
        k->signal += stored * stored;
        const double lesser = given - less[d] / sum_less, greater = given - more[d] / sum_more;
        k->error[EVAL_WINDOW_LESS] += lesser * lesser;
        k->error[EVAL_WINDOW_RIGHT] += (given - stored) * (given - stored);
        k->error[EVAL_WINDOW_MORE] += greater * greater;
    }
}

static void keep_row(eval_probe *p, const octe_tap_rows *rows, uint32_t row, uint32_t head, uint32_t nth_row)
{
    const uint32_t dim = p->info->head_dim;
    const size_t at = (((size_t)rows->layer * EVAL_KEPT_ROWS + nth_row) * p->info->n_heads + head) * dim;
    memcpy(p->row_q + at, rows->q + row * rows->q_row_stride + head * rows->q_head_stride, dim * sizeof(float));
    memcpy(p->row_out + at, rows->out + row * rows->out_row_stride + head * rows->out_head_stride, dim * sizeof(float));
}

static void after(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    eval_probe *const p = user;
    const uint32_t n_kv = p->info->n_heads_kv, group = p->info->n_heads / n_kv, dim = p->info->head_dim;
    for (uint32_t h = ith; h < n_kv; h += nth) {
        float *const room = p->room + h * p->room_floats;
        const size_t at = (size_t)rows->layer * n_kv + h;
        for (uint32_t r = 0; r < rows->n_rows; r++) {
            const uint32_t token = p->n_past + r;
            oct_kv_layer layer = { .struct_size = sizeof(layer) };
            int32_t slot = -1;
            bool fine = octe_engine_stored(p->engine, rows->layer, 0, token, &layer, &slot) == OCT_OK && slot >= 0;
            for (int side = 0; side < 2 && fine; side++) {
                fine = read_back(&layer, side, slot, h, vector_at(p, p->made, side, rows->layer, h, token), vector_at(p, p->kept, side, rows->layer, h, token), room,
                                 &p->saturated[side][at], &p->zeroed[side][at], &p->range[side][at]);
            }
            if (!fine && ith == 0) {
                p->strange = true;   /* one thread says so for all: every head has the same format */
            }
        }
        for (uint32_t r = 0; r < rows->n_rows; r++) {
            const uint32_t from_end = p->n_tokens - 1 - (p->n_past + r), nth_row = from_end / p->row_stride;
            for (uint32_t head = h * group; head < (h + 1) * group && from_end % p->row_stride == 0 && nth_row < p->n_rows; head++) {
                judge_row(p, rows, r, head, (double *)(void *)(room + 2 * (size_t)dim));
                if (nth_row < p->n_rows_kept) {
                    keep_row(p, rows, r, head, nth_row);
                }
            }
        }
    }
}

/* ---- the run ------------------------------------------------------------------------------------------------------------------------ */

static oct_status open_probe(eval_probe *p, oct_error *error)
{
    const octe_model_info *const info = p->info;
    const size_t by_head = (size_t)info->n_layers * info->n_heads, by_kv = (size_t)info->n_layers * info->n_heads_kv, vectors = by_kv * p->n_tokens * info->head_dim;
    /* Two vectors of floats, then doubles: dims are multiples of 8, so that they are aligned. */
    p->room_floats = 2 * (size_t)info->head_dim + 2 * (2 * ((size_t)p->n_tokens + 1) + 6 * (size_t)info->head_dim);
    p->room_floats += p->room_floats % 2;
    p->room = malloc(info->n_heads_kv * p->room_floats * sizeof(*p->room));
    p->scores = calloc(by_head, sizeof(*p->scores));
    p->outputs = calloc(by_head, sizeof(*p->outputs));
    p->kernels = calloc(by_head, sizeof(*p->kernels));
    p->row_q = calloc(by_head * EVAL_KEPT_ROWS * info->head_dim, sizeof(float));
    p->row_out = calloc(by_head * EVAL_KEPT_ROWS * info->head_dim, sizeof(float));
    bool there = p->room != NULL && p->row_q != NULL && p->row_out != NULL && p->scores != NULL && p->outputs != NULL && p->kernels != NULL;
    for (int side = 0; side < 2; side++) {
        p->made[side] = calloc(vectors, sizeof(float));
        p->kept[side] = calloc(vectors, sizeof(float));
        p->saturated[side] = calloc(by_kv, sizeof(uint64_t));
        p->zeroed[side] = calloc(by_kv, sizeof(uint64_t));
        p->range[side] = calloc(by_kv, sizeof(double));
        there = there && p->made[side] != NULL && p->kept[side] != NULL && p->saturated[side] != NULL && p->zeroed[side] != NULL && p->range[side] != NULL;
    }
    return there ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for K and V of %u tokens", p->n_tokens);
}

static oct_status open_engines(eval_probe *p, const octe_engine_tap *tap, oct_error *error)
{
    enum { STEP_ROWS = 128 };
    octe_engine_options o;
    octe_engine_options_init(&o);
    o.n_threads = p->options->n_threads;
    o.max_context_tokens = p->n_tokens;
    o.max_step_rows = p->n_tokens < STEP_ROWS ? p->n_tokens : STEP_ROWS;
    o.max_step_logits = 1;
    o.rates = p->options->rates;
    o.kv = p->wanted->kv;
    octe_engine_options asked = o;
    asked.max_context_tokens = asked.max_step_rows = 1;
    o.tap = tap;
    oct_status status = octe_engine_open(p->options->model, &asked, &p->asked, error);
    if (status == OCT_OK) {
        status = octe_engine_fill(p->asked, 0, 1, error);
    }
    if (status == OCT_OK) {
        status = (p->options->open != NULL ? p->options->open : octe_engine_open)(p->options->model, &o, &p->engine, error);
    }
    return status;
}

static double of_n(uint64_t count, uint64_t n) { return (double)count / (double)n; }

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Channels that stand out of a head. rms: [2 * dim], workspace. */
static void find_outliers(eval_kept *kept, double *rms, uint32_t dim)
{
    double *const sorted = rms + dim;
    memcpy(sorted, rms, dim * sizeof(*sorted));
    qsort(sorted, dim, sizeof(*sorted), by_size);
    const double median = (sorted[(dim - 1) / 2] + sorted[dim / 2]) / 2;
    kept->n_outliers = kept->top_channel = 0;
    for (uint32_t d = 0; d < dim; d++) {
        kept->n_outliers += rms[d] > EVAL_OUTLIER * median;
        kept->top_channel = rms[d] > rms[kept->top_channel] ? d : kept->top_channel;
    }
    kept->top_ratio = median > 0 ? rms[kept->top_channel] / median : (double)NAN;
}

static void sum_head(const eval_probe *p, int side, uint32_t layer, uint32_t head, eval_kept *kept, double *room)
{
    const uint32_t dim = p->info->head_dim;
    const size_t at = (size_t)layer * p->info->n_heads_kv + head;
    const float *const made = vector_at(p, p->made, side, layer, head, 0), *const back = vector_at(p, p->kept, side, layer, head, 0);
    eval_energy e = { 0, 0 };
    memset(room, 0, dim * sizeof(*room));
    kept->amax = 0;
    for (size_t i = 0; i < (size_t)p->n_tokens * dim; i++) {
        const double x = (double)made[i], error = (double)back[i] - x;
        e.signal += x * x;
        e.error += error * error;
        room[i % dim] += x * x;
        kept->amax = fabs(x) > kept->amax ? fabs(x) : kept->amax;
    }
    const uint64_t n = (uint64_t)p->n_tokens * dim;
    for (uint32_t d = 0; d < dim; d++) {
        room[d] = sqrt(room[d] / p->n_tokens);
    }
    kept->snr_db = eval_energy_db(e);
    kept->rms = sqrt(e.signal / (double)n);
    kept->saturated = of_n(p->saturated[side][at], n);
    kept->zeroed = of_n(p->zeroed[side][at], n);
    kept->range_used = octe_kv_format_is_static(side == 0 ? &p->wanted->kv.k : &p->wanted->kv.v) ? p->range[side][at] : (double)NAN;
    find_outliers(kept, room, dim);
}

/* The same values written aside as they were asked to be kept. */
static oct_status write_aside(const eval_probe *p, uint32_t il, eval_inside_format *f, oct_error *error)
{
    const octe_model_info *const info = p->info;
    const uint32_t dim = info->head_dim;
    oct_kv_layer asked = { .struct_size = sizeof(asked) }, aside = { .struct_size = sizeof(aside) };
    int32_t slot;
    oct_status status = octe_engine_stored(p->asked, il, 0, 0, &asked, &slot);
    const int64_t n_pages = (p->n_tokens - 1) / asked.spec.page_size + 1;
    if (status == OCT_OK) {
        status = oct_kv_layer_init(&aside, &asked.spec, n_pages, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    /* Four bytes an element and a scale are enough for every format. */
    int32_t *const slots = malloc(p->n_tokens * sizeof(*slots));
    float *const room = malloc(3 * (size_t)dim * sizeof(*room));
    aside.k = calloc((size_t)n_pages * (size_t)aside.k_page_stride, sizeof(float));
    aside.v = calloc((size_t)n_pages * (size_t)aside.v_page_stride, sizeof(float));
    aside.k_token_scale = aside.k_scale_page_stride > 0 ? calloc((size_t)n_pages * (size_t)aside.k_scale_page_stride, sizeof(float)) : NULL;
    aside.v_token_scale = aside.v_scale_page_stride > 0 ? calloc((size_t)n_pages * (size_t)aside.v_scale_page_stride, sizeof(float)) : NULL;
    aside.k_scale = asked.k_scale;
    aside.v_scale = asked.v_scale;
    if (slots == NULL || room == NULL || aside.k == NULL || aside.v == NULL) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for a layer");
    } else {
        for (uint32_t i = 0; i < p->n_tokens; i++) {
            slots[i] = (int32_t)i;
        }
        const oct_kv_write_args args = {
            .struct_size = sizeof(args), .checked = 1, .layer = &aside, .slots = slots, .n_tokens = p->n_tokens, .src_dtype = OCT_DTYPE_F32,
            .k = vector_at(p, p->made, 0, il, 0, 0), .v = vector_at(p, p->made, 1, il, 0, 0), .k_token_stride = dim, .v_token_stride = dim,
            .k_head_stride = (int64_t)p->n_tokens * dim, .v_head_stride = (int64_t)p->n_tokens * dim,
        };
        status = oct_kv_write(octe_engine_context(p->asked), &args);
        if (status != OCT_OK) {
            (void)oct__error_set(error, status, where, "layer %u can't be written aside: %s", il, oct_status_message(status));
        }
    }
    for (uint32_t i = 0; i < 2 * info->n_heads_kv && status == OCT_OK; i++) {
        const int side = (int)(i % 2);
        eval_energy e = { 0, 0 };
        uint64_t ignored[2] = { 0, 0 };
        double range = 0;
        for (uint32_t token = 0; token < p->n_tokens; token++) {
            const float *const made = vector_at(p, p->made, side, il, i / 2, token);
            (void)read_back(&aside, side, slots[token], i / 2, made, room + 2 * (size_t)dim, room, &ignored[0], &ignored[1], &range);
            for (uint32_t d = 0; d < dim; d++) {
                const double error_d = (double)room[2 * dim + d] - (double)made[d];
                e.signal += (double)made[d] * (double)made[d];
                e.error += error_d * error_d;
            }
        }
        f->kept[side][(size_t)il * info->n_heads_kv + i / 2].asked_db = eval_energy_db(e);
    }
    free(slots);
    free(room);
    free(aside.k);
    free(aside.v);
    free(aside.k_token_scale);
    free(aside.v_token_scale);
    return status;
}

static oct_status conclude(const eval_probe *p, eval_inside_format *f, oct_error *error)
{
    const octe_model_info *const info = p->info;
    double *const room = malloc(2 * (size_t)info->head_dim * sizeof(*room));
    oct_status status = room != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
    for (uint32_t il = 0; il < info->n_layers && status == OCT_OK; il++) {
        for (uint32_t h = 0; h < info->n_heads_kv; h++) {
            for (int side = 0; side < 2; side++) {
                sum_head(p, side, il, h, &f->kept[side][(size_t)il * info->n_heads_kv + h], room);
            }
        }
        for (uint32_t h = 0; h < info->n_heads; h++) {
            const size_t at = (size_t)il * info->n_heads + h;
            f->attended[at] = (eval_attended){
                .scores_db = eval_energy_db(p->scores[at]), .output_db = eval_energy_db(p->outputs[at]),
                .kernel_db = eval_energy_db((eval_energy){ p->kernels[at].signal, p->kernels[at].error[EVAL_WINDOW_RIGHT] }),
            };
        }
        status = write_aside(p, il, f, error);
    }
    free(room);
    return status;
}

oct_status eval_probe_run(eval_probe *p, const eval_inside_options *o, const eval_inside_wanted *wanted, eval_inside *inside, eval_inside_format *f, oct_error *error)
{
    *p = (eval_probe){ .options = o, .wanted = wanted, .info = octe_model_info_get(o->model), .n_tokens = inside->n_tokens, .n_rows = inside->n_rows };
    /* Rows of the second half, so that they have something to look at. */
    p->row_stride = p->n_tokens / 2 > p->n_rows ? p->n_tokens / 2 / p->n_rows : 1;
    p->n_rows_kept = p->n_rows < EVAL_KEPT_ROWS ? p->n_rows : EVAL_KEPT_ROWS;
    for (uint32_t i = 0; i < p->n_rows_kept; i++) {
        p->row_position[i] = p->n_tokens - 1 - i * p->row_stride;
    }
    const octe_engine_tap tap = { .before = before, .after = after, .user = p };
    oct_status status = open_probe(p, error);
    if (status == OCT_OK) {
        status = open_engines(p, &tap, error);
    }
    while (status == OCT_OK && p->n_past < p->n_tokens) {
        const uint32_t most = octe_engine_options_get(p->engine)->max_step_rows, n = p->n_tokens - p->n_past < most ? p->n_tokens - p->n_past : most;
        const octe_part part = { .sequence = 0, .n_tokens = n, .tokens = o->tokens + p->n_past, .n_logits = 1 };
        const float *logits;
        status = octe_engine_step(p->engine, &part, 1, &logits, error);
        p->n_past += n;
    }
    if (status == OCT_OK && p->strange) {
        status = oct__error_set(error, OCT_UNSUPPORTED, where, "a cache format that can't be read back");
    }
    return status == OCT_OK ? conclude(p, f, error) : status;
}

void eval_probe_close(eval_probe *p)
{
    octe_engine_close(p->engine);
    octe_engine_close(p->asked);
    for (int side = 0; side < 2; side++) {
        free(p->made[side]);
        free(p->kept[side]);
        free(p->saturated[side]);
        free(p->zeroed[side]);
        free(p->range[side]);
    }
    free(p->scores);
    free(p->outputs);
    free(p->kernels);
    free(p->row_q);
    free(p->row_out);
    free(p->room);
    *p = (eval_probe){ 0 };
}
