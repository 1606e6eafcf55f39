/* sampler.c: see sampler.h. */
#include "engine/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#include "engine/report.h"
#include "engine/runtime.h"
#include "engine/vocab_state.h"

struct octe_sampler {
    const octe_vocab *vocab;
    struct llama_sampler *chain;
    llama_token_data *candidates;     /* [n_vocab], from the first token on: what waits for its turn must not take megabytes */
    uint32_t n_vocab;
    bool ignore_eog;
    octe_logit_bias *bias;            /* [n_bias] by token */
    uint32_t n_bias;
};

static int by_token(const void *a, const void *b)
{
    const int32_t x = ((const octe_logit_bias *)a)->token, y = ((const octe_logit_bias *)b)->token;
    return (x > y) - (x < y);
}

/* Blanks are bounded: a model that likes them would write nothing else. */
const char octe_grammar_json_object[] =
    "root ::= object\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" blank ( member ( \",\" blank member )* )? \"}\"\n"
    "member ::= string blank \":\" blank value blank\n"
    "array ::= \"[\" blank ( value blank ( \",\" blank value blank )* )? \"]\"\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4} ) )* \"\\\"\"\n"
    "number ::= \"-\"? ( \"0\" | [1-9] [0-9]{0,15} ) ( \".\" [0-9]{1,15} )? ( [eE] [-+]? [0-9]{1,3} )?\n"
    "blank ::= \" \"? | \"\\n\" \" \"{0,20}\n";

static oct_status build_chain(octe_sampler *s, const octe_sampler_options *o)
{
    s->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    /* Not libllama's: where a token is left out before, it looks for each biased one among all candidates. */
    s->bias = o->n_bias > 0 ? malloc(o->n_bias * sizeof(*s->bias)) : NULL;
    if (s->chain == NULL || (o->n_bias > 0 && s->bias == NULL)) {
        return OCT_OUT_OF_MEMORY;
    }
    if (o->n_bias > 0) {
        memcpy(s->bias, o->bias, o->n_bias * sizeof(*s->bias));
        qsort(s->bias, o->n_bias, sizeof(*s->bias), by_token);
        s->n_bias = o->n_bias;
    }
    struct llama_sampler *links[8];
    int n = 0;
    if (o->penalty_tokens > 0 && (o->frequency_penalty != 0.0f || o->presence_penalty != 0.0f)) {
        links[n++] = llama_sampler_init_penalties((int32_t)s->n_vocab, (int32_t)o->penalty_tokens, 1.0f, o->frequency_penalty, o->presence_penalty);
    }
    if (o->grammar != NULL) {
        struct llama_sampler *const grammar = llama_sampler_init_grammar(s->vocab->vocab, o->grammar, "root");
        if (grammar == NULL) {
            for (int i = 0; i < n; i++) {
                llama_sampler_free(links[i]);
            }
            return OCT_INVALID_ARGUMENT;
        }
        links[n++] = grammar;
    }
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
        /* libllama takes its default seed for none. */
        links[n++] = llama_sampler_init_dist(o->seed != LLAMA_DEFAULT_SEED ? o->seed : 0x9E3779B9u);
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
    if (!isfinite(o->frequency_penalty) || !isfinite(o->presence_penalty) || o->penalty_tokens > INT32_MAX) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "frequency_penalty is %g, presence_penalty %g; must be finite", (double)o->frequency_penalty,
                            (double)o->presence_penalty);
    }
    for (uint32_t i = 0; i < o->n_bias; i++) {
        if (o->bias[i].token < 0 || (uint32_t)o->bias[i].token >= octe_vocab_size(vocab) || !isfinite(o->bias[i].bias)) {
            return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "a bias of %g for token %" PRId32 "; must be finite, for tokens 0 to %u", (double)o->bias[i].bias,
                                o->bias[i].token, octe_vocab_size(vocab) - 1);
        }
    }
    octe__runtime_start();
    octe_sampler *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a sampler");
    }
    *s = (octe_sampler){.vocab = vocab, .n_vocab = octe_vocab_size(vocab), .ignore_eog = o->ignore_eog};
    const oct_status status = build_chain(s, o);
    if (status != OCT_OK) {
        octe_sampler_destroy(s);
        return status == OCT_INVALID_ARGUMENT ? octe__report(error, status, where, NULL, "the grammar can't be read")
                                              : octe__report(error, status, where, NULL, "no memory for a sampler of %u tokens", octe_vocab_size(vocab));
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
    free(s->bias);
    free(s);
}

oct_status octe_sampler_sample(octe_sampler *s, const float *logits, uint32_t n_logits, int32_t *token, oct_error *error)
{
    static const char where[] = "octe_sampler_sample";
    const uint32_t n = n_logits < s->n_vocab ? n_logits : s->n_vocab;
    size_t n_candidates = 0;
    if (s->candidates == NULL) {
        s->candidates = malloc(s->n_vocab * sizeof(*s->candidates));
    }
    if (s->candidates == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for %u candidates", s->n_vocab);
    }
    /* What isn't finite never takes part: libllama's softmax would make every probability a NaN of it. */
    for (uint32_t i = 0, at = 0; i < n; i++) {
        float logit = logits[i];
        for (; at < s->n_bias && (uint32_t)s->bias[at].token == i; at++) {
            logit += s->bias[at].bias;
        }
        if (isfinite(logit) && !(s->ignore_eog && octe_vocab_is_eog(s->vocab, (int32_t)i))) {
            s->candidates[n_candidates++] = (llama_token_data){(llama_token)i, logit, 0.0f};
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
    /* A grammar takes what it does not allow to -infinity, and ends the program where such a token is accepted. */
    if (!isfinite(candidates.data[candidates.selected].logit)) {
        return octe__report(error, OCT_BAD_DATA, where, NULL, "the grammar allows none of %zu tokens", n_candidates);
    }
    *token = candidates.data[candidates.selected].id;
    llama_sampler_accept(s->chain, *token);
    return OCT_OK;
}
