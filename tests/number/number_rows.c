/* number_rows: runs the conversions of src/number over files of raw numbers, for test_number_oracle.py, which compares
 * them with NumPy and ml-dtypes. Built twice: as the library is, and with -ffast-math.
 *
 *   number_rows encode  DTYPE SCALE MODE IN OUT   f32 -> codes of DTYPE; prints "saturated nans"
 *   number_rows decode  DTYPE 1     MODE IN OUT   codes of DTYPE -> f32
 *   number_rows divide  -     1     MODE IN OUT   pairs of f32 -> f32 quotients
 *   number_rows dynamic DTYPE f32|f16:DIM MODE IN OUT   rows of f32[DIM] -> per row its f32 scale, then DIM codes;
 *                                                 prints "saturated nans nan_vectors"
 * MODE: plain, or ftz (flush-to-zero and denormals-are-zero are on while the numbers are converted). Exit status 77:
 * this machine has no such mode. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/convert.h"
#include "number/dtype.h"
#include "number/number.h"
#include "number/scale.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

static unsigned char *read_file(const char *path, size_t *size_bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;
    long size = -1;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        data = malloc((size_t)size + 1);
        if (data != NULL && fread(data, 1, (size_t)size, file) != (size_t)size) {
            free(data);
            data = NULL;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    *size_bytes = data != NULL ? (size_t)size : 0;
    return data;
}

static int write_file(const char *path, const unsigned char *data, size_t size_bytes)
{
    FILE *file = fopen(path, "wb");
    int ok = file != NULL && fwrite(data, 1, size_bytes, file) == size_bytes;
    return file != NULL && fclose(file) == 0 && ok;
}

static int set_mode(const char *mode)
{
    if (strcmp(mode, "plain") == 0) {
        return 0;
    }
#if defined(__SSE__)
    if (strcmp(mode, "ftz") == 0) {
        _mm_setcsr(_mm_getcsr() | 0x8040);
        return 0;
    }
    return 2;
#else
    return 77;
#endif
}

struct result {
    unsigned char *data;
    size_t size_bytes;
    int ok;
};

static struct result run_dynamic(uint32_t dtype, const char *how, const float *in, size_t n)
{
    struct result out = {NULL, 0, 0};
    struct oct__convert_count count = {0, 0};
    uint64_t nan_vectors = 0;
    const char *colon = strchr(how, ':');
    size_t dim = colon != NULL ? strtoul(colon + 1, NULL, 10) : 0;
    uint32_t scale_dtype = strncmp(how, "f16:", 4) == 0 ? OCT_DTYPE_F16 : OCT_DTYPE_F32;
    size_t rows = dim != 0 ? n / dim : 0;
    size_t row_bytes = sizeof(float) + dim * oct__dtype_size_bytes(dtype);
    out.size_bytes = rows * row_bytes;
    out.data = malloc(out.size_bytes + 1);
    if (out.data == NULL) {
        return out;
    }
    out.ok = rows != 0;
    for (size_t r = 0; r < rows; r++) {
        float scale = oct__scale_dynamic(in + r * dim, dim, dtype, scale_dtype, &nan_vectors);
        memcpy(out.data + r * row_bytes, &scale, sizeof scale);
        out.ok &= oct__row_from_f32(out.data + r * row_bytes + sizeof scale, dtype, in + r * dim, dim, scale, &count);
    }
    printf("%llu %llu %llu\n", (unsigned long long)count.saturated, (unsigned long long)count.nans,
           (unsigned long long)nan_vectors);
    return out;
}

static struct result run(const char *operation, uint32_t dtype, const char *scale, const unsigned char *in,
                         size_t in_bytes)
{
    struct result out = {NULL, 0, 0};
    size_t n;
    if (strcmp(operation, "dynamic") == 0) {
        return run_dynamic(dtype, scale, (const float *)(const void *)in, in_bytes / sizeof(float));
    }
    out.data = malloc(in_bytes * 4 + 1);
    if (out.data == NULL) {
        return out;
    }
    if (strcmp(operation, "encode") == 0) {
        struct oct__convert_count count = {0, 0};
        n = in_bytes / sizeof(float);
        out.ok = oct__row_from_f32(out.data, dtype, (const float *)(const void *)in, n, strtof(scale, NULL), &count);
        out.size_bytes = n * oct__dtype_size_bytes(dtype);
        printf("%llu %llu\n", (unsigned long long)count.saturated, (unsigned long long)count.nans);
    } else if (strcmp(operation, "decode") == 0 && oct__dtype_is_valid(dtype)) {
        n = in_bytes / oct__dtype_size_bytes(dtype);
        out.ok = oct__row_to_f32((float *)(void *)out.data, in, dtype, n);
        out.size_bytes = n * sizeof(float);
    } else if (strcmp(operation, "divide") == 0) {
        n = in_bytes / (2 * sizeof(uint32_t));
        for (size_t i = 0; i < n; i++) {
            uint32_t pair[2], quotient;
            memcpy(pair, in + i * sizeof pair, sizeof pair);
            quotient = oct__f32_divide_bits(pair[0], pair[1]);
            memcpy(out.data + i * sizeof quotient, &quotient, sizeof quotient);
        }
        out.size_bytes = n * sizeof(uint32_t);
        out.ok = 1;
    }
    return out;
}

int main(int argc, char **argv)
{
    unsigned char *in;
    size_t in_bytes;
    struct result out;
    int status;
    if (argc != 7) {
        fprintf(stderr, "usage: number_rows encode|decode|divide|dynamic DTYPE SCALE plain|ftz IN OUT\n");
        return 2;
    }
    in = read_file(argv[5], &in_bytes);
    if (in == NULL) {
        fprintf(stderr, "number_rows: cannot read %s\n", argv[5]);
        return 1;
    }
    status = set_mode(argv[4]);
    if (status == 0) {
        out = run(argv[1], oct__dtype_from_name(argv[2]), argv[3], in, in_bytes);
        status = out.ok && write_file(argv[6], out.data, out.size_bytes) ? 0 : 1;
        free(out.data);
    }
    free(in);
    return status;
}
