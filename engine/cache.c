/* cache.c: see cache.h. */
#include "engine/cache.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"

static const char *const where = "octe_engine_open";

static uint64_t divide_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

oct_status octe__kv_spec(const octe_model_info *info, const octe_kv_config *config, uint32_t layer, oct_kv_spec *spec, oct_error *error)
{
    if (config->layers != NULL && config->n_layers != info->n_layers) {
        return octe__report(error, OCT_BAD_DATA, where, info->path, "the formats are for %u layers, the model has %u", config->n_layers, info->n_layers);
    }
    const octe_kv_layer_format format = octe_kv_config_layer(config, layer);
    *spec = (oct_kv_spec){
        .struct_size = sizeof(*spec),
        .layout = config->layout,
        .heads = info->n_heads_kv,
        .dim_k = info->head_dim,
        .dim_v = info->head_dim,
        .page_size = config->page_size != 0 ? config->page_size : OCTE__PAGE_SIZE,
        .k = format.k,
        .v = format.v,
    };
    return oct_kv_spec_check(spec, error);
}

/* The window's last key may lie anywhere in its page: one page more than its tokens fill. */
uint64_t octe__window_pages(uint32_t window_tokens, uint32_t page_size) { return divide_up(window_tokens, page_size) + 1; }

/* ---- sizes ------------------------------------------------------------------------------------------------- */

typedef struct sizes {
    uint64_t page_bytes[OCTE__GROUPS];     /* of all layers of a group */
    uint64_t most_window_pages;            /* more than these the window pool never uses */
} sizes;

static oct_status size_by_bytes(octe__cache *c, const octe__cache_options *o, const sizes *z, const char *file, oct_error *error)
{
    const uint64_t both = z->page_bytes[OCTE__FULL] + z->page_bytes[OCTE__WINDOW];
    uint64_t pages = o->pool_bytes / both, window = pages;
    if (pages > z->most_window_pages) {
        const uint64_t rest = o->pool_bytes - z->most_window_pages * z->page_bytes[OCTE__WINDOW];
        window = z->most_window_pages;
        /* Without full layers the full table is bookkeeping alone and costs no page. */
        pages = z->page_bytes[OCTE__FULL] > 0 ? rest / z->page_bytes[OCTE__FULL] : INT32_MAX / c->spec.page_size;
    }
    if (pages == 0) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, file, "pool_bytes is %" PRIu64 "; one page of all layers takes %" PRIu64 " bytes", o->pool_bytes,
                            both);
    }
    /* Slots are int32. */
    const uint64_t most = INT32_MAX / c->spec.page_size;
    c->n_pages[OCTE__FULL] = (int64_t)(pages < most ? pages : most);
    c->n_pages[OCTE__WINDOW] = (int64_t)window;
    return OCT_OK;
}

static oct_status size_pools(octe__cache *c, const octe_model_info *info, const octe__cache_options *o, oct_error *error)
{
    const uint32_t page = c->spec.page_size;
    const bool window = o->window_tokens > 0;
    uint64_t page_bytes[OCTE__GROUPS] = {0, 0};
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        page_bytes[c->kinds[i].group] += c->kinds[i].n_layers * oct_kv_page_bytes(&c->kinds[i].spec);
    }
    const sizes z = {
        .page_bytes = {page_bytes[OCTE__FULL], page_bytes[OCTE__WINDOW]},
        /* Every sequence's resting window, and the rows of one step wherever they start in their pages. */
        .most_window_pages = window ? o->max_sequences * (octe__window_pages(o->window_tokens, page) + 1) + divide_up(o->max_step_rows, page) : UINT64_MAX,
    };
    const uint64_t context = *o->max_context_tokens != 0 ? *o->max_context_tokens : info->n_ctx_train;
    oct_status s = OCT_OK;
    if (o->pool_bytes > 0) {
        s = size_by_bytes(c, o, &z, info->path, error);
    } else {
        const uint64_t pages = o->pool_tokens > 0 ? divide_up((uint64_t)o->pool_tokens, page) : o->max_sequences * divide_up(context, page);
        if (pages > INT32_MAX / page) {
            return octe__report(error, OCT_INVALID_ARGUMENT, where, info->path, "the pool would have %" PRIu64 " tokens in pages of %u; at most %d can be addressed",
                                pages * page, page, INT32_MAX);
        }
        c->n_pages[OCTE__FULL] = (int64_t)pages;
        c->n_pages[OCTE__WINDOW] = (int64_t)(pages < z.most_window_pages ? pages : z.most_window_pages);
    }
    if (s != OCT_OK) {
        return s;
    }
    if (!window) {
        c->n_pages[OCTE__WINDOW] = 0;
    }
    /* One sequence must fit, in the window pool too where that is the smaller of what it needs. */
    const uint64_t holds = (uint64_t)c->n_pages[OCTE__FULL] * page;
    if (*o->max_context_tokens == 0) {
        *o->max_context_tokens = (uint32_t)(context < holds ? context : holds);
    } else if (context > holds) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, info->path,
                            "a context of %" PRIu64 " tokens is longer than the pool: %" PRId64 " pages of %u hold %" PRIu64 " tokens", context,
                            c->n_pages[OCTE__FULL], page, holds);
    }
    return OCT_OK;
}

