/* The strict GGUF check against hostile files: fault K1 and its whole kind. Everything is built in memory; nothing random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#include <gguf.h>

#include "engine/gguf_bytes.h"
#include "engine/gguf_check.h"
#include "engine/runtime.h"

static oct_status check(const gguf_bytes *b, oct_error *error)
{
    *error = (oct_error)OCT_ERROR_INIT;
    return octe_gguf_check_memory(b->data, b->size, "some/file.gguf", NULL, error);
}

/* Whatever the check lets through, ggml must read without ending the process. */
static bool ggml_reads(const gguf_bytes *b)
{
    struct ggml_context *tensors = NULL;
    const struct gguf_init_params params = {.no_alloc = true, .ctx = &tensors};
    struct gguf_context *gguf = gguf_init_from_buffer(b->data, b->size, params);
    if (gguf != NULL) {
        gguf_free(gguf);
    }
    ggml_free(tensors);
    return gguf != NULL;
}

static void refuse(gguf_bytes *b, const char *says)
{
    oct_error error;
    assert_int_equal(check(b, &error), OCT_BAD_DATA);
    if (strstr(error.text, says) == NULL || strstr(error.text, "some/file.gguf: ") != error.text) {
        fail_msg("'%s' should name the file and hold '%s'", error.text, says);
    }
    gguf_bytes_free(b);
}

static void accepts_a_right_file(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    gguf_put_sample(&b);
    octe_gguf_summary s = {0};
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_gguf_check_memory(b.data, b.size, "f", &s, &error), OCT_OK);
    assert_int_equal(s.version, 3);
    assert_int_equal(s.n_keys, 5);
    assert_int_equal(s.n_tensors, 3);
    assert_int_equal(s.alignment_bytes, 32);
    assert_int_equal(s.data_size_bytes, 64 + 68);
    assert_int_equal(s.data_offset_bytes + s.data_size_bytes, b.size);
    assert_true(ggml_reads(&b));
    b.data[4] = 2;
    assert_int_equal(check(&b, &error), OCT_OK);
    gguf_bytes_free(&b);
    /* No tensors at all is a vocabulary. */
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_key_string(&b, "general.architecture", "x");
    assert_int_equal(check(&b, &error), OCT_OK);
    gguf_bytes_free(&b);
}

static void refuses_every_truncation(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    gguf_put_sample(&b);
    oct_error error;
    for (size_t n = 0; n < b.size; n++) {
        /* A copy of exactly n bytes, so that a read past the end is seen by the address sanitizer. */
        gguf_bytes cut = {malloc(n > 0 ? n : 1), n, n};
        memcpy(cut.data, b.data, n);
        if (check(&cut, &error) != OCT_BAD_DATA) {
            fail_msg("a file cut to %zu of %zu bytes was accepted", n, b.size);
        }
        gguf_bytes_free(&cut);
    }
    gguf_bytes_free(&b);
}

static void survives_every_byte(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    gguf_put_sample(&b);
    oct_error error;
    size_t n_accepted = 0, n_refused = 0;
    const size_t header = b.size - 64 - 68;
    octe__runtime_start();   /* ggml's own complaints stay unheard */
    for (size_t i = 0; i < header; i++) {
        const unsigned char was = b.data[i];
        const unsigned char tried[] = {0x00, 0x01, 0x7f, 0x80, 0xff, (unsigned char)(was ^ 1), (unsigned char)(was + 1), (unsigned char)(was - 1)};
        for (size_t t = 0; t < sizeof(tried); t++) {
            b.data[i] = tried[t];
            const oct_status s = check(&b, &error);
            assert_true(s == OCT_OK || s == OCT_BAD_DATA);
            if (s == OCT_OK && !ggml_reads(&b)) {
                fail_msg("byte %zu = 0x%02x: the check accepts what ggml refuses", i, tried[t]);
            }
            n_accepted += s == OCT_OK;
            n_refused += s != OCT_OK;
        }
        b.data[i] = was;
    }
    /* Both outcomes are common: bytes of texts and numbers may change, lengths and types may not. */
    assert_true(n_accepted > 100 && n_refused > 500);
    gguf_bytes_free(&b);
}

static void refuses_foreign_files(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    refuse(&b, "not a GGUF");
    gguf_put(&b, "\x7f" "ELF\x02\x01\x01", 7);
    refuse(&b, "not a GGUF");
    gguf_put(&b, "GGUF", 4);
    refuse(&b, "truncated");
    for (uint32_t version = 0; version < 2; version++) {
        gguf_put_header(&b, version, 0, 0);
        refuse(&b, "version");
    }
    gguf_put_header(&b, 4, 0, 0);
    refuse(&b, "version 4");
    gguf_put_header(&b, 0x03000000u, 0, 0);   /* big-endian */
    refuse(&b, "version");
}

