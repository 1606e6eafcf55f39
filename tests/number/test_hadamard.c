/* The rotation against its definition H[r][c] = (-1)^popcount(r & c) / sqrt(block), summed in double, for every legal
 * head dim; orthonormal, its own inverse, and invisible to scores. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "number/hadamard.h"

enum { SEED = 20240611, DIM_MAX = 512 };

static uint64_t random_state;

/* splitmix64; uniform in [-1, 1). */
static float random_f32(void)
{
    uint64_t z = random_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (float)(int32_t)(z >> 32) * 0x1p-31f;
}

static void fill_random(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = random_f32();
    }
}

static int odd_parity(size_t bits)
{
    int odd = 0;
    for (; bits != 0; bits &= bits - 1) {
        odd = !odd;
    }
    return odd;
}

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)a[i] * b[i];
    }
    return sum;
}

static void block_is_the_largest_power_of_two_divisor(void **state)
{
    static const size_t pairs[][2] = {{16, 16}, {24, 8}, {64, 64}, {80, 16}, {96, 32}, {112, 16}, {120, 8}, {192, 64},
                                      {256, 256}, {1, 1}, {7, 1}, {0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_int_equal(oct__hadamard_block(pairs[i][0]), pairs[i][1]);
    }
}

static void norm_is_correctly_rounded(void **state)
{
    (void)state;
    for (size_t block = 1; block <= DIM_MAX; block *= 2) {
        assert_true(oct__hadamard_norm(block) == (float)(1.0 / sqrt((double)block)));
    }
}

static void four_points(void **state)
{
    float x[4] = {1.0f, 2.0f, 3.0f, 5.0f};
    static const float expected[4] = {5.5f, -1.5f, -2.5f, 0.5f};
    (void)state;
    oct__hadamard_f32(x, 4);
    assert_memory_equal(x, expected, sizeof x);
    oct__hadamard_inverse_f32(x, 4);
    assert_true(x[0] == 1.0f && x[1] == 2.0f && x[2] == 3.0f && x[3] == 5.0f);
}

static void every_head_dim_follows_the_definition(void **state)
{
    (void)state;
    for (size_t dim = 16; dim <= DIM_MAX; dim += 8) {
        float x[DIM_MAX + 1], y[DIM_MAX + 1];
        size_t block = oct__hadamard_block(dim);
        fill_random(x, dim);
        memcpy(y, x, sizeof x);
        y[dim] = 4321.0f;
        oct__hadamard_f32(y, dim);
        assert_true(y[dim] == 4321.0f);
        for (size_t r = 0; r < dim; r++) {
            double sum = 0;
            const float *of_block = x + r / block * block;
            for (size_t c = 0; c < block; c++) {
                sum += odd_parity(r % block & c) ? -(double)of_block[c] : (double)of_block[c];
            }
            assert_true(fabs(y[r] - sum / sqrt((double)block)) < 2e-6);
        }
    }
}

/* Every column is the image of a unit vector: all of the same size, +-1/sqrt(block), and orthogonal to each other. */
static void columns_are_orthonormal(void **state)
{
    static float columns[256][256];
    (void)state;
    for (size_t dim = 16; dim <= 256; dim += 8) {
        for (size_t c = 0; c < dim; c++) {
            memset(columns[c], 0, sizeof columns[c]);
            columns[c][c] = 1.0f;
            oct__hadamard_f32(columns[c], dim);
        }
        for (size_t a = 0; a < dim; a++) {
            assert_true(fabs(dot(columns[a], columns[a], dim) - 1.0) < 1e-6);
            for (size_t b = a + 1; b < dim; b++) {
                assert_true(dot(columns[a], columns[b], dim) == 0.0);
            }
        }
    }
}

static void it_is_its_own_inverse_and_keeps_scores(void **state)
{
    (void)state;
    for (size_t dim = 16; dim <= DIM_MAX; dim += 8) {
        float q[DIM_MAX], k[DIM_MAX], q_rotated[DIM_MAX], k_rotated[DIM_MAX];
        fill_random(q, dim);
        fill_random(k, dim);
        memcpy(q_rotated, q, sizeof q);
        memcpy(k_rotated, k, sizeof k);
        oct__hadamard_f32(q_rotated, dim);
        oct__hadamard_f32(k_rotated, dim);
        assert_true(memcmp(q_rotated, q, dim * sizeof(float)) != 0);
        assert_true(fabs(dot(q_rotated, k_rotated, dim) - dot(q, k, dim)) < 1e-6 * (double)dim);
        oct__hadamard_inverse_f32(k_rotated, dim);
        for (size_t i = 0; i < dim; i++) {
            assert_true(fabsf(k_rotated[i] - k[i]) < 1e-6f);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_is_the_largest_power_of_two_divisor),
        cmocka_unit_test(norm_is_correctly_rounded),
        cmocka_unit_test(four_points),
        cmocka_unit_test(every_head_dim_follows_the_definition),
        cmocka_unit_test(columns_are_orthonormal),
        cmocka_unit_test(it_is_its_own_inverse_and_keeps_scores),
    };
    printf("seed %d\n", (int)SEED);
    random_state = SEED;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
