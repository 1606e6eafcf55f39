/* What eight bits do inside a model, on tiny models: clean caches give no finding and the numbers that NumPy gives; planted faults are found and named by layer
 * and part; JSON comes back as it was. Faults are planted where engines are opened: the measurement knows nothing of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "apps/eval/inside_decode.h"
#include "engine/engine_state.h"
#include "engine/seam.h"
#include "inside_rig.h"

/* ---- clean ---------------------------------------------------------------------------------------------------------------------------- */

static void clean(void **state)
{
    (void)state;
    static const char *const names[] = { "f32", "f16", "bf16", "e4m3", "e4m3:layer", "e4m3:head", "e4m3:channel", "e4m3:token", "e4m3fnuz:layer", "e5m2", "i8", "i8:channel", "i8+rot/e4m3",
                                         "i8+rot/i8+rot", "i8+rot/v4+rot" };
    enum { N = sizeof(names) / sizeof(names[0]) };
    octe_model *const both[2] = { llama, gemma };
    for (int m = 0; m < 2; m++) {
        eval_inside_wanted wanted[N];
        for (uint32_t i = 0; i < N; i++) {
            wanted[i] = wanted_of(both[m], i, names[i], false);
        }
        const eval_inside_options o = options_of(both[m]);
        eval_inside *in = measure(&o, wanted, N);
        print_findings(in);
        assert_int_equal(in->n_findings, 0);
        for (uint32_t i = 0; i < N; i++) {
            const eval_inside_format *f = &in->formats[i];
            for (uint32_t h = 0; h < in->n_layers * in->n_heads_kv; h++) {
                for (int side = 0; side < 2; side++) {
                    const eval_kept *k = &f->kept[side][h];
                    /* What is kept is what the format makes of it, by another way; and it is as exact as its bits: 3 of mantissa keep about 31 dB, 2 about 25. */
                    assert_true(fabs(k->snr_db - k->asked_db) < 1e-3);
                    const double least = i == 0 ? EVAL_EXACT_DB : i == 1 ? 60 : i == 2 ? 45 : i == 9 ? 22 : 28, most = i == 0 ? EVAL_EXACT_DB : i == 1 ? 85 : i == 2 ? 60 : i == 9 ? 30 : 50;
                    const bool is_v4 = strstr(names[i], "v4") != NULL && side == 1;   /* a relative error of 0.0067 */
                    if (is_v4 ? !(k->snr_db > 20 && k->snr_db < 24) : !(k->snr_db >= least && k->snr_db <= most)) {
                        fail_msg("%s, %u, side %d: %.2f dB", names[i], h, side, k->snr_db);
                    }
                    if (!(k->saturated < 0.02 && k->zeroed < 0.2 && k->amax >= k->rms && k->rms > 0 && k->top_channel < in->head_dim && k->top_ratio >= 1)) {
                        fail_msg("%s, %u, side %d: saturated %g, zeroed %g, amax %g, rms %g, %g", names[i], h, side, k->saturated, k->zeroed, k->amax, k->rms, k->top_ratio);
                    }
                    assert_true(isnan(k->range_used) == !octe_kv_format_is_static(side == 0 ? &wanted[i].kv.k : &wanted[i].kv.v));
                }
            }
            for (uint32_t h = 0; h < in->n_layers * in->n_heads; h++) {
                const eval_attended *a = &f->attended[h];
                assert_true(a->kernel_db > 30 && a->output_db > 15 && a->scores_db > 15);
                assert_true(i > 0 || (a->scores_db == EVAL_EXACT_DB && a->output_db > 40));
            }
        }
        eval_inside_free(in);
    }
}

/* Every layer's K alone and V alone cost about what both cost; the order is by cost; a format as exact as the base costs what the arithmetic does. */
static void sensitivity(void **state)
{
    (void)state;
    const eval_inside_wanted wanted[2] = { wanted_of(llama, 1, "e5m2", true), wanted_of(llama, 2, "f16", true) };
    const eval_inside_options o = options_of(llama);
    eval_inside *in = measure(&o, wanted, 2);
    assert_int_equal(faults(in), 0);
    assert_int_equal(in->n_sensitivities, 2);
    const eval_sensitivity *s = &in->sensitivities[0];
    uint32_t seen = 0;
    double sum = 0;
    assert_int_equal(s->n, 6);
    for (uint32_t i = 0; i < s->n; i++) {
        seen |= 1u << s->alone[i].layer;
        sum += s->alone[i].kl;
        assert_true(i == 0 || s->alone[i].kl <= s->alone[i - 1].kl);
        if (!(s->alone[i].kl > 2 * s->floor && s->alone[i].kl_k > 0 && s->alone[i].kl_v > 0 && s->alone[i].same_top > 0)) {
            fail_msg("layer %u: %g, K %g, V %g, floor %g, same top %g", s->alone[i].layer, s->alone[i].kl, s->alone[i].kl_k, s->alone[i].kl_v, s->floor, s->alone[i].same_top);
        }
        const double apart = s->alone[i].kl_k + s->alone[i].kl_v;
        assert_true(apart > 0.2 * s->alone[i].kl && apart < 5 * s->alone[i].kl);
    }
    assert_int_equal(seen, 63);
    assert_true(s->kl_all > sum / 5 && s->kl_all < sum * 5);
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(in->sensitivities[1].alone[i].kl == 0);   /* the base itself */
    }
    eval_inside_free(in);
}

