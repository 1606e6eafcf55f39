/* test_parts.c: the pure parts of the program: divergence against plain f64, the chronicle, tables, formats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/chronicle.h"
#include "apps/compare/divergence.h"
#include "apps/compare/format.h"
#include "apps/table.h"

/* ---- divergence ------------------------------------------------------------------------------------------------- */

enum { N = 1003 };   /* no multiple of the strands */

static uint64_t state = 42;
static float draw(float spread)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return spread * ((float)(state >> 40) / (float)(1 << 23) - 1.0f);
}

static double plain_log_sum(const float *x)
{
    double most = (double)x[0], sum = 0;
    for (int i = 1; i < N; i++) {
        most = fmax(most, (double)x[i]);
    }
    for (int i = 0; i < N; i++) {
        sum += exp((double)x[i] - most);
    }
    return most + log(sum);
}

static double plain_kl(const float *p, const float *q)
{
    const double lp = plain_log_sum(p), lq = plain_log_sum(q);
    double sum = 0;
    for (int i = 0; i < N; i++) {
        sum += exp((double)p[i] - lp) * ((double)p[i] - lp - ((double)q[i] - lq));
    }
    return sum;
}

static void test_divergence(void **unused)
{
    static const float offsets[] = { 0, 3, 0.1f, 1e-3f, 1e-5f };
    (void)unused;
    float base[N], other[N], share[N];
    for (size_t o = 0; o < sizeof(offsets) / sizeof(offsets[0]); o++) {
        for (int round = 0; round < 20; round++) {
            for (int i = 0; i < N; i++) {
                base[i] = draw(15) + 5;
                other[i] = base[i] + draw(1) * offsets[o];
            }
            compare_base prepared;
            compare_base_prepare(&prepared, base, share, N);
            const uint32_t target = (uint32_t)(state >> 33) % N;
            const compare_verdict verdict = compare_judge(&prepared, other, target);
            const double kl = plain_kl(base, other);
            /* A perturbation of 1e-5 has a KL of about 1e-11: seen to within the rounding of its logits. */
            assert_true(fabs(verdict.kl - kl) <= 1e-5 * kl + 2e-9);
            assert_true(verdict.kl >= -2e-9);
            assert_true(fabs(verdict.nll - (plain_log_sum(other) - (double)other[target])) <= 1e-6);
        }
    }
}

static void test_own_row_and_ties(void **unused)
{
    (void)unused;
    float base[N], other[N], share[N];
    for (int i = 0; i < N; i++) {
        base[i] = draw(10);
    }
    compare_base prepared;
    compare_base_prepare(&prepared, base, share, N);
    const compare_verdict own = compare_judge(&prepared, base, 5);
    assert_true(own.kl == 0 && own.same_top);
    /* A copy elsewhere is as equal, and a shift of all logits changes no probability. */
    memcpy(other, base, sizeof(base));
    assert_true(compare_judge(&prepared, other, 5).kl == 0);
    for (int i = 0; i < N; i++) {
        other[i] = base[i] + 64;
    }
    assert_true(fabs(compare_judge(&prepared, other, 5).kl) < 1e-6);
    memcpy(other, base, sizeof(base));
    other[(prepared.top + 1) % N] = base[prepared.top] + 1;
    assert_false(compare_judge(&prepared, other, 5).same_top);
    other[7] = NAN;
    const compare_verdict broken = compare_judge(&prepared, other, 5);
    assert_true(isnan(broken.kl) && isnan(broken.nll) && !broken.same_top);
}

/* ---- the chronicle ------------------------------------------------------------------------------------------------ */

static uint64_t sum_of(uint64_t seed, size_t bytes, size_t *length)
{
    app_text text = { 0 };
    app_chronicle_add(&text, seed, bytes);
    assert_false(text.failed);
    assert_true(text.length >= bytes && text.length == strlen(text.bytes));
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < text.length; i++) {
        assert_true(text.bytes[i] == '\n' || (text.bytes[i] >= 0x20 && text.bytes[i] < 0x7f));
        sum = (sum ^ (unsigned char)text.bytes[i]) * UINT64_C(0x100000001b3);
    }
    *length = text.length;
    app_text_free(&text);
    return sum;
}

static void test_chronicle(void **unused)
{
    (void)unused;
    size_t a, b, longer;
    assert_true(sum_of(1, 20000, &a) == sum_of(1, 20000, &b) && a == b);
    assert_true(sum_of(1, 20000, &a) != sum_of(2, 20000, &b));
    (void)sum_of(1, 90000, &longer);
    assert_true(longer > a);
    /* One text for every compiler and machine: figures of two machines are of one text. */
    assert_int_equal(sum_of(APP_CHRONICLE_JUDGED, 6000, &a), UINT64_C(0xf342bbb6cb15c765));
}

