/* write.c: times the library's fused quantise and paged store of K and V on the GPU at hand, 8 heads of 128, pages of 16, the way the peers' kit does: one CUDA
 * graph over sets of operands that hold 500 MB together (at most 64 sets, so that 1 and 64 tokens stay in L2, for peers too), medians of 9. The floor is the same
 * bytes, read and written, at the copy rate of the same run. Each form is also written by kv_write and the pages compared, byte by byte.
 * Last the merge of partial results, beside attn_merge.
 *
 * usage: write CODE.cubin [-s FORM] [-r REPEATS] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/launch_write_sm90a.h"
#include "gpu.h"
#include "number/number.h"

enum { HEADS = 8, DIM = 128, PAGE = 16, SETS_MAX = 64 };

typedef struct form {
    const char *name;
    uint32_t src, dtype, scale_mode, layout, rotated, window, counts, rope;
    double must[4], aim[4];          /* of the issue, for 1, 64, 1,024 and 16,384 tokens */
} form;

static const form forms[] = {
    { "bf16 to e4m3, NHD", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 1.9, 2.2, 4.0, 30 }, { 1.6, 1.8, 3.2, 26 } },
    { "bf16 to e4m3, HND", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_HND, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to e4m3, V5D", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_V5D, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to e4m3, head scales", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to e4m3, token x head", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to e4m3, channel scales", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_CHANNEL, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to i8, token x head", OCT_DTYPE_BF16, OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to i8, K rotated", OCT_DTYPE_BF16, OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_LAYOUT_NHD, 1, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to e5m2, NHD", OCT_DTYPE_BF16, OCT_DTYPE_E5M2, OCT_SCALE_LAYER, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "f16 to e4m3, NHD", OCT_DTYPE_F16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "f32 to e4m3, NHD", OCT_DTYPE_F32, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to bf16, NHD", OCT_DTYPE_BF16, OCT_DTYPE_BF16, OCT_SCALE_NONE, OCT_LAYOUT_NHD, 0, 0, 0, 0, { 0 }, { 0 } },
    { "bf16 to e4m3, counted", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_NHD, 0, 0, 1, 0, { 0 }, { 0 } },
    { "bf16 to e4m3, two pools", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_NHD, 0, 1, 0, 0, { 0 }, { 0 } },
    { "bf16 to e4m3, RoPE", OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_LAYOUT_NHD, 0, 0, 0, 1, { 0 }, { 0 } },
};
static const int all_tokens[] = { 1, 64, 1024, 16384 };

typedef struct set { void *k, *v, *slots, *pages[2][2], *scales[2][2]; } set;

typedef struct job {
    const form *form;
    int64_t n_tokens, n_pages;
    oct_kv_layer layer;
    size_t page_bytes, scale_bytes;    /* of all pages, each side */
    void *positions, *counts;
    set sets[SETS_MAX];
    int is_quick;
    void *from, *to, *left;            /* the copy */
} job;

static void write_set(void *of, int i)
{
    job *j = of;
    const set *s = &j->sets[i];
    oct_kv_layer layers[2] = { j->layer, j->layer };
    const oct_rope rope = { .struct_size = sizeof rope, .n_dims = DIM, .base = 10000.0f, .position_scale = 1.0f };
    oct_kv_write_args a;
    oct__kv_write_params plain;
    oct__kv_write_sm90a_params quick;
    oct__dev_launch launch;
    const oct__dev_chip chip = gpu_chip();
    memset(&a, 0, sizeof a);
    for (int p = 0; p < 2; p++) {
        layers[p].k = s->pages[p][0];
        layers[p].v = s->pages[p][1];
        layers[p].k_token_scale = s->scales[p][0];
        layers[p].v_token_scale = s->scales[p][1];
    }
    a.struct_size = sizeof a;
    a.layer = &layers[0];
    a.slots = s->slots;
    if (j->form->window) {
        a.layer_window = &layers[1];
        a.slots_window = s->slots;
    }
    a.n_tokens = j->n_tokens;
    a.src_dtype = j->form->src;
    a.k = s->k;
    a.v = s->v;
    a.k_token_stride = a.v_token_stride = HEADS * DIM;
    a.k_head_stride = a.v_head_stride = DIM;
    if (j->form->rope) {
        a.rope = &rope;
        a.positions = j->positions;
    }
    if (j->form->counts) {
        a.k_counts = j->counts;
        a.v_counts = (oct_kv_counts *)j->counts + 1;
        a.n_counts = 1;
    }
    if (j->is_quick) {
        oct__dev_pack_kv_write_sm90a(&chip, &a, NULL, &quick, &launch);
        gpu_run(&launch, &quick);
    } else {
        oct__dev_pack_kv_write(&chip, &a, NULL, &plain, &launch);
        gpu_run(&launch, &plain);
    }
}