/* ---- planted faults ----------------------------------------------------------------------------------------------------------------------- */

/* A copy of a layer as somebody sees it who reads or writes it wrongly. One engine at a time. */
static oct_kv_layer wrong_view;
static float wrong_scale[1];

static oct_status open_scale_read(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    const oct_status status = octe_engine_open(model, options, engine, error);
    if (status == OCT_OK && (*engine)->cache.layers[FAULTY].v_scale != NULL) {
        wrong_view = (*engine)->cache.layers[FAULTY];
        wrong_scale[0] = 2 * wrong_view.v_scale[0];
        wrong_view.v_scale = wrong_scale;
        (*engine)->seam.layers[FAULTY].read = &wrong_view;
    }
    return status;
}

static oct_status open_scale_doubled(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    octe_engine_options o = *options;
    octe_scales doubled = { 0 };
    if (o.kv.scales != NULL) {
        doubled = *o.kv.scales;
        doubled.layer[1] = malloc(doubled.n_layers * sizeof(float));
        assert_non_null(doubled.layer[1]);
        memcpy(doubled.layer[1], o.kv.scales->layer[1], doubled.n_layers * sizeof(float));
        doubled.layer[1][FAULTY] *= 2;
        o.kv.scales = &doubled;
    }
    const oct_status status = octe_engine_open(model, &o, engine, error);
    if (options->kv.scales != NULL) {
        free(doubled.layer[1]);
    }
    return status;
}

static oct_status open_window(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    octe_engine_options o = *options;
    o.test.window_tokens = octe_model_info_get(model)->window_tokens + 1;
    return octe_engine_open(model, &o, engine, error);
}

static oct_status open_window_less(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    octe_engine_options o = *options;
    o.test.window_tokens = octe_model_info_get(model)->window_tokens - 1;
    return octe_engine_open(model, &o, engine, error);
}

static oct_status open_swapped(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    octe_engine_options o = *options;
    octe_kv_layer_format layers[16];
    o.kv.k = options->kv.v;
    o.kv.v = options->kv.k;
    for (uint32_t il = 0; il < o.kv.n_layers; il++) {
        layers[il] = (octe_kv_layer_format){ options->kv.layers[il].v, options->kv.layers[il].k };
    }
    o.kv.layers = o.kv.layers != NULL ? layers : NULL;
    return octe_engine_open(model, &o, engine, error);
}

static const octe_engine_tap *looking;
static bool rotates;

static void rotate_before(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    if (looking != NULL) {
        looking->before(looking->user, rows, ith, nth);
    }
    if (rotates && rows->layer == FAULTY && FAULTY_HEAD % nth == ith) {
        for (uint32_t r = 0; r < rows->n_rows; r++) {
            eval_rotate(rows->k + r * rows->k_row_stride + FAULTY_HEAD * rows->k_head_stride, 32);
        }
    }
    (void)user;
}

static void rotate_after(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    if (looking != NULL) {
        looking->after(looking->user, rows, ith, nth);
    }
    (void)user;
}

static oct_status open_rotated(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    static const octe_engine_tap tap = { rotate_before, rotate_after, NULL };
    octe_engine_options o = *options;
    looking = options->tap;
    rotates = octe_kv_config_layer(&o.kv, FAULTY).k.dtype == OCT_DTYPE_I8;
    o.tap = &tap;
    return octe_engine_open(model, &o, engine, error);
}

static void v_scale_doubled(void **state)
{
    (void)state;
    /* Read with another scale than written. */
    eval_inside *in = plant(llama, "e4m3:layer", open_scale_read);
    named(in, FAULTY, EVAL_PART_V, -1, "read as 2 times what is stored");
    assert_int_equal(in->sensitivities[0].alone[0].layer, FAULTY);
    named(in, FAULTY, EVAL_PART_V, -1, "alone costs");
    for (uint32_t i = 0; i < in->n_findings; i++) {
        assert_true(is_cost(in, i) || (in->findings[i].layer == FAULTY && in->findings[i].part == EVAL_PART_V));
    }
    eval_inside_free(in);
    /* Written and read with it: a float loses nothing, but it is not what the calibration says. */
    in = plant(llama, "e4m3:layer", open_scale_doubled);
    named(in, FAULTY, EVAL_PART_V, -1, "2 times it");
    eval_inside_free(in);
    /* A calibration file with it: nobody knows better, but its range lies idle. */
    scales[0].layer[1][FAULTY] *= 2;
    in = plant(llama, "e4m3:layer", NULL);
    scales[0].layer[1][FAULTY] /= 2;
    named(in, FAULTY, EVAL_PART_V, -1, "of its range");
    assert_int_equal(faults(in), 1);
    eval_inside_free(in);
}

