/* test_text.c: texts are cut as snprintf cuts, numbers have a point in every locale, JSON strings are escaped; and the log's and the error's texts. */
#include "host_test.h"

#include <float.h>
#include <math.h>

#include "host/error.h"
#include "host/log.h"
#include "host/text.h"

static void pieces_add_up_and_are_cut(void **state)
{
    (void)state;
    for (size_t size = 0; size <= 16; size++) {
        char bytes[17];
        oct__text text;
        memset(bytes, '?', sizeof(bytes));
        oct__text_init(&text, bytes, size);
        oct__text_add(&text, "%s-%d", "abc", 42);
        oct__text_add(&text, "%s", "");
        oct__text_add(&text, "xyz");
        assert_int_equal(text.length, 9);
        if (size > 0) {
            assert_int_equal(strncmp(bytes, "abc-42xyz", size - 1), 0);
            assert_int_equal(bytes[size - 1 < 9 ? size - 1 : 9], '\0');
        }
        assert_int_equal(bytes[size], '?');
    }
}

static const char *number(double value, int digits)
{
    static char bytes[64];
    oct__text text;
    oct__text_init(&text, bytes, sizeof(bytes));
    oct__text_add_number(&text, value, digits);
    return bytes;
}

static void numbers_have_a_point(void **state)
{
    (void)state;
    assert_string_equal(number(0.5, 6), "0.5");
    assert_string_equal(number(-1234.5, 6), "-1234.5");
    assert_string_equal(number(1e-9, 3), "1e-09");
    assert_string_equal(number(2.5e30, 6), "2.5e+30");
    assert_string_equal(number(3, 6), "3");
    assert_string_equal(number(NAN, 6), "null");
    assert_string_equal(number(-INFINITY, 6), "null");
    assert_true(strtod(number(DBL_MAX, 17), NULL) == DBL_MAX);
    /* What other locales write: German, Pashto (U+066B). */
    char comma[] = "-1234,5e-07", arabic[] = "0\xd9\xab" "25", none[] = "12";
    oct__text_point_number(comma);
    oct__text_point_number(arabic);
    oct__text_point_number(none);
    assert_string_equal(comma, "-1234.5e-07");
    assert_string_equal(arabic, "0.25");
    assert_string_equal(none, "12");
}

static void json_strings_are_escaped(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = {
        { "", "\"\"" },
        { "plain", "\"plain\"" },
        { "a\"b\\c", "\"a\\\"b\\\\c\"" },
        { "\n\t\x1f\x7f", "\"\\u000a\\u0009\\u001f\\u007f\"" },
        { "\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\x80", "\"\xc3\xa9\xe4\xb8\x96\xf0\x9f\x98\x80\"" },
        { "\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", "\"\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"" },
        { "\xff\xc3", "\"\\ufffd\\ufffd\"" },             /* no UTF-8; cut off */
        { "\xc0\xaf", "\"\\ufffd\\ufffd\"" },             /* overlong */
        { "\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"" },   /* a surrogate */
        { "\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"" },
        { "\xe4\xb8", "\"\\ufffd\\ufffd\"" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char bytes[128];
        oct__text text;
        oct__text_init(&text, bytes, sizeof(bytes));
        oct__text_add_json_string(&text, cases[i].in);
        assert_string_equal(bytes, cases[i].out);
    }
    char bytes[16];
    oct__text text;
    oct__text_init(&text, bytes, sizeof(bytes));
    oct__text_add_json_string(&text, NULL);
    assert_string_equal(bytes, "null");
}

static char logged[1024];
static int logged_level = -1;

static void keep(void *user, int level, const char *text)
{
    assert_ptr_equal(user, logged);
    logged_level = level;
    snprintf(logged, sizeof(logged), "%s", text);
}

static void log_reaches_the_hook_or_nobody(void **state)
{
    (void)state;
    const oct__log log = { keep, logged }, none = { NULL, NULL };
    oct__log_write(&log, OCT__LOG_WARNING, "page %d", 7);
    assert_string_equal(logged, "page 7");
    assert_int_equal(logged_level, 1);
    oct__log_write(&none, OCT__LOG_ERROR, "page %d", 8);
    oct__log_write(NULL, OCT__LOG_ERROR, "page %d", 9);
    assert_string_equal(logged, "page 7");
    char longest[2000];
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    oct__log_write(&log, OCT__LOG_DEBUG, "%s", longest);
    assert_int_equal(strlen(logged), 511);
}

static void errors_are_filled_only_where_there_is_room(void **state)
{
    (void)state;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct__error_set(&error, OCT_BAD_DATA, "oct_here", "byte %d", 3), OCT_BAD_DATA);
    assert_string_equal(error.text, "byte 3");
    assert_string_equal(error.where, "oct_here");
    assert_int_equal(error.status, OCT_BAD_DATA);
    assert_int_equal(oct__error_set(NULL, OCT_IO_ERROR, "oct_here", "x"), OCT_IO_ERROR);
    oct_error unset;
    memset(&unset, 0, sizeof(unset));
    assert_int_equal(oct__error_set(&unset, OCT_IO_ERROR, "oct_here", "x"), OCT_IO_ERROR);
    assert_string_equal(unset.text, "");
    char longest[1000];
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    oct__error_set(&error, OCT_IO_ERROR, longest, "%s", longest);
    assert_int_equal(strlen(error.text), sizeof(error.text) - 1);
    assert_int_equal(strlen(error.where), sizeof(error.where) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_add_up_and_are_cut),
        cmocka_unit_test(numbers_have_a_point),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(log_reaches_the_hook_or_nobody),
        cmocka_unit_test(errors_are_filled_only_where_there_is_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