static uint32_t random_state = 1;
static uint32_t draw(void) { return random_state = random_state * 1664525u + 1013904223u; }
static float normal(void)
{
    double sum = 0.0;
    for (int i = 0; i < 12; i++)
        sum += (double)(draw() >> 8) / 16777216.0;
    return (float)(sum - 6.0);
}

static uint32_t bytes_of(uint32_t dtype) { return dtype >= OCT_DTYPE_E4M3FN ? 1 : dtype == OCT_DTYPE_F32 ? 4 : 2; }

/* One array of drawn values for all sets, each of which begins elsewhere in it. */
static void *source_of(uint32_t src, size_t elements)
{
    const size_t n = 1 << 20, size = bytes_of(src);
    unsigned char *block = malloc(n * size), *all = malloc(elements * size);
    for (size_t i = 0; i < n; i++) {
        const float x = normal();
        if (src == OCT_DTYPE_F32)
            ((float *)(void *)block)[i] = x;
        else
            ((uint16_t *)(void *)block)[i] = src == OCT_DTYPE_F16 ? oct__f16_from_f32(x) : oct__bf16_from_f32(x);
    }
    for (size_t at = 0; at < elements; at += n)
        memcpy(all + at * size, block, (elements - at < n ? elements - at : n) * size);
    void *there = gpu_upload(all, elements * size);
    free(block);
    free(all);
    return there;
}

static size_t differing(const void *a, const void *b, size_t n)
{
    unsigned char *x = malloc(2 * n), *y = x + n;
    size_t count = 0;
    gpu_copy_out(x, a, n);
    gpu_copy_out(y, b, n);
    for (size_t i = 0; i < n; i++)
        count += x[i] != y[i];
    free(x);
    return count;
}

/* Bytes that the two kernels leave differently in set 0 and set 1, which get the same source. */
static size_t compare_kernels(job *j)
{
    const set kept = j->sets[1];
    size_t off = 0;
    set *a = &j->sets[0], *b = &j->sets[1];
    b->k = a->k, b->v = a->v, b->slots = a->slots;
    j->is_quick = 0;
    write_set(j, 0);
    j->is_quick = 1;
    write_set(j, 1);
    for (int p = 0; p < 2; p++)
        for (int side = 0; side < 2; side++) {
            if (a->pages[p][side] != NULL)
                off += differing(a->pages[p][side], b->pages[p][side], j->page_bytes);
            if (a->scales[p][side] != NULL)
                off += differing(a->scales[p][side], b->scales[p][side], j->scale_bytes);
        }
    *b = kept;
    return off;
}