/* ---- tables and text ------------------------------------------------------------------------------------------------- */

static void test_table(void **unused)
{
    (void)unused;
    app_table table = { 0 };
    app_text text = { 0 };
    app_table_column(&table, "cache", true);
    app_table_column(&table, "KL\nnats", false);
    app_table_column(&table, "says", true);
    app_table_cell(&table, "%s", "token×head");
    app_table_cell(&table, "%.1f", 0.5);
    app_table_cell(&table, "a|b <i> *");
    app_table_text(&table, &text);
    assert_string_equal(text.bytes, "cache         KL  says\n"
                                    "            nats\n"
                                    "token×head   0.5  a|b <i> *\n");
    app_text_free(&text);
    app_table_markdown(&table, &text);
    assert_string_equal(text.bytes, "| cache | KL nats | says |\n|---|---:|---|\n| token×head | 0.5 | a\\|b \\<i> \\* |\n");
    app_text_free(&text);
    for (int i = 0; i < 2 * APP_TABLE_MAX_CELLS; i++) {
        app_table_cell(&table, "x");
    }
    app_table_text(&table, &text);
    assert_true(text.failed);
    app_text_free(&text);
    app_table_free(&table);
}

/* Foreign texts stay texts: no cell ends, no link, HTML, emphasis, character's name or turned line comes of them. */
static void test_markdown(void **unused)
{
    (void)unused;
    app_text text = { 0 };
    app_text_add_markdown(&text, "a\\|b <script> `c` _d_ ~~e~~ &lt; [x](y) ![z][w] [0.1, 0.2]\r\n\t");
    assert_string_equal(text.bytes, "a\\\\\\|b \\<script> \\`c\\` \\_d\\_ \\~\\~e\\~\\~ \\&lt; [x\\](y) ![z\\][w] [0.1, 0.2]   ");
    app_text_free(&text);
    app_text_add_markdown(&text, "\u202e\u2066\u200f\u061c\u2013\u202f\u2070");
    assert_string_equal(text.bytes, "[U+202E][U+2066][U+200F][U+061C]\u2013\u202f\u2070");
    app_text_free(&text);
    app_text_add_markdown(&text, "\xe2\x80");   /* cut off */
    app_text_add_line(&text, "<b>\n");
    app_text_add_line(&text, NULL);
    assert_string_equal(text.bytes, "\xe2\x80<b> ");
    app_text_free(&text);
}

static void test_json(void **unused)
{
    (void)unused;
    app_text text = { 0 };
    app_text_add_json(&text, "a \"quoted\" \\ line\n\xff");
    app_text_add(&text, ",");
    app_text_add_number(&text, 1.0 / 3, 6);
    app_text_add(&text, ",");
    app_text_add_number(&text, (double)NAN, 6);
    app_text_add(&text, ",");
    app_text_add_json(&text, NULL);
    assert_string_equal(text.bytes, "\"a \\\"quoted\\\" \\\\ line\\u000a\\ufffd\",0.333333,null,null");
    app_text_free(&text);
}

/* ---- formats ------------------------------------------------------------------------------------------------------------ */

static void test_formats(void **unused)
{
    (void)unused;
    compare_format formats[COMPARE_MAX_FORMATS];
    uint32_t n;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(compare_formats_parse(COMPARE_DEFAULT_FORMATS, formats, &n, &error), OCT_OK);
    assert_int_equal(n, 12);
    assert_false(formats[0].is_reference);
    int n_references = 0, n_need_scales = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_references += formats[i].is_reference;
        n_need_scales += compare_format_needs_scales(&formats[i]);
        assert_true(app_text_columns(formats[i].label) <= 20);
    }
    assert_int_equal(n_references, 2);
    assert_int_equal(n_need_scales, 1);
    assert_int_equal(compare_formats_parse("f32,i8+rot/e4m3", formats, &n, &error), OCT_OK);
    assert_int_equal(formats[1].k.dtype, OCT_DTYPE_I8);
    assert_int_equal(formats[1].k.rotated, 1);
    assert_int_equal(formats[1].v.dtype, OCT_DTYPE_E4M3FN);
    assert_int_equal(formats[1].v.rotated, 0);
    static const char *const wrong[] = { "", ",", "f16,", "f16/", "/f16", "f16/f16/f16", "llama:", "llama:f16", "f16,llama:Q8_0", "f16 ,bf16" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(compare_formats_parse(wrong[i], formats, &n, &error), OCT_INVALID_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divergence), cmocka_unit_test(test_own_row_and_ties), cmocka_unit_test(test_chronicle),
        cmocka_unit_test(test_table),      cmocka_unit_test(test_markdown),
        cmocka_unit_test(test_json),             cmocka_unit_test(test_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