static void refuses_counts(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    static const uint64_t counts[] = {1, 1000, (uint64_t)1 << 32, (uint64_t)1 << 60, (uint64_t)1 << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        gguf_put_header(&b, 3, counts[i], 0);
        refuse(&b, "tensors");
        gguf_put_header(&b, 3, 0, counts[i]);
        refuse(&b, "keys");
    }
    /* A count that fits the bytes but not the limit: 2^20 + 1 keys of 14 bytes. */
    gguf_put_header(&b, 3, 0, (1 << 20) + 1);
    for (int i = 0; i < (1 << 20) + 1; i++) {
        static const char record[14] = "";
        gguf_put(&b, record, sizeof(record));
    }
    refuse(&b, "1048577 keys");
}

static void refuses_strings(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    static const uint64_t lengths[] = {65536, (uint64_t)1 << 31, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_u64(&b, lengths[i]);
        gguf_put(&b, "general.name\0\0\0\0", 16);
        refuse(&b, "key 0");
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_string(&b, "general.name");
        gguf_put_u32(&b, 8);
        gguf_put_u64(&b, lengths[i]);
        gguf_put(&b, "abc", 3);
        refuse(&b, "key 0");
        gguf_put_header(&b, 3, 1, 0);
        gguf_put_u64(&b, lengths[i]);
        for (int k = 0; k < 8; k++) {
            gguf_put(&b, "abcdefgh", 8);
        }
        refuse(&b, "tensor 0");
    }
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_key_u32(&b, "", 1);
    refuse(&b, "empty");
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_string_n(&b, "a\0b", 3);
    gguf_put_u32(&b, 4);
    gguf_put_u32(&b, 1);
    refuse(&b, "control");
}

static void refuses_arrays(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    static const uint64_t counts[] = {4, (uint64_t)1 << 30, (uint64_t)1 << 61, (uint64_t)1 << 62, UINT64_MAX};
    for (uint32_t type = 0; type < 13; type++) {
        for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]) && type != 9; i++) {
            gguf_put_header(&b, 3, 0, 1);
            gguf_put_string(&b, "some.array");
            gguf_put_u32(&b, 9);
            gguf_put_u32(&b, type);
            gguf_put_u64(&b, counts[i]);
            gguf_put(&b, "abc", 3);
            refuse(&b, "some.array");
        }
    }
    static const uint32_t types[] = {13, 99, 0x7fffffff, UINT32_MAX};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_string(&b, "some.array");
        gguf_put_u32(&b, 9);
        gguf_put_u32(&b, types[i]);
        gguf_put_u64(&b, 0);
        refuse(&b, "some.array");
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_string(&b, "some.value");
        gguf_put_u32(&b, types[i]);
        gguf_put_u64(&b, 0);
        refuse(&b, "some.value");
    }
    /* A million arrays in each other. */
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_string(&b, "deep.array");
    gguf_put_u32(&b, 9);
    for (int i = 0; i < 1000000; i++) {
        gguf_put_u32(&b, 9);
        gguf_put_u64(&b, 1);
    }
    refuse(&b, "array of arrays");
}

static void refuses_alignments(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {0, 1, 2, 3, 4, 7, 12, 33, 96, 65537, 131072, 0x80000000u, UINT32_MAX};
    gguf_bytes b = {0};
    for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++) {
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_key_u32(&b, "general.alignment", alignments[i]);
        refuse(&b, "general.alignment");
    }
    for (uint32_t type = 0; type < 13; type++) {
        if (type == 4 || type == 8 || type == 9) {
            continue;
        }
        gguf_put_header(&b, 3, 0, 1);
        gguf_put_string(&b, "general.alignment");
        gguf_put_u32(&b, type);
        gguf_put_u64(&b, 32);
        refuse(&b, "general.alignment");
    }
    gguf_put_header(&b, 3, 0, 1);
    gguf_put_key_string(&b, "general.alignment", "32");
    refuse(&b, "general.alignment");
}

static void refuses_duplicates(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    gguf_put_header(&b, 3, 0, 3);
    gguf_put_key_u32(&b, "one.key", 1);
    gguf_put_key_u32(&b, "another.key", 1);
    gguf_put_key_u32(&b, "one.key", 1);
    refuse(&b, "two keys have the name 'one.key'");
    const uint64_t dims[] = {8};
    gguf_put_header(&b, 3, 3, 0);
    gguf_put_tensor(&b, "x.weight", 1, dims, 0, 0);
    gguf_put_tensor(&b, "y.weight", 1, dims, 0, 32);
    gguf_put_tensor(&b, "x.weight", 1, dims, 0, 64);
    gguf_pad(&b, 32);
    for (int i = 0; i < 96; i++) {
        gguf_put(&b, "", 1);
    }
    refuse(&b, "two tensors have the name 'x.weight'");
}

/* One tensor named "t", with data of n_data bytes. */
static void one_tensor(gguf_bytes *b, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset, size_t n_data)
{
    gguf_put_header(b, 3, 1, 0);
    gguf_put_tensor(b, "t", n_dims, dims, type, offset);
    gguf_pad(b, 32);
    for (size_t i = 0; i < n_data; i++) {
        gguf_put(b, "", 1);
    }
}

