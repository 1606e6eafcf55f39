/* advise.h: owns the choice of a cache: candidates, what each costs and loses, which is chosen and why the others are not. Single-threaded. */
#ifndef APP_EVAL_ADVISE_H
#define APP_EVAL_ADVISE_H

#include "apps/compare/scales.h"
#include "apps/eval/result.h"
#include "apps/progress.h"
#include "engine/engine.h"

enum { ADVISE_MAX_CANDIDATES = COMPARE_MAX_FORMATS + 8 };

#define ADVISE_CANDIDATES "e4m3,e4m3:layer,e4m3:head,e4m3:token,i8,i8+rot/i8,i8+rot/i8+rot,i8+rot/e4m3,i8+rot/e4m3:layer,i8+rot/e4m3:token,i8+rot/v4+rot,f16/e4m3,f16/i8,i8+rot/f16"

typedef struct advise_candidate {
    char name[96];                   /* "i8+rot/e4m3:layer", with ", layers 0, 29 in f16" */
    compare_format format;
    octe_kv_layer_format *layers;    /* [n_layers]; NULL: all alike */
    uint32_t n_kept;                 /* layers in 16 bits */
    uint64_t bytes_per_token;
    double share;                    /* of the 16-bit cache's bytes */
    double kl, same_top;             /* nats a token, mean; NAN: not judged */
    eval_interval kl_interval;
    char kernel[32];                 /* attn_decode's on the target machine */
    double seconds;                  /* of its nominal decode there in a layer that sees all keys, predicted by the plan's costs; NAN: not known */
    bool is_refused, meets, is_chosen;
    char why[320];                   /* why it lost, or won; one clause */
} advise_candidate;

typedef struct advise_target {
    double max_kl;                   /* 0: none */
    double max_share;                /* of the 16-bit cache's bytes; 0: none */
    const char *machine;             /* recorded machine's name, "cpu": this one; NULL: not asked for */
} advise_target;

typedef struct advise {
    advise_target target;
    const octe_model *model;         /* what is judged: the file, or its F32 copy */
    const octe_vocab *vocab;
    const int32_t *tokens;           /* with BOS where the model wants one */
    uint32_t n_tokens, n_judged, n_threads;
    const oct_rates *rates;
    app_progress *progress;
    compare_scales scales;
    float *logits;                   /* the base's: [n_judged][n_vocab] */
    char machine_name[128], rates_name[128];   /* what predicted the candidates' seconds, in the plan's words; "": nothing did */
    int64_t decode_rows, decode_keys;          /* of the decode that they are of */
    double floor;                    /* KL of the base against the same cache in f32 */
    advise_candidate base;           /* f16 */
    advise_candidate candidates[ADVISE_MAX_CANDIDATES];
    uint32_t n_candidates;
} advise;

/* The base's logits and floor on a->model; may be called again with another. */
oct_status advise_begin(advise *a, oct_error *error);

/* Bytes, kernels of the target machine, then the loss of every candidate that is not refused. */
oct_status advise_judge_all(advise *a, oct_error *error);

/* One candidate: its bytes, its loss, and whether it meets the target. */
oct_status advise_judge_one(advise *a, advise_candidate *candidate, oct_error *error);

/* Tries candidates with their costliest layers in 16 bits, where that may win, and chooses. *chosen: one of the candidates or the base; NULL: none meets the target. */
oct_status advise_choose(advise *a, advise_candidate **chosen, oct_error *error);

/* What a candidate is kept in, for an engine of a->model. */
octe_kv_config advise_config(advise *a, const advise_candidate *candidate);

/* The scales and formats that a file of the choice carries: octe_scales_free them. */
oct_status advise_scales(advise *a, const advise_candidate *chosen, octe_scales *scales, oct_error *error);

void advise_end(advise *a);

#endif
