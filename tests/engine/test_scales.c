/* The calibration file and the calibration: what vLLM and SGLang write is read, what is written they can read, anything else is a
 * message that names file and key; and the engine really uses what the file says, layer by layer (fault A1). */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "engine/calibrate.h"
#include "engine/compare_logits.h"
#include "engine/kv_config.h"
#include "engine/scales.h"
#include "engine/tiny_model.h"

/* As vLLM's own examples/fp8 tool writes it. */
static const char vllm[] = "{\"model_type\": \"llama\", \"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": {"
                           "\"0\": {\"0\": 0.0230364128947258, \"1\": 0.01979283057153225, \"2\": 0.5}, \"1\": {\"0\": 1, \"1\": 2e-3, \"2\": 3}}}}";

static void reads_what_others_write(void **state)
{
    (void)state;
    octe_scales sc;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_scales_parse(vllm, strlen(vllm), "f", 0, &sc, &error), OCT_OK);
    assert_string_equal(sc.model_type, "llama");
    assert_int_equal(sc.n_layers, 3);
    assert_int_equal(sc.n_heads, 0);
    assert_int_equal(sc.dtype, OCT_DTYPE_E4M3FN);
    assert_false(sc.layer_split || sc.rotated[0] || sc.rotated[1]);
    for (int which = 0; which < 2; which++) {
        assert_true(sc.layer[which][0] == 0.0230364128947258f && sc.layer[which][1] == 0.01979283057153225f && sc.layer[which][2] == 0.5f);
        assert_null(sc.head[which]);
        assert_null(sc.channel[which]);
    }
    octe_scales_free(&sc);
    assert_int_equal(octe_scales_parse(vllm, strlen(vllm), "f", 1, &sc, &error), OCT_OK);
    assert_true(sc.layer[0][0] == 1.0f && sc.layer[1][1] == 2e-3f);
    octe_scales_free(&sc);
    octe_scales_free(&sc);   /* a freed one is fine */
    /* Who holds the heads of all ranks takes what saturates none of them. */
    assert_int_equal(octe_scales_parse(vllm, strlen(vllm), "f", OCTE_SCALES_ALL_RANKS, &sc, &error), OCT_OK);
    for (int which = 0; which < 2; which++) {
        assert_true(sc.layer[which][0] == 1.0f && sc.layer[which][1] == 0.01979283057153225f && sc.layer[which][2] == 3.0f);
    }
    octe_scales_free(&sc);
    static const struct {
        const char *json, *says;
    } uneven[] = {
        {"{\"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": {\"0\": {\"0\": 1}, \"1\": {\"0\": 1, \"1\": 1}}}}", "'kv_cache.scaling_factor.1' has 2 layers, an earlier rank 1"},
        {"{\"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": {\"0\": {\"0\": 1}, \"1\": {\"0\": 0}}}}", "'kv_cache.scaling_factor.1.0' is 0"},
        {"{\"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": {}}}", "has 0 ranks"},
    };
    for (size_t i = 0; i < sizeof(uneven) / sizeof(uneven[0]); i++) {
        assert_int_equal(octe_scales_parse(uneven[i].json, strlen(uneven[i].json), "f", OCTE_SCALES_ALL_RANKS, &sc, &error), OCT_BAD_DATA);
        assert_non_null(strstr(error.text, uneven[i].says));
        assert_null(sc.layer[0]);
    }
    /* No model_type, other keys of other tools. */
    static const char other[] = "{\"producer\": [1, {}], \"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"method\": null, \"scaling_factor\": {\"0\": {\"0\": 1}}}}";
    assert_int_equal(octe_scales_parse(other, strlen(other), "f", 0, &sc, &error), OCT_OK);
    assert_string_equal(sc.model_type, "");
    octe_scales_free(&sc);
}

static octe_scales sample(void)
{
    octe_scales sc;
    assert_int_equal(octe_scales_create(&sc, 3, 2, 4, NULL), OCT_OK);
    for (int which = 0; which < 2; which++) {
        for (int i = 0; i < 24; i++) {
            if (i < 3) {
                sc.layer[which][i] = 0.1f * (float)(i + 1) / 3.0f + (float)which;
            }
            if (i < 6) {
                sc.head[which][i] = 1e-5f * (float)(i + 1) / 7.0f;
            }
            sc.channel[which][i] = FLT_MIN * 8388607.0f * (float)(i + 1);
        }
    }
    strcpy(sc.model_type, "gemma3_text");
    sc.layer_split = true;
    sc.rotated[1] = true;
    return sc;
}

static void round_trip(void **state)
{
    (void)state;
    octe_scales sc = sample(), back;
    oct_error error = OCT_ERROR_INIT;
    const char *path = tiny_path("scales.json");
    assert_int_equal(octe_scales_write(&sc, 2, path, &error), OCT_OK);
    for (uint32_t rank = 0; rank < 2; rank++) {
        if (octe_scales_read(path, rank, &back, &error) != OCT_OK) {
            fail_msg("%s", error.text);
        }
        assert_string_equal(back.model_type, sc.model_type);
        assert_true(back.n_layers == 3 && back.n_heads == 2 && back.dim == 4 && back.layer_split && !back.rotated[0] && back.rotated[1]);
        for (int which = 0; which < 2; which++) {
            assert_memory_equal(back.layer[which], sc.layer[which], 3 * sizeof(float));
            assert_memory_equal(back.head[which], sc.head[which], 6 * sizeof(float));
            assert_memory_equal(back.channel[which], sc.channel[which], 24 * sizeof(float));
        }
        octe_scales_free(&back);
    }
    assert_int_equal(octe_scales_read(path, 2, &back, &error), OCT_BAD_DATA);
    /* What other readers see: one number a layer and rank, the larger of both. */
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    const json_t *factors = json_object_get(json_object_get(root, "kv_cache"), "scaling_factor");
    assert_int_equal(json_object_size(factors), 2);
    assert_int_equal(json_object_size(json_object_get(factors, "1")), 3);
    assert_true((float)json_real_value(json_object_get(json_object_get(factors, "1"), "2")) == sc.layer[1][2]);
    json_decref(root);
    /* Without heads: layers alone. */
    octe_scales_free(&sc);
    assert_int_equal(octe_scales_create(&sc, 1, 0, 7, &error), OCT_OK);
    assert_int_equal(sc.dim, 0);
    assert_int_equal(octe_scales_write(&sc, 1, path, &error), OCT_OK);
    assert_int_equal(octe_scales_read(path, 0, &back, &error), OCT_OK);
    assert_null(back.head[0]);
    octe_scales_free(&back);
    octe_scales_free(&sc);
}

/* Version 2: a format for every layer, by name; without formats the file is the one of version 1. */
static void formats_by_layer(void **state)
{
    (void)state;
    octe_scales sc = sample(), back;
    oct_error error = OCT_ERROR_INIT;
    octe_kv_layer_format formats[3];
    static const char *const names[3][2] = {{"i8+rot", "e4m3:layer"}, {"f16", "f16"}, {"e4m3fnuz:channel", "i8:channel+rot"}};
    const char *path = tiny_path("formats.json");
    for (int il = 0; il < 3; il++) {
        assert_int_equal(octe_kv_format_from_name(names[il][0], &formats[il].k, NULL), OCT_OK);
        assert_int_equal(octe_kv_format_from_name(names[il][1], &formats[il].v, NULL), OCT_OK);
    }
    assert_int_equal(octe_scales_write(&sc, 1, path, &error), OCT_OK);
    json_t *root = json_load_file(path, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "octavo"), "version")), 1);
    assert_null(json_object_get(json_object_get(root, "octavo"), "formats"));
    json_decref(root);
    assert_int_equal(octe_scales_set_formats(&sc, formats, &error), OCT_OK);
    assert_int_equal(octe_scales_set_formats(&sc, formats, &error), OCT_OK);   /* again: the old ones go */
    assert_int_equal(octe_scales_write(&sc, 1, path, &error), OCT_OK);
    if (octe_scales_read(path, 0, &back, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    assert_memory_equal(back.formats, formats, sizeof(formats));
    assert_memory_equal(back.channel[1], sc.channel[1], 24 * sizeof(float));
    octe_scales_free(&back);
    octe_scales_free(&sc);
    root = json_load_file(path, 0, NULL);
    json_t *ours = json_object_get(root, "octavo");
    assert_int_equal(json_integer_value(json_object_get(ours, "version")), 2);
    assert_non_null(json_object_get(json_object_get(json_object_get(root, "kv_cache"), "scaling_factor"), "0"));   /* as others read it */
    static const struct {
        const char *path, *json, *says;
    } wrong[] = {
        {"version", "3", "'octavo.version' is not 1 or 2"},
        {"version", "0", "'octavo.version' is not 1 or 2"},
        {"formats", "[]", "'octavo.formats' is an array"},
        {"formats", "{\"k\": [\"f16\", \"f16\", \"f16\"]}", "'octavo.formats.v' is missing"},
        {"formats", "{\"k\": [\"f16\", \"f16\"], \"v\": [\"f16\", \"f16\", \"f16\"]}", "'octavo.formats.k' is an array of 2; must be an array of 3 names"},
        {"formats", "{\"k\": [\"f16\", \"q5\", \"f16\"], \"v\": [\"f16\", \"f16\", \"f16\"]}", "'octavo.formats.k.1' is 'q5', which is no cache format"},
        {"formats", "{\"k\": [\"f16\", \"f16\", \"f16\"], \"v\": [\"f16\", \"f16\", 7]}", "'octavo.formats.v.2' is 'a number', which is no cache format"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        json_t *copy = json_deep_copy(root);
        json_object_set_new(json_object_get(copy, "octavo"), wrong[i].path, json_loads(wrong[i].json, JSON_DECODE_ANY, NULL));
        char *text = json_dumps(copy, 0);
        assert_int_equal(octe_scales_parse(text, strlen(text), "f", 0, &back, &error), OCT_BAD_DATA);
        if (strstr(error.text, wrong[i].says) == NULL) {
            fail_msg("%s", error.text);
        }
        assert_null(back.layer[0]);
        free(text);
        json_decref(copy);
    }
    /* Version 1 has no formats, whatever stands there. */
    json_object_set_new(ours, "version", json_integer(1));
    char *text = json_dumps(root, 0);
    assert_int_equal(octe_scales_parse(text, strlen(text), "f", 0, &back, &error), OCT_OK);
    assert_null(back.formats);
    octe_scales_free(&back);
    free(text);
    json_decref(root);
}

static void write_errors_leave_nothing(void **state)
{
    (void)state;
    octe_scales sc = sample();
    oct_error error = OCT_ERROR_INIT;
    char folder[256];
    struct stat about;
    /* A folder that isn't there, a folder in the file's place, a full disk. */
    assert_int_equal(octe_scales_write(&sc, 1, "/no/such/folder/s.json", &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, "/no/such/folder/s.json"));
    snprintf(folder, sizeof(folder), "%s", tiny_path("folder.json"));
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_int_equal(octe_scales_write(&sc, 1, folder, &error), OCT_IO_ERROR);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(octe_scales_write(&sc, 1, "/dev/full", &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, "/dev/full"));
    /* Numbers that no reader would take. */
    const char *path = tiny_path("never.json");
    static const float bad[] = {0.0f, -1.0f, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        const float was = sc.head[1][5];
        sc.head[1][5] = bad[i];
        assert_int_equal(octe_scales_write(&sc, 1, path, &error), OCT_INVALID_ARGUMENT);
        sc.head[1][5] = was;
    }
    assert_int_equal(octe_scales_write(&sc, 0, path, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_scales_write(&sc, 5000, path, &error), OCT_INVALID_ARGUMENT);
    sc.dtype = OCT_DTYPE_I8;
    assert_int_equal(octe_scales_write(&sc, 1, path, &error), OCT_INVALID_ARGUMENT);
    assert_int_not_equal(stat(path, &about), 0);
    assert_int_equal(octe_scales_write(&sc, 1, NULL, &error), OCT_INVALID_ARGUMENT);
    octe_scales_free(&sc);
    assert_int_equal(octe_scales_create(&sc, 0, 1, 1, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_scales_create(&sc, 1, 5000, 1, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_scales_create(&sc, 1, 1, 513, &error), OCT_INVALID_ARGUMENT);
}

#define WRAP(factors) "{\"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": " factors "}}"
#define OURS(ours) "{\"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": {\"0\": {\"0\": 1, \"1\": 1}}}, \"octavo\": " ours "}"

static void refuses_wrong_files(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } list[] = {
        {"", "not JSON"},
        {"{", "not JSON"},
        {"nonsense", "not JSON"},
        {"[]", "must be an object"},
        {"null", "must be an object"},
        {"{}", "'kv_cache' is missing"},
        {"{\"kv_cache\": 3}", "'kv_cache' is a number"},
        {"{\"kv_cache\": {}}", "'kv_cache.dtype'"},
        {"{\"kv_cache\": {\"dtype\": \"float8_e5m2\", \"scaling_factor\": {\"0\": {\"0\": 1}}}}", "float8_e5m2"},
        {"{\"kv_cache\": {\"dtype\": 8}}", "'kv_cache.dtype' is 'a number'"},
        {"{\"kv_cache\": {\"dtype\": \"float8_e4m3fn\"}}", "'kv_cache.scaling_factor' is missing"},
        {WRAP("[]"), "'kv_cache.scaling_factor' is an array"},
        {WRAP("{}"), "has 0 ranks"},
        {WRAP("{\"1\": {\"0\": 1}}"), "none is '0'"},
        {WRAP("{\"0\": {\"0\": 1}, \"2\": {\"0\": 1}}"), "none is '1'"},
        {WRAP("{\"0\": {}}"), "'kv_cache.scaling_factor.0' has 0 layers"},
        {WRAP("{\"0\": [1, 2]}"), "'kv_cache.scaling_factor.0' is an array"},
        {WRAP("{\"0\": {\"0\": 1, \"2\": 1}}"), "'kv_cache.scaling_factor.0.1' is missing"},
        {WRAP("{\"0\": {\"00\": 1}}"), "'kv_cache.scaling_factor.0.0' is missing"},
        {WRAP("{\"0\": {\"0\": 1, \"0\": 2}}"), "duplicate"},
        {WRAP("{\"0\": {\"0\": 0}}"), "'kv_cache.scaling_factor.0.0' is 0"},
        {WRAP("{\"0\": {\"0\": -0.5}}"), "'kv_cache.scaling_factor.0.0' is -0.5"},
        {WRAP("{\"0\": {\"0\": 1e-60}}"), "'kv_cache.scaling_factor.0.0' is 1e-60"},
        {WRAP("{\"0\": {\"0\": 1e60}}"), "'kv_cache.scaling_factor.0.0' is 1e+60"},
        {WRAP("{\"0\": {\"0\": 1e999}}"), "not JSON"},
        {WRAP("{\"0\": {\"0\": NaN}}"), "not JSON"},
        {WRAP("{\"0\": {\"0\": \"1\"}}"), "'kv_cache.scaling_factor.0.0' is a string"},
        {WRAP("{\"0\": {\"0\": null}}"), "'kv_cache.scaling_factor.0.0' is null"},
        {"{\"model_type\": 5, \"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": {\"0\": {\"0\": 1}}}}", "'model_type'"},
        {"{\"model_type\": \"a\\u0007b\", \"kv_cache\": {\"dtype\": \"float8_e4m3fn\", \"scaling_factor\": {\"0\": {\"0\": 1}}}}", "'model_type'"},
        {OURS("[]"), "'octavo' is an array"},
        {OURS("{}"), "'octavo.version'"},
        {OURS("{\"version\": 3}"), "'octavo.version'"},
        {OURS("{\"version\": 2}"), "'octavo.k' is missing"},
        {OURS("{\"version\": 1}"), "'octavo.k' is missing"},
        {OURS("{\"version\": 1, \"heads\": 0}"), "'octavo.heads'"},
        {OURS("{\"version\": 1, \"heads\": 1e3}"), "'octavo.heads'"},
        {OURS("{\"version\": 1, \"heads\": 100000}"), "'octavo.heads'"},
        {OURS("{\"version\": 1, \"dim\": 64}"), "'octavo.dim'"},
        {OURS("{\"version\": 1, \"heads\": 1024, \"dim\": 512, \"k\": {}, \"v\": {}}"), "'octavo.k.layer' is missing"},
        {OURS("{\"version\": 1, \"rotated\": [true]}"), "'octavo.rotated'"},
        {OURS("{\"version\": 1, \"rotated\": true}"), "'octavo.rotated'"},
        {OURS("{\"version\": 1, \"k\": {\"layer\": [1]}, \"v\": {\"layer\": [1, 1]}}"), "'octavo.k.layer'"},
        {OURS("{\"version\": 1, \"k\": {\"layer\": [1, 0]}, \"v\": {\"layer\": [1, 1]}}"), "'octavo.k.layer.1' is 0"},
        {OURS("{\"version\": 1, \"k\": {\"layer\": [1, 1]}, \"v\": {\"layer\": [1, []]}}"), "'octavo.v.layer.1' is an array"},
        {OURS("{\"version\": 1, \"k\": {\"layer\": [1, 1], \"head\": [[1], [1]]}, \"v\": {\"layer\": [1, 1]}}"), "'octavo.k.head'"},
        {OURS("{\"version\": 1, \"heads\": 1, \"k\": {\"layer\": [1, 1], \"head\": [[1], [1, 1]]}, \"v\": {\"layer\": [1, 1]}}"), "'octavo.k.head.1'"},
        {OURS("{\"version\": 1, \"heads\": 1, \"k\": {\"layer\": [1, 1], \"channel\": [[1], [1]]}, \"v\": {\"layer\": [1, 1]}}"), "'octavo.k.channel'"},
        {OURS("{\"version\": 1, \"heads\": 1, \"dim\": 2, \"k\": {\"layer\": [1, 1], \"channel\": [[[1, 1]], [[1, -1]]]}, \"v\": {\"layer\": [1, 1]}}"), "'octavo.k.channel.1.0.1' is -1"},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        octe_scales sc;
        oct_error error = OCT_ERROR_INIT;
        const oct_status s = octe_scales_parse(list[i].json, strlen(list[i].json), "dir/scales.json", 0, &sc, &error);
        if (s != OCT_BAD_DATA || strstr(error.text, list[i].says) == NULL || strstr(error.text, "dir/scales.json: ") != error.text) {
            fail_msg("%s\n gave %d '%s'; expected '%s'", list[i].json, (int)s, error.text, list[i].says);
        }
        assert_null(sc.layer[0]);
    }
    /* Sizes: deep nesting, many values, a large file, in little time and memory. */
    const size_t n = (size_t)40 << 20;
    char *large = malloc(n);
    octe_scales sc;
    oct_error error = OCT_ERROR_INIT;
    memset(large, '[', n);
    assert_int_equal(octe_scales_parse(large, n, "f", 0, &sc, &error), OCT_BAD_DATA);
    assert_int_equal(octe_scales_parse(large, 1000000, "f", 0, &sc, &error), OCT_BAD_DATA);
    assert_non_null(strstr(error.text, "f: not JSON"));
    memset(large, ' ', n);
    assert_int_equal(octe_scales_parse(large, n, "f", 0, &sc, &error), OCT_BAD_DATA);
    free(large);
    assert_int_equal(octe_scales_read("/no/such.json", 0, &sc, &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, "/no/such.json"));
    assert_int_equal(octe_scales_read("/", 0, &sc, &error), OCT_IO_ERROR);
    assert_int_equal(octe_scales_read("/dev/zero", 0, &sc, &error), OCT_BAD_DATA);
    assert_int_equal(octe_scales_read(NULL, 0, &sc, &error), OCT_INVALID_ARGUMENT);
}

/* ---- calibration ------------------------------------------------------------------------------------------------ */

enum { N = 130, V = TINY_VOCAB };
static octe_model *model;          /* gemma3: 7 layers, 1 KV head of 32 dims, a window of 24 */
static int32_t tokens[N];

static octe_engine *engine_of(octe_kv_config config)
{
    octe_engine *e;
    octe_engine_options o;
    oct_error error = OCT_ERROR_INIT;
    octe_engine_options_init(&o);
    o.n_threads = 1;
    o.max_context_tokens = 160;
    o.max_step_rows = 160;
    o.kv = config;
    o.count = true;
    if (octe_engine_open(model, &o, &e, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return e;
}

static octe_kv_config named(const char *k, const char *v, const octe_scales *sc)
{
    octe_kv_config c = {.scales = sc};
    assert_int_equal(octe_kv_format_from_name(k, &c.k, NULL), OCT_OK);
    assert_int_equal(octe_kv_format_from_name(v, &c.v, NULL), OCT_OK);
    return c;
}

static uint64_t saturated(octe_engine *e, oct_kv_counts *k, oct_kv_counts *v)
{
    uint64_t n = 0;
    octe_engine_counts(e, k, v);
    for (int il = 0; il < 7; il++) {
        n += k[il].n_saturated + v[il].n_saturated;
    }
    return n;
}

static bool stop(void *user, uint64_t done, uint64_t total)
{
    uint64_t *seen = user;
    seen[0]++;
    seen[1] = done;
    seen[2] = total;
    return done < 40;
}

static void calibrates(void **state)
{
    (void)state;
    octe_scales sc;
    oct_error error = OCT_ERROR_INIT;
    const octe_calibrate_options co = {.n_threads = 1, .chunk_tokens = 100};
    if (octe_calibrate(model, tokens, N, &co, &sc, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    assert_true(sc.n_layers == 7 && sc.n_heads == 1 && sc.dim == 32 && sc.layer_split);
    assert_string_equal(sc.model_type, "gemma3_text");
    /* The engine's own counters see the same amax in the same chunks. */
    octe_engine *e = engine_of(named("f32", "f32", NULL));
    oct_kv_counts k[7], v[7];
    assert_int_equal(octe_engine_prefill(e, 0, tokens, 100, NULL, NULL), OCT_OK);
    assert_int_equal(octe_engine_free(e, 0, NULL), OCT_OK);
    assert_int_equal(octe_engine_prefill(e, 0, tokens + 100, N - 100, NULL, NULL), OCT_OK);
    octe_engine_counts(e, k, v);
    octe_engine_close(e);
    for (int il = 0; il < 7; il++) {
        assert_true(fabsf(sc.layer[0][il] * 448.0f / k[il].amax - 1.0f) < 1e-4f);
        assert_true(fabsf(sc.layer[1][il] * 448.0f / v[il].amax - 1.0f) < 1e-4f);
        float largest = 0;
        for (int d = 0; d < 32; d++) {
            largest = fmaxf(largest, sc.channel[0][il * 32 + d]);
        }
        assert_true(largest == sc.head[0][il] && largest == sc.layer[0][il]);
        assert_true(il == 0 || sc.layer[0][il] != sc.layer[0][0]);
    }
    octe_scales_free(&sc);
    /* Rotated values have another amax, and the scales say so. */
    octe_scales rotated;
    const octe_calibrate_options ro = {.n_threads = 1, .chunk_tokens = 100, .rotate = {true, false}};
    assert_int_equal(octe_calibrate(model, tokens, N, &ro, &rotated, &error), OCT_OK);
    assert_true(rotated.rotated[0] && !rotated.rotated[1]);
    octe_engine_options o;
    octe_engine_options_init(&o);
    o.kv = named("e4m3:layer", "e4m3:layer", &rotated);
    assert_int_equal(octe_engine_open(model, &o, &e, &error), OCT_BAD_DATA);
    assert_non_null(strstr(error.text, "rotated"));
    e = engine_of(named("e4m3:layer+rot", "e4m3:layer", &rotated));
    assert_int_equal(octe_engine_prefill(e, 0, tokens, 100, NULL, NULL), OCT_OK);
    assert_int_equal(saturated(e, k, v), 0);
    octe_engine_close(e);
    octe_scales_free(&rotated);
    /* Stopping, and what can't be calibrated. */
    uint64_t seen[3] = {0};
    const octe_calibrate_options stopping = {.n_threads = 1, .chunk_tokens = 20, .progress = stop, .user = seen};
    assert_int_equal(octe_calibrate(model, tokens, N, &stopping, &sc, &error), OCT_CANCELLED);
    assert_true(seen[0] == 2 && seen[1] == 40 && seen[2] == N);
    assert_null(sc.layer[0]);
    assert_int_equal(octe_calibrate(model, tokens, 0, NULL, &sc, &error), OCT_INVALID_ARGUMENT);
    const octe_calibrate_options wide = {.dtype = OCT_DTYPE_BF16};
    assert_int_equal(octe_calibrate(model, tokens, N, &wide, &sc, &error), OCT_INVALID_ARGUMENT);
    const int32_t outside[] = {V};
    assert_int_equal(octe_calibrate(model, outside, 1, NULL, &sc, &error), OCT_INVALID_ARGUMENT);
}

/* Bytes of one stored vector of layer il. */
static void stored(const octe_engine *e, uint32_t il, uint32_t position, unsigned char *k, unsigned char *v)
{
    oct_kv_layer view = {.struct_size = sizeof(view)};
    int32_t slot;
    assert_int_equal(octe_engine_stored(e, il, 0, position, &view, &slot), OCT_OK);
    assert_true(slot >= 0);
    memcpy(k, (const unsigned char *)view.k + slot / 16 * view.k_page_stride + slot % 16 * view.k_token_stride, 32);
    memcpy(v, (const unsigned char *)view.v + slot / 16 * view.v_page_stride + slot % 16 * view.v_token_stride, 32);
}

/* A1: every layer writes with its own scale and reads with the same. */
static void scales_reach_the_pages(void **state)
{
    (void)state;
    octe_scales sc;
    oct_kv_counts k[7], v[7];
    const octe_calibrate_options co = {.n_threads = 1};
    assert_int_equal(octe_calibrate(model, tokens, N, &co, &sc, NULL), OCT_OK);
    static const char *const forms[] = {"e4m3:layer", "e4m3:head", "e4m3:tensor", "e4m3:channel", "i8:channel", "e4m3fnuz:layer", "e5m2:layer"};
    static float base[V];
    octe_engine *e = engine_of(named("f32", "f32", NULL));
    const float *logits;
    assert_int_equal(octe_engine_prefill(e, 0, tokens, 100, &logits, NULL), OCT_OK);
    memcpy(base, logits, sizeof(base));
    octe_engine_close(e);
    for (size_t f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
        e = engine_of(named(forms[f], forms[f], &sc));
        assert_int_equal(octe_engine_prefill(e, 0, tokens, 100, &logits, NULL), OCT_OK);
        const double d = logits_distance(logits, base, V);
        print_message("%s: 1 - cos %.1e, saturated %llu\n", forms[f], d, (unsigned long long)saturated(e, k, v));
        /* Scales made from these very tokens: of 44,800 values only those saturate that the cache itself has pushed up on the way; with a
         * scale a channel each of 448 has a largest value to be pushed. */
        assert_true(saturated(e, k, v) <= (strstr(forms[f], "channel") != NULL ? 448 : 20));
        assert_true(d < 0.05);
        octe_engine_close(e);
    }
    /* The first layer sees the same input whatever the cache: its bytes follow from its scale alone. Twice the scale is one exponent less. */
    unsigned char one[2][32], two[2][32];
    e = engine_of(named("e4m3:layer", "e4m3:layer", &sc));
    assert_int_equal(octe_engine_prefill(e, 0, tokens, 10, NULL, NULL), OCT_OK);
    stored(e, 0, 5, one[0], one[1]);
    octe_engine_close(e);
    sc.layer[0][0] *= 2;
    e = engine_of(named("e4m3:layer", "e4m3:layer", &sc));
    assert_int_equal(octe_engine_prefill(e, 0, tokens, 10, &logits, NULL), OCT_OK);
    memcpy(base, logits, sizeof(base));
    stored(e, 0, 5, two[0], two[1]);
    octe_engine_close(e);
    assert_memory_equal(one[1], two[1], 32);
    int n_normal = 0;
    for (int d = 0; d < 32; d++) {
        if ((one[0][d] & 0x7f) >= 0x10) {   /* still normal with one exponent less */
            n_normal++;
            assert_int_equal(two[0][d], one[0][d] - 8);
        }
    }
    assert_true(n_normal > 16);
    /* Two layers' scales exchanged are other bytes and other logits: no layer uses another's. */
    const float swapped = sc.layer[1][2];
    sc.layer[1][2] = sc.layer[1][6];
    sc.layer[1][6] = swapped;
    e = engine_of(named("e4m3:layer", "e4m3:layer", &sc));
    assert_int_equal(octe_engine_prefill(e, 0, tokens, 10, &logits, NULL), OCT_OK);
    assert_true(logits_distance(logits, base, V) > 0);
    octe_engine_close(e);
    octe_scales_free(&sc);
}

static void scales_must_fit(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers, heads, dim;
        const char *type, *form, *says;
    } list[] = {
        {6, 1, 32, "", "e4m3:layer", "6 layers, the model has 7"},   {7, 1, 32, "llama", "e4m3:layer", "model_type 'llama'"},
        {7, 0, 0, "", "e4m3:head", "no numbers by head"},            {7, 1, 0, "", "e4m3:channel", "no numbers by channel"},
        {7, 2, 32, "", "e4m3:head", "2 heads"},                      {7, 1, 64, "", "e4m3:channel", "64 dims"},
        {7, 0, 0, "", "e4m3:layer+rot", "rotated"},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        octe_scales sc;
        octe_engine *e;
        octe_engine_options o;
        oct_error error = OCT_ERROR_INIT;
        assert_int_equal(octe_scales_create(&sc, list[i].layers, list[i].heads, list[i].dim, NULL), OCT_OK);
        strcpy(sc.model_type, list[i].type);
        octe_engine_options_init(&o);
        o.kv = named(list[i].form, list[i].form, &sc);
        const oct_status s = octe_engine_open(model, &o, &e, &error);
        if (s != OCT_BAD_DATA || strstr(error.text, list[i].says) == NULL) {
            fail_msg("case %zu: %d '%s'", i, (int)s, error.text);
        }
        octe_scales_free(&sc);
    }
}

static int open_model(void **state)
{
    (void)state;
    tiny_model m;
    oct_error error = OCT_ERROR_INIT;
    assert_true(tiny_model_at(5, &m));
    tiny_model_write(&m, tiny_path("gemma.gguf"));
    uint32_t x = 99;
    for (int i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 16) % V);
    }
    return octe_model_open(tiny_path("gemma.gguf"), NULL, &model, &error) == OCT_OK ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    octe_model_close(model);
    tiny_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_others_write), cmocka_unit_test(round_trip), cmocka_unit_test(formats_by_layer),  cmocka_unit_test(write_errors_leave_nothing), cmocka_unit_test(refuses_wrong_files),
        cmocka_unit_test(calibrates),              cmocka_unit_test(scales_reach_the_pages), cmocka_unit_test(scales_must_fit),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