/* ---- scales -------------------------------------------------------------------------------------------------- */

/* What a scale made for one format must be multiplied by to serve another. An e4m3fn scale serves e4m3fnuz doubled (half its largest
 * value, one more exponent bias), e5m2 as it is, and integers by the ratio of the largest values. */
static float rescale(uint32_t from, uint32_t to)
{
    const float largest_e4m3fn = 448.0f, largest_i8 = 127.0f;
    if (from == to) {
        return 1.0f;
    }
    const float as_e4m3fn = from == OCT_DTYPE_E4M3FNUZ ? 0.5f : from == OCT_DTYPE_I8 ? largest_i8 / largest_e4m3fn : 1.0f;
    return as_e4m3fn * (to == OCT_DTYPE_E4M3FNUZ ? 2.0f : to == OCT_DTYPE_I8 ? largest_e4m3fn / largest_i8 : 1.0f);
}

static const char *side(int which) { return which == 0 ? "K" : "V"; }

static oct_status check_scales(const octe_model_info *info, const octe_scales *sc, const oct_kv_format *f, int which, oct_error *error)
{
    if (sc->n_layers != info->n_layers) {
        return octe__report(error, OCT_BAD_DATA, where, info->path, "the scales are for %u layers, the model has %u", sc->n_layers, info->n_layers);
    }
    if (sc->model_type[0] != '\0' && strcmp(sc->model_type, info->model_type) != 0 && strcmp(sc->model_type, info->architecture) != 0) {
        return octe__report(error, OCT_BAD_DATA, where, info->path, "the scales are for model_type '%s', the model is '%s'", sc->model_type, info->model_type);
    }
    if (sc->rotated[which] != (f->rotated != 0)) {
        return octe__report(error, OCT_BAD_DATA, where, info->path, "the scales of %s were made for values kept %s, the cache keeps them %s", side(which),
                            sc->rotated[which] ? "rotated" : "as they are", f->rotated ? "rotated" : "as they are");
    }
    const bool by_head = f->scale_mode == OCT_SCALE_LAYER_HEAD, by_channel = f->scale_mode == OCT_SCALE_CHANNEL;
    const bool there = by_head ? sc->head[which] != NULL : by_channel ? sc->channel[which] != NULL : sc->layer[which] != NULL;
    if (!there) {
        return octe__report(error, OCT_BAD_DATA, where, info->path, "the scales have no numbers by %s for %s", by_head ? "head" : by_channel ? "channel" : "layer",
                            side(which));
    }
    if ((by_head || by_channel) && (sc->n_heads != info->n_heads_kv || (by_channel && sc->dim != info->head_dim))) {
        return octe__report(error, OCT_BAD_DATA, where, info->path, "the scales are for %u heads of %u dims, the model has %u of %u", sc->n_heads, sc->dim,
                            info->n_heads_kv, info->head_dim);
    }
    return OCT_OK;
}

