/* Mistakes of one layer beyond those of test_inside.c, each found, named by what it is, and dearer in the ranking of layers: a K scale halved, attention that is not causal by one key,
 * heads mixed up, pages of another's or none, writes that went nowhere. What a kernel would have made is computed here in f64 and put in the place of its result. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/eval/inside_probe.h"
#include "engine/engine_state.h"
#include "engine/seam.h"
#include "inside_rig.h"

enum { DIM = 32, MAX_HEADS = 8, PAGE = 16 };

typedef enum fault { K_HALVED, V_OF_A_HEAD, NO_OWN_KEY, NEXT_KEY, QUERY_HEADS, KV_HEADS, STALE_PAGE, ZERO_PAGE, LOST_PAGE, STORED_PAGE, LOST_WRITES, LAST_ROW } fault;
static fault planted;

static const octe_engine_tap *looking;
static octe_engine *engine_of;          /* the one that was opened last: only one lives */
static bool is_tried;                   /* the faulty layer is in the format that is tried */
static float made[2][2][N_TOKENS][DIM]; /* K, V of the faulty layer by KV head */
static oct_kv_layer wrong_view;
static float wrong_scale[1];
static uint8_t nowhere[1 << 20];

static void see(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    (void)user;
    for (uint32_t r = 0; rows->layer == FAULTY && r < rows->n_rows; r++) {
        for (uint32_t h = 0; h < 2; h++) {
            memcpy(made[0][h][r], rows->k + r * rows->k_row_stride + h * rows->k_head_stride, sizeof(made[0][h][r]));
            memcpy(made[1][h][r], rows->v + r * rows->v_row_stride + h * rows->v_head_stride, sizeof(made[1][h][r]));
        }
    }
    if (looking != NULL) {
        looking->before(looking->user, rows, ith, nth);
    }
}

/* Which token is read for one; -1: none, -2: zeros. */
static int read_for(int token)
{
    const bool here = token / PAGE == 2;
    return !here ? token : planted == STALE_PAGE ? token - PAGE : planted == LOST_PAGE ? -1 : planted == ZERO_PAGE ? -2 : token;
}

static void attend(const float *q, uint32_t group, int end, float *out)
{
    double sum = 0, result[DIM] = { 0 };
    for (int t = 0; t < end && t < N_TOKENS; t++) {
        const int seen = read_for(t);
        double score = 0;
        for (int d = 0; d < DIM && seen >= 0; d++) {
            score += (double)q[d] * (double)made[0][group][seen][d];
        }
        const double weight = seen == -1 ? 0 : exp(score * (double)octe_model_info_get(llama)->attn_scale);
        sum += weight;
        for (int d = 0; d < DIM && seen >= 0; d++) {
            result[d] += weight * (double)made[1][group][seen][d];
        }
    }
    for (int d = 0; d < DIM; d++) {
        out[d] = (float)(result[d] / sum);
    }
}

static void swap_bytes(float *a, float *b)
{
    float room[DIM];
    memcpy(room, a, sizeof(room));
    memcpy(a, b, sizeof(room));
    memcpy(b, room, sizeof(room));
}

