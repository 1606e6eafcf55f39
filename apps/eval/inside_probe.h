/* inside_probe.h: owns one format's way through a model: an engine that is looked into while it runs, and what was seen. For inside.c. */
#ifndef APP_EVAL_INSIDE_PROBE_H
#define APP_EVAL_INSIDE_PROBE_H

#include "apps/eval/inside.h"

/* Sums of squares of a signal and of its error. */
typedef struct eval_energy { double signal, error; } eval_energy;
double eval_energy_db(eval_energy energy);

/* What the kernel made of what is stored, if its window were one key less, as it is, or one more. */
enum { EVAL_WINDOW_LESS = 0, EVAL_WINDOW_RIGHT = 1, EVAL_WINDOW_MORE = 2, EVAL_N_WINDOWS = 3 };
typedef struct eval_kernel_sums { double signal, error[EVAL_N_WINDOWS]; } eval_kernel_sums;

enum { EVAL_KEPT_ROWS = 6 };

typedef struct eval_probe {
    const eval_inside_options *options;
    const eval_inside_wanted *wanted;
    const octe_model_info *info;
    octe_engine *engine;             /* under test */
    octe_engine *asked;              /* as it was asked for: its formats, scales and context; holds one token */
    uint32_t n_tokens, n_past, n_rows, row_stride;
    float *made[2], *kept[2];        /* K, V: [n_layers][n_heads_kv][n_tokens][dim]; kept: as the cache gives them back */
    eval_energy *scores, *outputs;   /* [n_layers][n_heads] */
    eval_kernel_sums *kernels;       /* [n_layers][n_heads] */
    /* Of some of the rows that were looked at, the last one first: what attention was given and made, to explain it if it is wrong. */
    uint32_t n_rows_kept, row_position[EVAL_KEPT_ROWS];
    float *row_q, *row_out;          /* [n_layers][EVAL_KEPT_ROWS][n_heads][dim] */
    uint64_t *saturated[2], *zeroed[2];   /* [n_layers][n_heads_kv] */
    double *range[2];                /* [n_layers][n_heads_kv] largest |stored domain value| over its limit */
    float *room;                     /* [n_heads_kv] workspaces of room_floats */
    size_t room_floats;
    bool strange;                    /* a format that can't be read back */
} eval_probe;

/* Tokens of the sequence: bounded by memory, more than the window where there is one; and rows whose attention is looked at. */
uint32_t eval_probe_tokens(const octe_model_info *info, uint32_t n_tokens, bool quick);

uint32_t eval_probe_rows(uint32_t n_tokens, bool quick);

/* Runs the tokens; f has its arrays. */
oct_status eval_probe_run(eval_probe *probe, const eval_inside_options *options, const eval_inside_wanted *wanted, eval_inside *inside, eval_inside_format *f, oct_error *error);

/* Adds what no rounding explains to inside->findings. Before close. */
void eval_probe_find(const eval_probe *probe, eval_inside *inside, const eval_inside_format *f);
void eval_probe_close(eval_probe *probe);

/* Which mistake explains the results of these query heads of a layer better than what is stored: part and text of *finding, and no
 * head where it is the whole layer's. False: none of those that are known. */
bool eval_probe_explain(const eval_probe *probe, uint32_t layer, uint32_t page_tokens, uint32_t *heads, uint32_t n_heads, eval_finding *finding);

/* One layer at a time, see eval_sensitivity; then what stands out, to the findings. done_before, total: tokens of the whole measurement, for its progress. */
oct_status eval_alone_run(const eval_inside_options *options, const eval_inside_wanted *wanted, double done_before, double total, eval_inside *inside, eval_sensitivity *s, oct_error *error);
uint32_t eval_alone_tokens(const octe_model_info *info, uint32_t n_tokens, bool quick);
uint32_t eval_alone_judged(const octe_model_info *info, uint32_t n_tokens, bool quick);
uint32_t eval_alone_apart(uint32_t n_layers, bool quick);   /* layers whose K and V are taken apart */
oct_status eval_alone_find(eval_inside *inside, const eval_sensitivity *s, oct_error *error);

void eval_inside_add_finding(eval_inside *inside, uint32_t format, uint32_t layer, uint32_t part, int32_t head, const char *text);

#endif