/* n numbers of one layer and side, into scale. */
static void fill_scale(const octe_model_info *info, const octe_kv_config *config, const oct_kv_format *f, int which, uint32_t il, float *scale, size_t n)
{
    const octe_scales *sc = config->scales;
    const float factor = sc != NULL ? rescale(sc->dtype, f->dtype) : 1.0f;
    for (size_t i = 0; i < n; i++) {
        float x = which == 0 ? config->k_scale : config->v_scale;
        if (sc != NULL && f->scale_mode == OCT_SCALE_TENSOR) {
            x = 0.0f;
            for (uint32_t l = 0; l < info->n_layers; l++) {
                x = fmaxf(x, sc->layer[which][l]);
            }
        } else if (sc != NULL) {
            x = f->scale_mode == OCT_SCALE_LAYER ? sc->layer[which][il]
                : f->scale_mode == OCT_SCALE_LAYER_HEAD ? sc->head[which][(size_t)il * n + i] : sc->channel[which][(size_t)il * n + i];
        }
        scale[i] = x * factor;
    }
}

/* Those of one side of a kind's layers. */
static oct_status set_scales(octe__cache *c, const octe_model_info *info, const octe_kv_config *config, uint32_t kind, int which, oct_error *error)
{
    const oct_kv_spec *spec = &c->kinds[kind].spec;
    const oct_kv_format *f = which == 0 ? &spec->k : &spec->v;
    if (!octe_kv_format_is_static(f)) {
        return OCT_OK;
    }
    const float fixed = which == 0 ? config->k_scale : config->v_scale;
    if (config->scales == NULL && !(fixed > 0.0f && fixed <= FLT_MAX)) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the cache format of %s needs scales: give a calibration file, or a scale that is finite and > 0 (it is %g)",
                            side(which), (double)fixed);
    }
    oct_status s = config->scales != NULL ? check_scales(info, config->scales, f, which, error) : OCT_OK;
    const size_t n = f->scale_mode == OCT_SCALE_LAYER_HEAD ? spec->heads : f->scale_mode == OCT_SCALE_CHANNEL ? (size_t)spec->heads * (which == 0 ? spec->dim_k : spec->dim_v) : 1;
    float *scale = malloc(n * sizeof(*scale));
    if (s == OCT_OK && scale == NULL) {
        s = octe__report(error, OCT_OUT_OF_MEMORY, where, info->path, "no memory for %zu scales", n);
    }
    uint32_t in_pool = 0;
    for (uint32_t il = 0; il < c->n_layers && s == OCT_OK; il++) {
        if (c->kind[il] != kind || (f->scale_mode == OCT_SCALE_TENSOR && in_pool > 0)) {
            continue;
        }
        fill_scale(info, config, f, which, il, scale, n);
        s = oct_kv_pool_set_scale(c->kinds[kind].pool, in_pool++, (uint32_t)which, scale, n, error);
    }
    free(scale);
    return s;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static oct_status open_tables(octe__cache *c, oct_error *error)
{
    if (c->window_tokens == 0) {
        const oct_kv_table_options o = {.struct_size = sizeof(o), .page_size = c->spec.page_size, .n_pages = c->n_pages[OCTE__FULL], .max_sequences = c->max_sequences};
        return oct_kv_table_create(c->context, &o, &c->table, error);
    }
    const oct_kv_twin_options o = {.struct_size = sizeof(o),
                                   .page_size = c->spec.page_size,
                                   .n_pages_full = c->n_pages[OCTE__FULL],
                                   .n_pages_window = c->n_pages[OCTE__WINDOW],
                                   .max_sequences = c->max_sequences,
                                   .window_tokens = c->window_tokens};
    return oct_kv_twin_create(c->context, &o, &c->twin, error);
}

static bool same_format(const oct_kv_format *a, const oct_kv_format *b)
{
    return a->dtype == b->dtype && a->scale_mode == b->scale_mode && a->scale_dtype == b->scale_dtype && a->rotated == b->rotated;
}

/* The kind of a layer of this group and spec, a new one where there is none; OCTE_KV_MAX_KINDS when there is no room. */
static uint32_t kind_of(octe__cache *c, octe__group group, const oct_kv_spec *spec)
{
    uint32_t i = 0;
    while (i < c->n_kinds && !(c->kinds[i].group == group && same_format(&c->kinds[i].spec.k, &spec->k) && same_format(&c->kinds[i].spec.v, &spec->v))) {
        i++;
    }
    if (i == c->n_kinds && i < OCTE_KV_MAX_KINDS) {
        c->kinds[c->n_kinds++] = (octe__kind){.group = group, .spec = *spec};
    }
    return i;
}