static void spoil(const octe_tap_rows *rows)
{
    const uint32_t n_heads = octe_model_info_get(llama)->n_heads, per_group = n_heads / 2;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        float *const out = (float *)(uintptr_t)rows->out + r * rows->out_row_stride;
        for (uint32_t h = 0; h < n_heads && planted >= NO_OWN_KEY && planted != QUERY_HEADS && planted <= LOST_PAGE; h++) {
            const uint32_t group = planted == KV_HEADS ? 1 - h / per_group : h / per_group;
            const int end = (int)r + 1 + (planted == NEXT_KEY) - (planted == NO_OWN_KEY && r > 0);
            attend(rows->q + r * rows->q_row_stride + h * rows->q_head_stride, group, end, out + h * rows->out_head_stride);
        }
        if (planted == QUERY_HEADS) {
            swap_bytes(out, out + rows->out_head_stride);
        }
        for (uint32_t h = 0; planted == LAST_ROW && r == N_TOKENS - 1 && h < n_heads; h++) {
            memset(out + h * rows->out_head_stride, 0, DIM * sizeof(*out));
        }
        for (uint32_t h = per_group; planted == V_OF_A_HEAD && h < n_heads; h++) {
            for (int d = 0; d < DIM; d++) {
                out[h * rows->out_head_stride + d] *= 1.5f;
            }
        }
    }
    if (planted == STORED_PAGE) {
        /* Another sequence's page over the second one's K, behind the layer's back. */
        oct_kv_layer layer = { .struct_size = sizeof(layer) };
        int32_t from, to;
        assert_int_equal(octe_engine_stored(engine_of, FAULTY, 0, 0, &layer, &from), OCT_OK);
        assert_int_equal(octe_engine_stored(engine_of, FAULTY, 0, 2 * PAGE, &layer, &to), OCT_OK);
        memcpy((uint8_t *)layer.k + (size_t)(to / PAGE) * (size_t)layer.k_page_stride, (uint8_t *)layer.k + (size_t)(from / PAGE) * (size_t)layer.k_page_stride, (size_t)layer.k_page_stride);
    }
}

static void spoil_and_show(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    (void)user;
    if (is_tried && rows->layer == FAULTY) {
        spoil(rows);
    }
    if (looking != NULL) {
        looking->after(looking->user, rows, ith, nth);
    }
}

static oct_status open_faulty(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    static const octe_engine_tap tap = { see, spoil_and_show, NULL };
    octe_engine_options o = *options;
    looking = options->tap;
    const uint32_t k = octe_kv_config_layer(&o.kv, FAULTY).k.dtype;
    is_tried = k != OCT_DTYPE_F16 && k != OCT_DTYPE_F32;   /* the base, and the base's floor */
    o.tap = &tap;
    const oct_status status = octe_engine_open(model, &o, engine, error);
    engine_of = *engine;
    if (status == OCT_OK && is_tried) {
        wrong_view = (*engine)->cache.layers[FAULTY];
        if (planted == K_HALVED) {
            wrong_scale[0] = wrong_view.k_scale[0] / 2;
            wrong_view.k_scale = wrong_scale;
            (*engine)->seam.layers[FAULTY].read = &wrong_view;
        }
        if (planted == LOST_WRITES) {
            wrong_view.v = nowhere;
            (*engine)->seam.layers[FAULTY].write = &wrong_view;
        }
    }
    return status;
}

static const struct { fault planted; const char *format; uint32_t part; int32_t head; const char *words; } rows[] = {
    { K_HALVED, "e4m3:layer", EVAL_PART_K, -1, "K of layer 3 is read as 0.5 times what is stored" },
    { V_OF_A_HEAD, "i8", EVAL_PART_V, 1, "V of layer 3 is read as 1.5 times what is stored" },
    { NO_OWN_KEY, "i8", EVAL_PART_ATTENTION, -1, "attention of layer 3 does not see each row's own key" },
    { NEXT_KEY, "i8", EVAL_PART_ATTENTION, -1, "attention of layer 3 sees one key behind each row's own: it is not causal" },
    { QUERY_HEADS, "i8", EVAL_PART_ATTENTION, 0, "heads of layer 3 are mixed up: query head 0 has the result of head 1, query head 1 has the result of head 0" },
    { KV_HEADS, "i8", EVAL_PART_ATTENTION, -1, "query head 0 reads K and V of KV head 1" },
    { STALE_PAGE, "i8", EVAL_PART_ATTENTION, -1, "attention of layer 3 reads tokens 16 to 31 again in place of tokens 32 to 47" },
    { ZERO_PAGE, "i8", EVAL_PART_ATTENTION, -1, "attention of layer 3 does not see tokens 32 to 47" },
    { LOST_PAGE, "i8", EVAL_PART_ATTENTION, -1, "attention of layer 3 does not see tokens 32 to 47" },
    { STORED_PAGE, "i8", EVAL_PART_K, -1, "the noise is in tokens 32 to 47" },
    { LAST_ROW, "i8", EVAL_PART_ATTENTION, -1, "attention of layer 3 does not fit what is stored" },
    { LOST_WRITES, "e4m3", EVAL_PART_V, -1, "and all others: what is stored has 0.0 dB" },
};

