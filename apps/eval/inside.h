/* inside.h: owns what eight bits do within a model: how exactly each layer and head keeps K and V and attends over them, and what each layer alone costs at the
 * end. The measurement drives engines of its own, whose threads share one record by heads; everything else is single-threaded. */
#ifndef APP_EVAL_INSIDE_H
#define APP_EVAL_INSIDE_H

#include "apps/text.h"
#include "engine/engine.h"

enum { EVAL_INSIDE_MAX_FORMATS = 24, EVAL_INSIDE_MAX_FINDINGS = 200 };

/* Ratios of a signal to its noise are in dB: 10 log10 of the sum of squares over the sum of squared errors. EVAL_EXACT_DB: no error at all; NAN: not
 * measured. */
#define EVAL_EXACT_DB 999.0

/* K or V of one layer and KV head. */
typedef struct eval_kept {
    double snr_db;             /* what the cache gives back against what the model made */
    double asked_db;           /* the same of the format that was asked for, written aside from the same values */
    double amax, rms;          /* of what the model made, before any rotation */
    double saturated, zeroed;  /* shares, 0 .. 1: cut to the format's largest; stored as 0 without being 0 */
    double range_used;         /* largest stored value over the largest that format and scale hold; NAN without a static scale */
    uint32_t n_outliers;       /* channels whose rms is more than EVAL_OUTLIER times the median channel's */
    uint32_t top_channel;      /* of the largest rms */
    double top_ratio;          /* its rms over the median channel's */
} eval_kept;

#define EVAL_OUTLIER 6.0

/* One query head of a layer, over the rows that were looked at. */
typedef struct eval_attended {
    double scores_db;          /* q . K from the cache against q . K as made, both less their mean over a row's keys, which softmax does not see */
    double output_db;          /* attention's result against attention in f64 over K and V as made */
    double kernel_db;          /* against attention in f64 over K and V as the cache gives them back: the kernel's own rounding */
} eval_attended;

/* One format through all layers. */
typedef struct eval_inside_format {
    uint32_t format;           /* index into the result's formats */
    eval_kept *kept[2];        /* K, V: [n_layers][n_heads_kv] */
    eval_attended *attended;   /* [n_layers][n_heads] */
} eval_inside_format;

/* One layer alone in a format, all others in the base: KL(base || this), nats a token. */
typedef struct eval_alone {
    uint32_t layer;
    double kl, kl_k, kl_v;     /* K and V, K alone, V alone; NAN: not run */
    double same_top;           /* share, 0 .. 1; of K and V */
} eval_alone;

typedef struct eval_sensitivity {
    uint32_t format;
    double floor;              /* KL of the base against the same cache in f32: what is below it is the arithmetic's noise */
    double kl_all;             /* of the format in all layers, on the same tokens */
    uint32_t n;
    eval_alone *alone;         /* [n], by kl, largest first */
} eval_sensitivity;

typedef enum eval_part { EVAL_PART_K = 0, EVAL_PART_V = 1, EVAL_PART_ATTENTION = 2, EVAL_PART_LAYER = 3 } eval_part;

/* Something that no format's rounding explains. */
typedef struct eval_finding {
    uint32_t format, layer;
    uint32_t part;             /* eval_part */
    int32_t head;              /* KV head; -1: all of them */
    char text[256];            /* one sentence */
} eval_finding;

typedef struct eval_inside {
    uint32_t n_layers, n_heads, n_heads_kv, head_dim, window_tokens;
    uint32_t n_tokens, n_rows;                 /* tokens of the sequence; rows whose attention was looked at */
    uint32_t n_alone_tokens, n_alone_judged;   /* of the runs of one layer alone: tokens, and how many last ones were judged */
    uint32_t n_formats;
    eval_inside_format formats[EVAL_INSIDE_MAX_FORMATS];
    uint32_t n_sensitivities;
    eval_sensitivity sensitivities[EVAL_INSIDE_MAX_FORMATS];
    uint32_t n_findings;
    uint32_t n_findings_more;                  /* beyond those listed: there is no room for all that one mistake may break */
    eval_finding findings[EVAL_INSIDE_MAX_FINDINGS];
} eval_inside;

/* A format to look into. */
typedef struct eval_inside_wanted {
    uint32_t format;                 /* its index in the result */
    octe_kv_config kv;               /* scales as of its own; they live as long as the measurement */
    bool sensitivity;                /* one layer at a time too */
} eval_inside_wanted;

typedef struct eval_inside_options {
    const octe_model *model;
    const int32_t *tokens;           /* of the text, with a BOS where the model wants one */
    uint32_t n_tokens;               /* at least 2; the more, the surer; what is not needed is left */
    uint32_t n_threads;
    bool quick;                      /* fewer tokens, and K and V apart only of the layers that cost most */
    octe_kv_config base;             /* 16-bit */
    const oct_rates *rates;          /* or NULL */
    /* Called between steps; done and total in tokens. False stops with CANCELLED. May be NULL. */
    bool (*progress)(void *user, const char *doing, double done, double total);
    void *user;
    /* Who opens the engines that are looked into; NULL: octe_engine_open. Tests plant faults there. */
    oct_status (*open)(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error);
} eval_inside_options;

/* Tokens that a measurement of n formats, of which n_sensitivity are taken layer by layer, will run. */
double eval_inside_work(const eval_inside_options *options, uint32_t n, uint32_t n_sensitivity);

/* Looks into n formats (wanted[0] may be the base: its numbers are the floor of the others). *inside: eval_inside_free it, after an error too (NULL then). */
oct_status eval_inside_measure(const eval_inside_options *options, const eval_inside_wanted *wanted, uint32_t n, eval_inside **inside, oct_error *error);

void eval_inside_free(eval_inside *inside);   /* NULL is fine */

const char *eval_part_name(uint32_t part);    /* "K", "V", "attention", "layer" */

/* As one JSON object, lists by layer of lists by head. raw: numbers of 17 digits, else 6. What is not a number is null. */
void eval_inside_json(const eval_inside *inside, bool raw, app_text *text);

/* A chapter of the report. names: of the result's formats, by their index. */
void eval_inside_markdown(const eval_inside *inside, const char *const *names, app_text *text);

struct json_t;

/* The inverse of eval_inside_json, from a parsed object. BAD_DATA names what is missing or wrong; *inside is NULL then. */
oct_status eval_inside_read(const struct json_t *object, eval_inside **inside, oct_error *error);

#endif