static void measure(const form *f, int at, double copy_rate, int repeats)
{
    static job j;
    const int64_t n_tokens = all_tokens[at];
    const uint32_t src_bytes = bytes_of(f->src), bytes = bytes_of(f->dtype);
    const double all_bytes = 2.0 * (double)n_tokens * HEADS * DIM * (src_bytes + bytes * (f->window ? 2 : 1));
    int sets = (int)(500e6 / all_bytes);
    sets = sets < 4 ? 4 : sets > SETS_MAX ? SETS_MAX : sets;
    memset(&j, 0, sizeof j);
    j.form = f;
    j.n_tokens = n_tokens;
    j.n_pages = (n_tokens + PAGE - 1) / PAGE + 8;
    oct_kv_spec *spec = &j.layer.spec;
    j.layer.struct_size = sizeof j.layer;
    spec->struct_size = sizeof *spec;
    spec->heads = HEADS;
    spec->dim_k = spec->dim_v = DIM;
    spec->page_size = PAGE;
    spec->layout = f->layout;
    spec->k.dtype = spec->v.dtype = f->dtype;
    spec->k.scale_mode = spec->v.scale_mode = f->scale_mode;
    spec->k.scale_dtype = spec->v.scale_dtype = f->scale_mode == OCT_SCALE_TOKEN_HEAD ? OCT_DTYPE_F32 : 0;
    spec->k.rotated = f->rotated;
    j.layer.n_pages = j.n_pages;
    j.layer.k_page_stride = j.layer.v_page_stride = PAGE * HEADS * DIM;
    j.layer.k_token_stride = j.layer.v_token_stride = f->layout == OCT_LAYOUT_NHD ? HEADS * DIM : DIM;
    j.layer.k_head_stride = j.layer.v_head_stride = f->layout == OCT_LAYOUT_NHD ? DIM : PAGE * DIM;
    j.layer.k_scale_page_stride = j.layer.v_scale_page_stride = PAGE * HEADS;
    float scales[HEADS * DIM];
    for (int i = 0; i < HEADS * DIM; i++)
        scales[i] = f->scale_mode == OCT_SCALE_LAYER ? 0.05f : 0.04f + 0.02f * (float)(draw() >> 8) / 16777216.0f;
    if (f->scale_mode != OCT_SCALE_NONE && f->scale_mode != OCT_SCALE_TOKEN_HEAD)
        j.layer.k_scale = j.layer.v_scale = gpu_upload(scales, sizeof scales);
    j.page_bytes = (size_t)j.n_pages * PAGE * HEADS * DIM * bytes;
    j.scale_bytes = f->scale_mode == OCT_SCALE_TOKEN_HEAD ? (size_t)j.n_pages * PAGE * HEADS * 4 : 0;
    const size_t elements = (size_t)n_tokens * HEADS * DIM, source_bytes = elements * src_bytes;
    unsigned char *source = source_of(f->src, 2 * elements * (size_t)sets), *pages = gpu_alloc(j.page_bytes * 4 * (size_t)sets);
    gpu_fill(pages, 0, j.page_bytes * 4 * (size_t)sets);
    unsigned char *token_scales = j.scale_bytes > 0 ? gpu_alloc(j.scale_bytes * 4 * (size_t)sets) : NULL;
    if (token_scales != NULL)
        gpu_fill(token_scales, 0, j.scale_bytes * 4 * (size_t)sets);
    const int64_t n_slots = j.n_pages * PAGE;
    int32_t *order = malloc((size_t)n_slots * sizeof *order), *positions = malloc((size_t)n_tokens * sizeof *positions);
    for (int64_t i = 0; i < n_slots; i++)
        order[i] = (int32_t)i;
    for (int64_t i = n_slots - 1; i > 0; i--) {
        const int64_t k = (int64_t)(((uint64_t)draw() * (uint64_t)(i + 1)) >> 32);
        const int32_t t = order[i];
        order[i] = order[k], order[k] = t;
    }
    for (int64_t i = 0; i < n_tokens; i++)
        positions[i] = (int32_t)i;
    j.positions = gpu_upload(positions, (size_t)n_tokens * sizeof *positions);
    j.counts = gpu_alloc(2 * sizeof(oct_kv_counts));
    gpu_fill(j.counts, 0, 2 * sizeof(oct_kv_counts));
    for (int i = 0; i < sets; i++) {
        set *s = &j.sets[i];
        s->k = source + 2 * (size_t)i * source_bytes;
        s->v = source + (2 * (size_t)i + 1) * source_bytes;
        s->slots = gpu_upload(order, (size_t)n_tokens * sizeof *order);
        for (int p = 0; p < 2; p++)
            for (int side = 0; side < 2; side++) {
                s->pages[p][side] = pages + (size_t)(4 * i + 2 * p + side) * j.page_bytes;
                s->scales[p][side] = token_scales != NULL ? token_scales + (size_t)(4 * i + 2 * p + side) * j.scale_bytes : NULL;
            }
    }
    const size_t off = compare_kernels(&j);
    double least, most;
    j.is_quick = 0;
    const double plain = gpu_time(write_set, &j, sets, repeats, NULL, NULL);
    j.is_quick = 1;
    const double us = gpu_time(write_set, &j, sets, repeats, &least, &most);
    printf("%-30s %6lld tokens  ours %7.2f (%.2f to %.2f)  kv_write %7.2f  floor %6.2f  %5.0f GB/s", f->name, (long long)n_tokens, us, least, most, plain,
           all_bytes / copy_rate * 1e6, all_bytes / us * 1e-3);
    if (f->must[at] > 0)
        printf("  must %.1f aim %.1f", f->must[at], f->aim[at]);
    printf(off == 0 ? "\n" : "  %zu bytes DIFFER\n", off);
    fflush(stdout);
    for (int i = 0; i < sets; i++)
        gpu_free(j.sets[i].slots);
    gpu_free(source);
    gpu_free(pages);
    gpu_free(token_scales);
    gpu_free(j.positions);
    gpu_free(j.counts);
    gpu_free((void *)(uintptr_t)j.layer.k_scale);
    free(order);
    free(positions);
}

/* ---- the merge --------------------------------------------------------------------------------------------------------------- */

enum { MERGE_PARTS = 8, MERGE_ROWS = 2048, MERGE_HEADS = 32 };

typedef struct merge_job { oct_attn_merge_args args; int is_quick; } merge_job;