static double cost_of(const eval_inside *in, uint32_t layer)
{
    uint32_t i = 0;
    while (in->sensitivities[0].alone[i].layer != layer) {
        i++;
    }
    return in->sensitivities[0].alone[i].kl;
}

static void every_mistake_is_named(void **state)
{
    (void)state;
    double without = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        planted = rows[i].planted;
        eval_inside *in = plant(llama, rows[i].format, open_faulty);
        named(in, FAULTY, rows[i].part, rows[i].head, rows[i].words);
        /* Nothing else is accused: no other layer, and the base not at all. */
        for (uint32_t f = 0; f < in->n_findings; f++) {
            if (!is_cost(in, f) && (in->findings[f].layer != FAULTY || in->findings[f].format != 1)) {
                print_findings(in);
                fail_msg("with '%s' planted: %s", rows[i].words, in->findings[f].text);
            }
        }
        /* The layer costs more, too, than without the mistake; a page that is spoiled after attention has read it costs nothing yet, one row of many little. */
        if (i == 0 || strcmp(rows[i].format, rows[i - 1].format) != 0) {
            eval_inside *clean = plant(llama, rows[i].format, NULL);
            without = cost_of(clean, FAULTY);
            eval_inside_free(clean);
        }
        if (planted != STORED_PAGE && planted != LAST_ROW && !(cost_of(in, FAULTY) > 3 * without)) {
            fail_msg("with '%s' planted the layer costs %g, without %g", rows[i].words, cost_of(in, FAULTY), without);
        }
        eval_inside_free(in);
    }
}

/* A list that is full says how many it left out. */
static void what_has_no_room_is_counted(void **state)
{
    (void)state;
    planted = V_OF_A_HEAD;
    eval_inside_wanted wanted[EVAL_INSIDE_MAX_FORMATS];
    eval_inside_options o = options_of(llama);
    o.open = open_faulty;
    o.n_tokens = 24;
    for (uint32_t i = 0; i < EVAL_INSIDE_MAX_FORMATS; i++) {
        wanted[i] = wanted_of(llama, i, "i8", false);
    }
    eval_inside *in = measure(&o, wanted, EVAL_INSIDE_MAX_FORMATS);
    assert_int_equal(in->n_findings, EVAL_INSIDE_MAX_FORMATS);
    assert_int_equal(in->n_findings_more, 0);
    const char *names[EVAL_INSIDE_MAX_FORMATS];
    for (uint32_t i = 0; i < EVAL_INSIDE_MAX_FORMATS; i++) {
        names[i] = "i8";
    }
    for (uint32_t i = 0; i < EVAL_INSIDE_MAX_FINDINGS; i++) {
        eval_inside_add_finding(in, 1, 0, EVAL_PART_K, -1, "one more");
    }
    assert_int_equal(in->n_findings, EVAL_INSIDE_MAX_FINDINGS);
    assert_int_equal(in->n_findings_more, EVAL_INSIDE_MAX_FORMATS);
    app_text text = { 0 };
    eval_inside_markdown(in, names, &text);
    assert_non_null(strstr(text.bytes, "- and 24 more, for which this list has no room."));
    app_text_free(&text);
    eval_inside_free(in);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_mistake_is_named), cmocka_unit_test(what_has_no_room_is_counted) };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
