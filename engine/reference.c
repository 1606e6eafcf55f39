/* reference.c: see reference.h. */
#include "engine/reference.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ggml.h>
#include <llama.h>

#include "engine/report.h"
#include "engine/runtime.h"
#include "engine/vocab_check.h"
#include "host/threads.h"

enum { DEFAULT_ROWS = 512 };

struct octe_reference {
    struct llama_model *model;
    struct llama_context *context;
    struct ggml_threadpool *threads;
    struct llama_batch batch;
    bool has_batch;
    octe_reference_options options;   /* resolved */
    enum ggml_type type;
    uint32_t n_vocab;
    uint32_t *lengths;                /* [max_sequences] */
    octe_model_info info;
};

static enum ggml_type type_of(uint32_t cache)
{
    switch (cache) {
    case OCTE_REFERENCE_F16:
        return GGML_TYPE_F16;
    case OCTE_REFERENCE_F32:
        return GGML_TYPE_F32;
    case OCTE_REFERENCE_BF16:
        return GGML_TYPE_BF16;
    case OCTE_REFERENCE_Q8_0:
        return GGML_TYPE_Q8_0;
    default:
        return GGML_TYPE_COUNT;
    }
}

static oct_status resolve(octe_reference *r, const octe_reference_options *given, oct_error *error)
{
    octe_reference_options *o = &r->options;
    *o = given != NULL ? *given : (octe_reference_options){0};
    o->n_threads = o->n_threads != 0 ? o->n_threads : oct__threads_usable_cpus();
    o->max_sequences = o->max_sequences != 0 ? o->max_sequences : 1;
    o->max_step_rows = o->max_step_rows != 0 ? o->max_step_rows : DEFAULT_ROWS;
    o->max_context_tokens = o->max_context_tokens != 0 ? o->max_context_tokens : r->info.n_ctx_train;
    r->type = type_of(o->cache);
    if (r->type == GGML_TYPE_COUNT || o->flash > OCTE_REFERENCE_FLASH_ON || o->max_sequences > llama_max_parallel_sequences() ||
        o->max_context_tokens > INT32_MAX / o->max_sequences) {
        return octe__report(error, OCT_INVALID_ARGUMENT, "octe_reference_open", NULL, "cache is %u, flash %u, max_sequences %u, max_context_tokens %u; out of range",
                            o->cache, o->flash, o->max_sequences, o->max_context_tokens);
    }
    return OCT_OK;
}

static oct_status open_context(octe_reference *r, const char *path, oct_error *error)
{
    static const char where[] = "octe_reference_open";
    const octe_reference_options *o = &r->options;
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = !o->no_repack;
    octe__runtime_clear();
    r->model = llama_model_load_from_file(path, mp);
    if (r->model == NULL) {
        return octe__report(error, OCT_UNSUPPORTED, where, path, "libllama can't load the model: %s", octe__runtime_complaint());
    }
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = o->max_context_tokens * o->max_sequences;
    cp.n_seq_max = o->max_sequences;
    cp.n_batch = cp.n_ubatch = o->max_step_rows;
    cp.n_threads = cp.n_threads_batch = (int32_t)o->n_threads;
    cp.type_k = cp.type_v = r->type;
    /* A quantised V lies in rows that only flash attention reads. */
    cp.flash_attn_type = o->flash == OCTE_REFERENCE_FLASH_OFF  ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                         : o->flash == OCTE_REFERENCE_FLASH_ON ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                         : ggml_is_quantized(r->type)          ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                                               : LLAMA_FLASH_ATTN_TYPE_AUTO;
    cp.swa_full = false;
    cp.no_perf = true;
    r->context = llama_init_from_model(r->model, cp);
    if (r->context == NULL) {
        return octe__report(error, OCT_UNSUPPORTED, where, path, "libllama can't make a context: %s", octe__runtime_complaint());
    }
    /* As llama.cpp's own programs do: without one, libllama starts and ends its threads in every step. */
    r->threads = octe__runtime_threads(o->n_threads);
    if (r->threads == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, path, "ggml can't start %u threads", o->n_threads);
    }
    llama_attach_threadpool(r->context, r->threads, r->threads);
    r->n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(r->model));
    r->batch = llama_batch_init((int32_t)o->max_step_rows, 0, 1);
    r->has_batch = r->batch.token != NULL;
    r->lengths = calloc(o->max_sequences, sizeof(*r->lengths));
    return r->has_batch && r->lengths != NULL ? OCT_OK : octe__report(error, OCT_OUT_OF_MEMORY, where, path, "no memory for batches of %u rows", o->max_step_rows);
}