static void refuses_shapes(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    oct_error error;
    const uint64_t fine[] = {32, 2, 1, 1};
    one_tensor(&b, 2, fine, 0, 0, 256);
    assert_int_equal(check(&b, &error), OCT_OK);
    gguf_bytes_free(&b);
    one_tensor(&b, 0, fine, 0, 0, 256);
    refuse(&b, "'t' has 0 dimensions");
    one_tensor(&b, 5, (const uint64_t[]){1, 1, 1, 1, 1}, 0, 0, 256);
    refuse(&b, "'t' has 5 dimensions");
    one_tensor(&b, 2, (const uint64_t[]){32, 0}, 0, 0, 256);
    refuse(&b, "dimension 1 of 0");
    one_tensor(&b, 2, (const uint64_t[]){32, UINT64_MAX}, 0, 0, 256);
    refuse(&b, "dimension 1");
    /* The reported file: a product that wraps 64 bits to something small. */
    one_tensor(&b, 2, (const uint64_t[]){1152, ((uint64_t)1 << 42) + 1}, 0, 0, 4608);
    refuse(&b, "larger than the file");
    one_tensor(&b, 4, (const uint64_t[]){1 << 16, 1 << 16, 1 << 16, 1 << 16}, 0, 0, 256);
    refuse(&b, "larger than the file");
    one_tensor(&b, 2, (const uint64_t[]){(uint64_t)1 << 62, 4}, 0, 0, 256);
    refuse(&b, "larger than the file");
    one_tensor(&b, 1, (const uint64_t[]){((uint64_t)1 << 62) + 8}, 0, 0, 256);
    refuse(&b, "larger than the file");
    one_tensor(&b, 1, (const uint64_t[]){33}, 8, 0, 256);
    refuse(&b, "multiple of 32");
    one_tensor(&b, 1, (const uint64_t[]){65}, 0, 0, 256);
    refuse(&b, "truncated");
    /* Removed, unknown, negative types. */
    static const uint32_t types[] = {4, 5, 31, 36, 43, 1000, 0x80000000u, UINT32_MAX};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        one_tensor(&b, 2, fine, types[i], 0, 256);
        refuse(&b, "type");
    }
}

static void refuses_offsets(void **state)
{
    (void)state;
    gguf_bytes b = {0};
    const uint64_t dims[] = {8};
    static const uint64_t offsets[] = {1, 32, 4096, (uint64_t)1 << 40, UINT64_MAX - 31, UINT64_MAX};
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        one_tensor(&b, 1, dims, 0, offsets[i], 256);
        refuse(&b, "'t' has offset");
    }
    /* Two tensors over one another, and out of order. */
    static const uint64_t seconds[] = {0, 16, 31, 64};
    for (size_t i = 0; i < sizeof(seconds) / sizeof(seconds[0]); i++) {
        gguf_put_header(&b, 3, 2, 0);
        gguf_put_tensor(&b, "s", 1, dims, 0, 0);
        gguf_put_tensor(&b, "t", 1, dims, 0, seconds[i]);
        gguf_pad(&b, 32);
        for (int k = 0; k < 256; k++) {
            gguf_put(&b, "", 1);
        }
        refuse(&b, "'t' has offset");
    }
}

static void files_and_memory(void **state)
{
    (void)state;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_gguf_check_file("/no/such/file.gguf", NULL, &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, "/no/such/file.gguf"));
    assert_int_equal(octe_gguf_check_file("/", NULL, &error), OCT_IO_ERROR);
    assert_int_equal(octe_gguf_check_file("/dev/zero", NULL, &error), OCT_IO_ERROR);
    assert_int_equal(octe_gguf_check_file("", NULL, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_gguf_check_file(NULL, NULL, &error), OCT_INVALID_ARGUMENT);

    /* A terabyte of nothing behind a header costs no memory, and neither do a million keys. */
    char path[] = "/tmp/octavo_gguf_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    gguf_bytes b = {0};
    gguf_put_header(&b, 3, 0, 1000000);
    for (int i = 0; i < 1000000; i++) {
        char key[32];
        snprintf(key, sizeof(key), "k%07lld", (long long)i * 7919 % 1000000);
        gguf_put_key_u32(&b, key, 1);
    }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    assert_int_equal(check(&b, &error), OCT_OK);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 100 * 1024);
    assert_int_equal(write(fd, b.data, b.size), (ssize_t)b.size);
    assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
    assert_int_equal(octe_gguf_check_file(path, NULL, &error), OCT_OK);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 200 * 1024);   /* the 30 MB of the file's own pages in both forms */
    gguf_bytes_free(&b);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_a_right_file), cmocka_unit_test(refuses_every_truncation), cmocka_unit_test(survives_every_byte),
        cmocka_unit_test(refuses_foreign_files), cmocka_unit_test(refuses_counts),          cmocka_unit_test(refuses_strings),
        cmocka_unit_test(refuses_arrays),        cmocka_unit_test(refuses_alignments),      cmocka_unit_test(refuses_duplicates),
        cmocka_unit_test(refuses_shapes),        cmocka_unit_test(refuses_offsets),         cmocka_unit_test(files_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
