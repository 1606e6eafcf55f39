/* sampler.c: see sampler.h. */
#include "engine/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include <llama.h>

#include "engine/report.h"
#include "engine/runtime.h"
#include "engine/vocab_state.h"

struct octe_sampler {
    const octe_vocab *vocab;
    struct llama_sampler *chain;
    llama_token_data *candidates;     /* [n_vocab] */
    uint32_t n_vocab;
    bool ignore_eog;
};

static oct_status build_chain(octe_sampler *s, const octe_sampler_options *o)
{
    s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (s->chain == NULL) {
        return OCT_OUT_OF_MEMORY;
    }
    struct llama_sampler *links[5];
    int n = 0;
    if (o->temp <= 0.0f) {
        links[n++] = llama_sampler_init_greedy();
    } else {
        if (o->top_k > 0) {
            links[n++] = llama_sampler_init_top_k(o->top_k);
        }
        if (o->top_p < 1.0f) {
            links[n++] = llama_sampler_init_top_p(o->top_p, 1);
        }
        if (o->min_p > 0.0f) {
            links[n++] = llama_sampler_init_min_p(o->min_p, 1);
        }
        links[n++] = llama_sampler_init_temp(o->temp);
        links[n++] = llama_sampler_init_dist(o->seed);
    }
    for (int i = 0; i < n; i++) {
        if (links[i] == NULL) {
            return OCT_OUT_OF_MEMORY;
        }
        llama_sampler_chain_add(s->chain, links[i]);   /* the chain owns it */
    }
    return OCT_OK;
}

oct_status octe_sampler_create(const octe_vocab *vocab, const octe_sampler_options *o, octe_sampler **sampler, oct_error *error)
{
    static const char where[] = "octe_sampler_create";
    *sampler = NULL;
    if (isnan(o->temp) || isinf(o->temp)) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "temp is %g; must be finite", (double)o->temp);
    }
    if (!(o->top_p >= 0.0f && o->top_p <= 1.0f) || !(o->min_p >= 0.0f && o->min_p <= 1.0f)) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "top_p is %g, min_p %g; must be 0 to 1", (double)o->top_p, (double)o->min_p);
    }
    octe__runtime_start();
    octe_sampler *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a sampler");
    }
    *s = (octe_sampler){.vocab = vocab, .n_vocab = octe_vocab_size(vocab), .ignore_eog = o->ignore_eog};
    s->candidates = malloc(s->n_vocab * sizeof(*s->candidates));
    if (s->candidates == NULL || build_chain(s, o) != OCT_OK) {
        octe_sampler_destroy(s);
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a sampler of %u tokens", octe_vocab_size(vocab));
    }
    *sampler = s;
    return OCT_OK;
}

void octe_sampler_destroy(octe_sampler *s)
{
    if (s == NULL) {
        return;
    }
    if (s->chain != NULL) {
        llama_sampler_free(s->chain);
    }
    free(s->candidates);
    free(s);
}

oct_status octe_sampler_sample(octe_sampler *s, const float *logits, uint32_t n_logits, int32_t *token, oct_error *error)
{
    static const char where[] = "octe_sampler_sample";
    const uint32_t n = n_logits < s->n_vocab ? n_logits : s->n_vocab;
    size_t n_candidates = 0;
    /* What isn't finite never takes part: libllama's softmax would make every probability a NaN of it. */
    for (uint32_t i = 0; i < n; i++) {
        if (isfinite(logits[i]) && !(s->ignore_eog && octe_vocab_is_eog(s->vocab, (int32_t)i))) {
            s->candidates[n_candidates++] = (llama_token_data){(llama_token)i, logits[i], 0.0f};
        }
    }
    if (n_candidates == 0) {
        return octe__report(error, OCT_BAD_DATA, where, NULL, "none of %u logits is finite and allowed", n_logits);
    }
    llama_token_data_array candidates = {s->candidates, n_candidates, -1, false};
    llama_sampler_apply(s->chain, &candidates);
    if (candidates.selected < 0 || (size_t)candidates.selected >= candidates.size) {
        return octe__report(error, OCT_BAD_DATA, where, NULL, "libllama's samplers chose none of %zu tokens", n_candidates);
    }
    *token = candidates.data[candidates.selected].id;
    llama_sampler_accept(s->chain, *token);
    return OCT_OK;
}