static oct_status sort_layers(octe__cache *c, const octe_model *model, const octe_kv_config *config, oct_error *error)
{
    const octe_model_info *info = octe_model_info_get(model);
    for (int g = 0; g < OCTE__GROUPS; g++) {
        for (uint32_t il = 0; il < c->n_layers; il++) {
            if (octe_model_layer_has_window(model, il) != (g == OCTE__WINDOW)) {
                continue;
            }
            oct_kv_spec spec;
            const oct_status s = octe__kv_spec(info, config, il, &spec, error);
            if (s != OCT_OK) {
                return s;
            }
            const uint32_t kind = kind_of(c, (octe__group)g, &spec);
            if (kind == OCTE_KV_MAX_KINDS) {
                return octe__report(error, OCT_INVALID_ARGUMENT, where, info->path, "the layers differ in more than %d ways in format and window", OCTE_KV_MAX_KINDS);
            }
            c->group[il] = (uint8_t)g;
            c->kind[il] = (uint8_t)kind;
            c->kinds[kind].n_layers++;
            c->n_in_group[g]++;
        }
    }
    return OCT_OK;
}

static oct_status open_pools(octe__cache *c, oct_error *error)
{
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        octe__kind *kind = &c->kinds[i];
        const oct_kv_pool_options o = {.struct_size = sizeof(o), .n_layers = kind->n_layers, .n_pages = c->n_pages[kind->group], .spec = kind->spec};
        const oct_status s = oct_kv_pool_create(c->context, &o, &kind->pool, error);
        if (s != OCT_OK) {
            return s;
        }
    }
    return OCT_OK;
}

static oct_status view_layers(octe__cache *c, oct_error *error)
{
    uint32_t next[OCTE_KV_MAX_KINDS] = {0};
    for (uint32_t il = 0; il < c->n_layers; il++) {
        c->layers[il].struct_size = sizeof(c->layers[il]);
        const oct_status s = oct_kv_pool_layer(c->kinds[c->kind[il]].pool, next[c->kind[il]]++, &c->layers[il], error);
        if (s != OCT_OK) {
            return s;
        }
    }
    return OCT_OK;
}

oct_status octe__cache_open(octe__cache *c, oct_context *context, const octe_model *model, const octe__cache_options *o, oct_error *error)
{
    const octe_model_info *info = octe_model_info_get(model);
    octe_kv_config own = *o->config;
    own.layers = NULL;
    *c = (octe__cache){.context = context, .n_layers = info->n_layers, .max_sequences = o->max_sequences, .window_tokens = o->window_tokens};
    oct_status s = octe__kv_spec(info, &own, 0, &c->spec, error);
    if (s != OCT_OK) {
        return s;
    }
    c->layers = calloc(c->n_layers, sizeof(*c->layers));
    c->group = calloc(c->n_layers, sizeof(*c->group));
    c->kind = calloc(c->n_layers, sizeof(*c->kind));
    if (c->layers == NULL || c->group == NULL || c->kind == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, info->path, "no memory for the records of %u layers", c->n_layers);
    }
    s = sort_layers(c, model, o->config, error);
    if (s == OCT_OK) {
        s = size_pools(c, info, o, error);
    }
    if (s == OCT_OK) {
        s = open_tables(c, error);
    }
    if (s == OCT_OK) {
        s = open_pools(c, error);
    }
    for (uint32_t i = 0; i < 2 * c->n_kinds && s == OCT_OK; i++) {
        s = set_scales(c, info, o->config, i / 2, (int)(i % 2), error);
    }
    return s == OCT_OK ? view_layers(c, error) : s;
}

void octe__cache_close(octe__cache *c)
{
    oct_kv_twin_destroy(c->twin);
    oct_kv_table_destroy(c->table);
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        oct_kv_pool_destroy(c->kinds[i].pool);
    }
    free(c->layers);
    free(c->group);
    free(c->kind);
    *c = (octe__cache){0};
}

/* ---- sequences ---------------------------------------------------------------------------------------------------- */

const oct_kv_table *octe__cache_table(const octe__cache *c, octe__group group)
{
    return c->twin == NULL ? c->table : group == OCTE__FULL ? oct_kv_twin_full(c->twin) : oct_kv_twin_window(c->twin);
}

uint32_t octe__cache_length(const octe__cache *c, uint32_t sequence)
{
    return sequence < c->max_sequences ? oct_kv_table_length(octe__cache_table(c, OCTE__FULL), sequence) : 0;
}