oct_status octe_reference_open(const char *path, const octe_reference_options *options, octe_reference **reference, oct_error *error)
{
    *reference = NULL;
    /* libllama aborts over what our own reader words: let that one go first. */
    octe_model *model;
    const octe_model_options plain = {.no_repack = true};
    oct_status s = octe_model_open(path, &plain, &model, error);
    if (s != OCT_OK) {
        return s;
    }
    octe_reference *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        octe_model_close(model);
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_reference_open", path, "no memory for the reference's record");
    }
    r->info = *octe_model_info_get(model);
    r->info.path = r->info.name = NULL;   /* they live as long as that model */
    octe_model_close(model);
    s = resolve(r, options, error);
    if (s == OCT_OK) {
        s = open_context(r, path, error);
    }
    if (s != OCT_OK) {
        octe_reference_close(r);
        return s;
    }
    *reference = r;
    return OCT_OK;
}

void octe_reference_close(octe_reference *r)
{
    if (r == NULL) {
        return;
    }
    if (r->has_batch) {
        llama_batch_free(r->batch);
    }
    if (r->context != NULL) {
        llama_free(r->context);
    }
    if (r->threads != NULL) {
        ggml_threadpool_free(r->threads);
    }
    if (r->model != NULL) {
        llama_model_free(r->model);
    }
    free(r->lengths);
    free(r);
}

static oct_status fill_batch(octe_reference *r, const octe_part *parts, uint32_t n_parts, uint32_t *n_logits, oct_error *error)
{
    static const char where[] = "octe_reference_step";
    struct llama_batch *b = &r->batch;
    b->n_tokens = 0;
    *n_logits = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        const octe_part *p = &parts[i];
        if (p->sequence >= r->options.max_sequences || p->n_tokens == 0 || p->n_logits > p->n_tokens ||
            p->n_tokens > r->options.max_step_rows - (uint32_t)b->n_tokens || p->n_tokens > r->options.max_context_tokens - r->lengths[p->sequence]) {
            return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: sequence %u, %u tokens, logits of %u: beyond max_sequences %u, max_step_rows %u or the context of %u",
                                i, p->sequence, p->n_tokens, p->n_logits, r->options.max_sequences, r->options.max_step_rows, r->options.max_context_tokens);
        }
        for (uint32_t t = 0; t < p->n_tokens; t++) {
            const int32_t row = b->n_tokens++;
            b->token[row] = p->tokens[t];
            b->pos[row] = (llama_pos)(r->lengths[p->sequence] + t);
            b->n_seq_id[row] = 1;
            b->seq_id[row][0] = (llama_seq_id)p->sequence;
            b->logits[row] = t + p->n_logits >= p->n_tokens;
            *n_logits += b->logits[row] != 0;
        }
    }
    return b->n_tokens > 0 ? OCT_OK : octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the step has no part");
}

oct_status octe_reference_step(octe_reference *r, const octe_part *parts, uint32_t n_parts, const float **logits, oct_error *error)
{
    static const char where[] = "octe_reference_step";
    uint32_t n_logits;
    const oct_status s = fill_batch(r, parts, n_parts, &n_logits, error);
    if (logits != NULL) {
        *logits = NULL;
    }
    if (s != OCT_OK) {
        return s;
    }
    octe__runtime_clear();
    const int32_t code = llama_decode(r->context, r->batch);
    if (code != 0) {
        return octe__report(error, code == 1 ? OCT_OUT_OF_PAGES : OCT_DEVICE_FAULT, where, NULL, "libllama failed with %d: %s", code, octe__runtime_complaint());
    }
    llama_synchronize(r->context);
    for (uint32_t i = 0; i < n_parts; i++) {
        r->lengths[parts[i].sequence] += parts[i].n_tokens;
    }
    if (logits != NULL && n_logits > 0) {
        *logits = llama_get_logits(r->context);
    }
    return OCT_OK;
}

oct_status octe_reference_prefill(octe_reference *r, uint32_t sequence, const int32_t *tokens, uint32_t n_tokens, const float **logits, oct_error *error)
{
    for (uint32_t done = 0; done < n_tokens;) {
        const uint32_t most = r->options.max_step_rows, n = n_tokens - done < most ? n_tokens - done : most;
        const bool last = done + n == n_tokens;
        const octe_part part = {.sequence = sequence, .n_tokens = n, .tokens = tokens + done, .n_logits = last && logits != NULL};
        const oct_status s = octe_reference_step(r, &part, 1, last ? logits : NULL, error);
        if (s != OCT_OK) {
            return s;
        }
        done += n;
    }
    return OCT_OK;
}