static void window_off_by_one(void **state)
{
    (void)state;
    static opener *const openers[] = { open_window, open_window_less };
    static const char *const words[] = { "sees a window of 25 keys, the model has 24", "sees a window of 23 keys, the model has 24" };
    for (int i = 0; i < 2; i++) {
        eval_inside *in = plant(gemma, "e4m3:layer", openers[i]);
        uint32_t n = 0;
        for (uint32_t il = 0; il < 7; il++) {
            if (octe_model_layer_has_window(gemma, il)) {
                named(in, il, EVAL_PART_ATTENTION, -1, words[i]);
                n++;
            }
        }
        assert_true(n == 6);
        for (uint32_t f = 0; f < in->n_findings; f++) {
            assert_true(is_cost(in, f) || (octe_model_layer_has_window(gemma, in->findings[f].layer) && in->findings[f].part == EVAL_PART_ATTENTION));
        }
        eval_inside_free(in);
    }
}

static void formats_swapped(void **state)
{
    (void)state;
    eval_inside *in = plant(llama, "i8+rot/e5m2", open_swapped);
    for (uint32_t il = 0; il < 6; il++) {
        named(in, il, EVAL_PART_K, -1, "kept in e5m2, asked for was i8:token+rot: the formats of K and V are swapped");
        named(in, il, EVAL_PART_V, -1, "kept in i8:token+rot, asked for was e5m2: the formats of K and V are swapped");
        for (uint32_t h = 0; h < 2; h++) {   /* and the numbers say so as well */
            assert_true(in->formats[1].kept[0][il * 2 + h].snr_db < in->formats[1].kept[0][il * 2 + h].asked_db - 5);
        }
    }
    eval_inside_free(in);
}

static void head_rotated_on_write(void **state)
{
    (void)state;
    eval_inside *in = plant(llama, "i8", open_rotated);
    named(in, FAULTY, EVAL_PART_K, FAULTY_HEAD, "K of layer 3, KV head 1: what is stored has");
    assert_int_equal(in->sensitivities[0].alone[0].layer, FAULTY);
    named(in, FAULTY, EVAL_PART_K, -1, "alone costs");
    for (uint32_t i = 0; i < in->n_findings; i++) {
        assert_true(is_cost(in, i) || (in->findings[i].layer == FAULTY && in->findings[i].part == EVAL_PART_K && in->findings[i].format == 1));
    }
    eval_inside_free(in);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------------------------ */

static void comes_back(void **state)
{
    (void)state;
    eval_inside *in = plant(llama, "i8", open_rotated), *back;
    app_text text = { 0 }, again = { 0 };
    oct_error error = OCT_ERROR_INIT;
    eval_inside_json(in, true, &text);
    assert_false(text.failed);
    json_error_t why;
    json_t *json = json_loads(text.bytes, 0, &why);
    if (json == NULL) {
        fail_msg("%d: %s", why.line, why.text);
    }
    if (eval_inside_read(json, &back, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    eval_inside_json(back, true, &again);
    assert_string_equal(text.bytes, again.bytes);
    eval_inside_free(back);
    /* Each key is needed. */
    static const char *const keys[] = { "n_layers", "n_heads", "n_heads_kv", "formats", "sensitivities", "findings" };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *copy = json_deep_copy(json);
        assert_int_equal(json_object_del(copy, keys[i]), 0);
        assert_int_equal(eval_inside_read(copy, &back, &error), OCT_BAD_DATA);
        assert_null(back);
        json_object_set_new(copy, keys[i], json_integer(1023));
        assert_int_equal(eval_inside_read(copy, &back, &error), OCT_BAD_DATA);
        json_decref(copy);
    }
    json_decref(json);
    app_text_free(&text);
    app_text_free(&again);
    eval_inside_free(in);
}

static bool stop(void *user, const char *doing, double done, double total)
{
    (void)doing;
    assert_true(done > 0 && done <= total);
    return --*(int *)user > 0;
}

static void stops(void **state)
{
    (void)state;
    eval_inside_options o = options_of(llama);
    const eval_inside_wanted wanted[1] = { wanted_of(llama, 0, "i8", true) };
    for (int after = 1; after < 8; after += 3) {
        int left = after;
        eval_inside *in;
        oct_error error = OCT_ERROR_INIT;
        o.progress = stop;
        o.user = &left;
        assert_int_equal(eval_inside_measure(&o, wanted, 1, &in, &error), OCT_CANCELLED);
        assert_null(in);
    }
    assert_true(eval_inside_work(&o, 1, 1) > 90);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clean), cmocka_unit_test(sensitivity), cmocka_unit_test(v_scale_doubled), cmocka_unit_test(window_off_by_one), cmocka_unit_test(formats_swapped),
        cmocka_unit_test(head_rotated_on_write), cmocka_unit_test(comes_back), cmocka_unit_test(stops),
    };
    return cmocka_run_group_tests(tests, rig_set_up, rig_tear_down);
}
