/* problem_select.c: the same sequences in another batch, for what must not depend on the batch. */
#include <stdlib.h>
#include <string.h>

#include "parity/problem.h"

problem_part problem_whole(const problem *all, int32_t sequence)
{
    return (problem_part){ sequence, 0, all->qo_indptr[sequence + 1] - all->qo_indptr[sequence], all->kv_len[sequence], 0 };
}

static int make_lists(problem *view, const problem *all, const problem_part *parts, int32_t n)
{
    const int64_t page_size = all->shape.page_size;
    int64_t pages = 0, at = 0;
    for (int32_t i = 0; i < n; i++)
        pages += (parts[i].kv_len + page_size - 1) / page_size;
    view->qo_indptr = calloc((size_t)n + 1, sizeof *view->qo_indptr);
    view->kv_len = calloc((size_t)n + 1, sizeof *view->kv_len);
    view->page_at = calloc((size_t)n + 1, sizeof *view->page_at);
    view->pages = calloc((size_t)pages + 1, sizeof *view->pages);
    view->table_pages = calloc((size_t)pages + 1, sizeof *view->table_pages);
    if (view->qo_indptr == NULL || view->kv_len == NULL || view->page_at == NULL || view->pages == NULL || view->table_pages == NULL)
        return -1;
    for (int32_t i = 0; i < n; i++) {
        const int64_t own = (parts[i].kv_len + page_size - 1) / page_size, from = all->page_at[parts[i].sequence] + parts[i].first_page;
        memcpy(view->pages + at, all->pages + from, (size_t)own * sizeof *view->pages);
        memcpy(view->table_pages + at, all->pages + from, (size_t)own * sizeof *view->pages);
        at += own;
        view->page_at[i + 1] = at;
        view->kv_len[i] = parts[i].kv_len;
        view->qo_indptr[i + 1] = view->qo_indptr[i] + parts[i].n_rows;
    }
    view->rows = view->qo_indptr[n];
    return 0;
}

/* Contiguous rows; a row's q is all it takes along. */
static int make_rows(problem *view, const problem *all, const problem_part *parts, int32_t n)
{
    const int64_t heads = all->spec.heads_q, dim_k = all->spec.kv.dim_k, dim_v = all->spec.kv.dim_v;
    const uint32_t dtype = all->spec.q_dtype;
    oct_attn_args *a = &view->args;
    a->q_head_stride = dim_k;
    a->q_row_stride = heads * dim_k;
    a->out_head_stride = dim_v;
    a->out_row_stride = heads * dim_v;
    a->lse_head_stride = 1;
    a->lse_row_stride = heads;
    view->out_elements = view->rows * heads * dim_v;
    view->lse_elements = view->rows * heads;
    if (guard_make(&view->q, (size_t)(view->rows * heads * dim_k) * oracle_size_bytes(dtype), GUARD_END) != 0 ||
        guard_make(&view->out, (size_t)view->out_elements * oracle_size_bytes(all->spec.out_dtype), GUARD_END) != 0 ||
        guard_make(&view->lse, (size_t)view->lse_elements * sizeof(float), GUARD_END) != 0)
        return -1;
    for (int32_t i = 0; i < n; i++)
        for (int64_t r = 0; r < parts[i].n_rows; r++)
            for (int64_t h = 0; h < heads; h++)
                for (int64_t d = 0; d < dim_k; d++) {
                    const int64_t from = all->qo_indptr[parts[i].sequence] + parts[i].first_row + r;
                    oracle_put_code(dtype, view->q.at, (view->qo_indptr[i] + r) * a->q_row_stride + h * a->q_head_stride + d,
                                    oracle_code_at(dtype, all->args.q, from * all->args.q_row_stride + h * all->args.q_head_stride + d));
                }
    a->q = view->q.at;
    a->out = view->out.at;
    a->lse = view->lse.at;
    return 0;
}

int problem_select(problem *view, const problem *all, const problem_part *parts, int32_t n)
{
    memset(view, 0, sizeof *view);   /* guards that stay zero are `all`'s to drop */
    view->owner = all->owner != NULL ? all->owner : all;
    view->shape = all->shape;
    view->shape.n_sequences = n;
    view->layer = all->layer;
    view->spec = all->spec;
    view->args = all->args;
    view->args.layer = &view->layer;
    view->n_pages = all->n_pages;
    int bad = make_lists(view, all, parts, n) != 0 || make_rows(view, all, parts, n) != 0;
    const size_t vectors = (size_t)(view->rows * view->spec.heads_q) + 1;
    view->attn = (oracle_attn){ &view->spec, &view->args, (uint32_t)n, view->qo_indptr, view->kv_len, view->page_at, view->pages };
    view->expected.out = malloc(vectors * view->spec.kv.dim_v * sizeof(double));
    view->expected.lse = malloc(vectors * sizeof(double));
    view->expected.v_max = malloc(vectors * sizeof(double));
    view->expected.s_max = malloc(vectors * sizeof(double));
    bad = bad || view->expected.out == NULL || view->expected.lse == NULL || view->expected.v_max == NULL || view->expected.s_max == NULL;
    if (bad)
        problem_drop(view);
    return bad ? -1 : 0;
}