uint32_t octe_reference_length(const octe_reference *r, uint32_t sequence) { return sequence < r->options.max_sequences ? r->lengths[sequence] : 0; }

oct_status octe_reference_truncate(octe_reference *r, uint32_t sequence, uint32_t n_tokens, oct_error *error)
{
    static const char where[] = "octe_reference_truncate";
    if (sequence >= r->options.max_sequences || n_tokens > octe_reference_length(r, sequence)) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "sequence %u has %u tokens; it can't be cut to %u", sequence, octe_reference_length(r, sequence),
                            n_tokens);
    }
    if (r->info.n_layers_window > 0) {
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "the model has window layers, whose cells of dropped tokens have taken the place of older ones");
    }
    if (!llama_memory_seq_rm(llama_get_memory(r->context), (llama_seq_id)sequence, (llama_pos)n_tokens, -1)) {
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "libllama can't cut sequence %u", sequence);
    }
    r->lengths[sequence] = n_tokens;
    return OCT_OK;
}

oct_status octe_reference_free(octe_reference *r, uint32_t sequence, oct_error *error)
{
    if (sequence >= r->options.max_sequences) {
        return octe__report(error, OCT_INVALID_ARGUMENT, "octe_reference_free", NULL, "sequence is %u; ids are 0 to %u", sequence, r->options.max_sequences - 1);
    }
    /* A whole sequence can always be removed. */
    (void)llama_memory_seq_rm(llama_get_memory(r->context), (llama_seq_id)sequence, -1, -1);
    r->lengths[sequence] = 0;
    return OCT_OK;
}

void octe_reference_clear(octe_reference *r)
{
    llama_memory_clear(llama_get_memory(r->context), true);
    memset(r->lengths, 0, r->options.max_sequences * sizeof(*r->lengths));
}

uint32_t octe_reference_n_vocab(const octe_reference *r) { return r->n_vocab; }

void octe_reference_capacity(const octe_reference *r, octe_kv_capacity *capacity)
{
    const octe_model_info *i = &r->info;
    const uint64_t gib = (uint64_t)1 << 30, row = ggml_row_size(r->type, (int64_t)i->n_heads_kv * i->head_dim);
    const uint64_t full = (i->n_layers - i->n_layers_window) * 2 * row, window = i->n_layers_window * 2 * row;
    *capacity = (octe_kv_capacity){.bytes_per_token_full = full, .bytes_per_token_window = window, .bytes_per_token = full + window};
    capacity->tokens_per_gib = (int64_t)(gib / (full + window));
    capacity->tokens_per_gib_window = capacity->tokens_per_gib;
    /* Its window cache keeps the window and one batch: here the least it can do, a window and a token. */
    const uint64_t kept = (uint64_t)i->window_tokens + 1;
    if (window > 0 && (uint64_t)capacity->tokens_per_gib > kept) {
        capacity->tokens_per_gib_window = full > 0 ? (int64_t)((gib - kept * window) / full) : INT32_MAX;
    }
}

/* ---- f32 copies ---------------------------------------------------------------------------------------------------- */

oct_status octe_f32_copy(const char *in, const char *out, uint32_t n_threads, oct_error *error)
{
    static const char where[] = "octe_f32_copy";
    octe_model *model;
    const octe_model_options plain = {.no_repack = true};
    oct_status s = octe_model_open(in, &plain, &model, error);
    if (s == OCT_OK) {
        octe_model_close(model);
        s = octe__vocab_check_file(in, error);
    }
    if (s != OCT_OK) {
        return s;
    }
    const size_t size = strlen(out) + 32;
    char *part = malloc(size);
    if (part == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, out, "no memory for its name");
    }
    /* In the same folder, so that the rename is one step; with the process in the name, so that two writers don't meet. */
    snprintf(part, size, "%s.%ld.part", out, (long)getpid());
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_ALL_F32;
    params.allow_requantize = true;
    params.nthread = (int32_t)(n_threads != 0 ? n_threads : oct__threads_usable_cpus());
    octe__runtime_clear();
    if (llama_model_quantize(in, part, &params) != 0) {
        s = octe__report(error, OCT_IO_ERROR, where, out, "libllama can't write the f32 copy: %s", octe__runtime_complaint());
    } else {
        /* libllama's streams report a full disk only sometimes: what was written is read again. */
        s = octe_model_open(part, &plain, &model, error);
        if (s == OCT_OK) {
            octe_model_close(model);
            if (rename(part, out) != 0) {
                s = octe__report(error, OCT_IO_ERROR, where, out, "can't be put in place");
            }
        }
    }
    if (s != OCT_OK) {
        (void)unlink(part);
    }
    free(part);
    return s;
}