static void merge_all(void *of, int i)
{
    const merge_job *j = of;
    const oct__dev_chip chip = gpu_chip();
    oct__merge_params plain;
    oct__merge_sm90a_params quick;
    oct__dev_launch launch;
    (void)i;
    if (j->is_quick) {
        oct__dev_pack_merge_sm90a(&chip, &j->args, &quick, &launch);
        gpu_run(&launch, &quick);
    } else {
        oct__dev_pack_merge(&chip, &j->args, &plain, &launch);
        gpu_run(&launch, &plain);
    }
}

/* 8 parts of 2,048 rows of 32 heads of 128. */
static void measure_merge(double copy_rate, int repeats)
{
    merge_job j = { .is_quick = 1 };
    oct_attn_merge_args *a = &j.args;
    const size_t vectors = (size_t)MERGE_ROWS * MERGE_HEADS, n = vectors * DIM;
    float *lse = malloc(MERGE_PARTS * vectors * sizeof *lse), *merged[2] = { malloc(n * 4), malloc(n * 4) };
    for (size_t i = 0; i < MERGE_PARTS * vectors; i++)
        lse[i] = normal();
    void *out = source_of(OCT_DTYPE_F32, MERGE_PARTS * n), *lse_at = gpu_upload(lse, MERGE_PARTS * vectors * sizeof *lse), *to = gpu_alloc(n * 4);
    a->struct_size = sizeof *a;
    a->n_parts = MERGE_PARTS;
    a->rows = MERGE_ROWS;
    a->heads = MERGE_HEADS;
    a->dim = DIM;
    a->out = out;
    a->lse = lse_at;
    a->merged = to;
    a->out_head_stride = a->merged_head_stride = DIM;
    a->out_row_stride = a->merged_row_stride = MERGE_HEADS * DIM;
    a->out_part_stride = (int64_t)n;
    a->lse_head_stride = 1;
    a->lse_row_stride = MERGE_HEADS;
    a->lse_part_stride = (int64_t)vectors;
    const double us = gpu_time(merge_all, &j, 1, repeats, NULL, NULL);
    gpu_copy_out(merged[0], to, n * 4);
    j.is_quick = 0;
    const double plain = gpu_time(merge_all, &j, 1, repeats, NULL, NULL);
    gpu_copy_out(merged[1], to, n * 4);
    double worst = 0.0;
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)merged[0][i] - (double)merged[1][i]));
    const double bytes = (MERGE_PARTS + 1.0) * ((double)n + (double)vectors) * 4.0;
    printf("merge of 8 parts, 2,048 rows x 32 heads x 128: ours %.1f  attn_merge %.1f  floor %.1f  %.0f GB/s  differ by %.1e\n", us, plain, bytes / copy_rate * 1e6,
           bytes / us * 1e-3, worst);
    gpu_free(out);
    gpu_free(lse_at);
    gpu_free(to);
    free(lse);
    free(merged[0]);
    free(merged[1]);
}

/* ---- the copy ---------------------------------------------------------------------------------------------------------------- */

static const size_t copy_bytes = (size_t)1 << 30;

static void copy_all(void *of, int i)
{
    job *j = of;
    const oct__dev_chip chip = gpu_chip();
    oct__measure_params params;
    oct__dev_launch launch;
    (void)i;
    oct__dev_pack_measure(&chip, j->from, j->to, j->left, copy_bytes / OCT__MEASURE_STEP, 0, &params, &launch);
    gpu_run(&launch, &params);
}

/* Bytes a second, read and written. */
static double measure_copy(int repeats)
{
    job j = { 0 };
    const oct__dev_chip chip = gpu_chip();
    j.from = gpu_alloc(copy_bytes);
    j.to = gpu_alloc(copy_bytes);
    j.left = gpu_alloc((size_t)oct__dev_measure_words(&chip) * 4);
    gpu_fill(j.from, 0x5A, copy_bytes);
    const double us = gpu_time(copy_all, &j, 1, repeats, NULL, NULL);
    gpu_free(j.from);
    gpu_free(j.to);
    gpu_free(j.left);
    return 2.0 * (double)copy_bytes / us * 1e6;
}

int main(int argc, char **argv)
{
    const char *only = "";
    int repeats = 9;
    if (argc < 2)
        return fprintf(stderr, "usage: write CODE.cubin [-s FORM] [-r REPEATS]\n"), 2;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "-s") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "-r") == 0)
            repeats = atoi(argv[i + 1]);
    }
    gpu_open(argv[1]);
    const double copy_rate = measure_copy(repeats);
    printf("%s; microseconds, median of %d; copy %.0f GB/s\n", gpu_name(), repeats, copy_rate * 1e-9);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (int at = 0; at < 4; at++)
            if (strstr(forms[i].name, only) != NULL)
                measure(&forms[i], at, copy_rate, repeats);
    if (strstr("merge", only) != NULL)
        measure_merge(copy_rate, repeats);
    return 0;
}