oct_status octe__cache_copy_page(octe__cache *c, octe__group group, int32_t from, int32_t to)
{
    oct_status s = OCT_OK;
    for (uint32_t i = 0; i < c->n_kinds && s == OCT_OK; i++) {
        s = c->kinds[i].group == group ? oct_kv_pool_copy_page(c->kinds[i].pool, from, to) : OCT_OK;
    }
    return s;
}

static oct_status copy_pages(octe__cache *c, const oct_kv_copy copies[OCTE__GROUPS], const uint32_t n_copies[OCTE__GROUPS])
{
    for (int g = 0; g < OCTE__GROUPS; g++) {
        if (n_copies[g] == 0) {
            continue;
        }
        c->n_copied++;
        const oct_status s = octe__cache_copy_page(c, (octe__group)g, copies[g].from, copies[g].to);
        if (s != OCT_OK) {
            return s;
        }
    }
    return OCT_OK;
}

static oct_status out_of_pages(const octe__cache *c, uint32_t sequence, uint32_t n_tokens, oct_error *error)
{
    for (int g = 0; g < OCTE__GROUPS; g++) {
        if (g == OCTE__WINDOW && c->twin == NULL) {
            break;
        }
        const oct_kv_table *table = octe__cache_table(c, (octe__group)g);
        oct_kv_table_stats stats = {.struct_size = sizeof(stats)};
        const int64_t needed = oct_kv_table_pages_needed(table, sequence, n_tokens);
        if (oct_kv_table_stats_get(table, &stats) == OCT_OK && needed > stats.n_free) {
            return octe__report(error, OCT_OUT_OF_PAGES, "octe_engine_step", NULL,
                                "%u more tokens of sequence %u need %" PRId64 " pages of %u, %" PRId64 " of %" PRId64 " are free%s", n_tokens, sequence, needed,
                                c->spec.page_size, stats.n_free, stats.n_pages, g == OCTE__WINDOW ? " in the window pool" : "");
        }
    }
    return octe__report(error, OCT_OUT_OF_PAGES, "octe_engine_step", NULL, "%u more tokens of sequence %u need more pages than are free", n_tokens, sequence);
}

oct_status octe__cache_append(octe__cache *c, uint32_t sequence, uint32_t n_tokens, int32_t *slots, int32_t *slots_window, oct_error *error)
{
    oct_kv_copy copies[OCTE__GROUPS] = {{0, 0}, {0, 0}};
    uint32_t n_copies[OCTE__GROUPS] = {0, 0};
    oct_status s = c->twin != NULL ? oct_kv_twin_append(c->twin, sequence, n_tokens, slots, slots_window, copies, n_copies)
                                   : oct_kv_table_append(c->table, sequence, n_tokens, slots, copies, n_copies);
    if (s == OCT_OUT_OF_PAGES) {
        return out_of_pages(c, sequence, n_tokens, error);
    }
    if (s == OCT_OK) {
        /* At once, so that whatever happens next, and a rollback too, finds the old tokens in the new page. */
        s = copy_pages(c, copies, n_copies);
    }
    return s == OCT_OK ? s : octe__report(error, s, "octe_engine_step", NULL, "sequence %u can't take %u more tokens: %s", sequence, n_tokens, oct_status_message(s));
}

oct_status octe__cache_truncate(octe__cache *c, uint32_t sequence, uint32_t n_tokens)
{
    return c->twin != NULL ? oct_kv_twin_truncate(c->twin, sequence, n_tokens) : oct_kv_table_truncate(c->table, sequence, n_tokens);
}

oct_status octe__cache_share(octe__cache *c, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    return c->twin != NULL ? oct_kv_twin_share(c->twin, from, to, n_tokens) : oct_kv_table_share(c->table, from, to, n_tokens);
}

oct_status octe__cache_free(octe__cache *c, uint32_t sequence)
{
    return c->twin != NULL ? oct_kv_twin_free(c->twin, sequence) : oct_kv_table_free(c->table, sequence);
}

void octe__cache_slide(octe__cache *c, uint32_t sequence)
{
    if (c->twin != NULL) {
        (void)oct_kv_twin_slide(c->twin, sequence);   /* the sequence exists: nothing can fail */
    }
}
