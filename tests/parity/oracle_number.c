/* oracle_number.c: formats, rotation and RoPE of the oracle. A format is its field widths; its values are computed from sign,
 * exponent and mantissa in double and kept in ascending order, and rounding is a search among them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parity/oracle.h"

typedef enum specials { IEEE, ALL_ONES_NAN, MINUS_ZERO_NAN } specials;

typedef struct format {
    uint32_t dtype;
    int bits, exponent_bits, mantissa_bits, bias;
    specials kind;
} format;

static const format formats[] = {
    { OCT_DTYPE_F16, 16, 5, 10, 15, IEEE },
    { OCT_DTYPE_BF16, 16, 8, 7, 127, IEEE },
    { OCT_DTYPE_E4M3FN, 8, 4, 3, 7, ALL_ONES_NAN },
    { OCT_DTYPE_E4M3FNUZ, 8, 4, 3, 8, MINUS_ZERO_NAN },
    { OCT_DTYPE_E5M2, 8, 5, 2, 15, IEEE },
};

enum { N_FORMATS = (int)(sizeof formats / sizeof formats[0]) };

/* What every code means; the finite ones with the sign bit clear come first and ascend. */
static double values[N_FORMATS][65536];
static uint32_t n_values[N_FORMATS];
static double signs[512][512];   /* (-1)^popcount(r & c) */
static int ready;

/* What the oracle takes for granted; checked in every build. */
static void must(int holds)
{
    if (!holds)
        abort();
}

static const format *find(uint32_t dtype)
{
    for (int i = 0; i < N_FORMATS; i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    return NULL;
}

static double value_of(const format *f, uint32_t code)
{
    const uint32_t exponent_max = (1u << f->exponent_bits) - 1;
    const uint32_t exponent = (code >> f->mantissa_bits) & exponent_max;
    const uint32_t mantissa = code & ((1u << f->mantissa_bits) - 1);
    const double sign = (code >> (f->bits - 1)) & 1 ? -1.0 : 1.0;
    const double fraction = (double)mantissa / (double)(1u << f->mantissa_bits);
    if (f->kind == IEEE && exponent == exponent_max)
        return mantissa == 0 ? sign * (double)INFINITY : (double)NAN;
    if (f->kind == ALL_ONES_NAN && (code & 0x7F) == 0x7F)
        return (double)NAN;
    if (f->kind == MINUS_ZERO_NAN && code == 0x80)
        return (double)NAN;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - f->bias);
    return sign * ldexp(1.0 + fraction, (int)exponent - f->bias);
}

void oracle_init(void)
{
    if (ready)
        return;
    for (int i = 0; i < N_FORMATS; i++) {
        const uint32_t half = 1u << (formats[i].bits - 1);
        uint32_t n = 0;
        for (uint32_t code = 0; code < 2 * half; code++)
            values[i][code] = value_of(&formats[i], code);
        while (n < half && isfinite(values[i][n])) {
            must(n == 0 || values[i][n] > values[i][n - 1]);
            n++;
        }
        n_values[i] = n;
    }
    for (uint32_t r = 0; r < 512; r++)
        for (uint32_t c = 0; c < 512; c++) {
            uint32_t ones = 0;
            for (uint32_t both = r & c; both != 0; both >>= 1)
                ones += both & 1;
            signs[r][c] = ones % 2 != 0 ? -1.0 : 1.0;
        }
    ready = 1;
}

uint32_t oracle_size_bytes(uint32_t dtype)
{
    const format *f = find(dtype);
    return f != NULL ? (uint32_t)f->bits / 8 : dtype == OCT_DTYPE_F32 ? 4 : 1;
}

size_t oracle_bytes(uint32_t dtype, int64_t n)
{
    return dtype == OCT_DTYPE_V4 ? (size_t)n / 32 * 18 : (size_t)n * oracle_size_bytes(dtype);
}

/* What the codes of v4 mean. */
static const int v4_numbers[16] = { 0, 11, 22, 35, 48, 63, 80, 99, 124, -123, -94, -73, -56, -41, -26, -13 };

int oracle_is_8bit(uint32_t dtype) { return oracle_size_bytes(dtype) == 1; }

double oracle_max(uint32_t dtype)
{
    const format *f = find(dtype);
    if (dtype == OCT_DTYPE_I8 || dtype == OCT_DTYPE_V4)   /* v4 goes by way of i8 */
        return 127.0;
    if (f == NULL)
        return 0x1.fffffep127;
    return values[f - formats][n_values[f - formats] - 1];
}

uint32_t oracle_code_at(uint32_t dtype, const void *base, int64_t index)
{
    const unsigned char *at = (const unsigned char *)base + index * (int64_t)oracle_size_bytes(dtype);
    uint16_t half;
    uint32_t word;
    if (dtype == OCT_DTYPE_V4) {
        const unsigned byte = ((const unsigned char *)base)[index / 32 * 18 + 2 + index % 16];
        return index % 32 < 16 ? byte % 16 : byte / 16;
    }
    switch (oracle_size_bytes(dtype)) {
    case 1: return *at;
    case 2: memcpy(&half, at, sizeof half); return half;
    default: memcpy(&word, at, sizeof word); return word;
    }
}

void oracle_put_code(uint32_t dtype, void *base, int64_t index, uint32_t code)
{
    unsigned char *at = (unsigned char *)base + index * (int64_t)oracle_size_bytes(dtype);
    const uint16_t half = (uint16_t)code;
    if (dtype == OCT_DTYPE_V4) {
        unsigned char *byte = (unsigned char *)base + index / 32 * 18 + 2 + index % 16;
        *byte = (unsigned char)(index % 32 < 16 ? *byte / 16 * 16 + code : *byte % 16 + 16 * code);
        return;
    }
    switch (oracle_size_bytes(dtype)) {
    case 1: *at = (unsigned char)code; break;
    case 2: memcpy(at, &half, sizeof half); break;
    default: memcpy(at, &code, sizeof code); break;
    }
}

double oracle_decode_code(uint32_t dtype, uint32_t code)
{
    const format *f = find(dtype);
    if (f != NULL)
        return values[f - formats][code];
    if (dtype == OCT_DTYPE_I8)
        return code < 128 ? (double)code : (double)code - 256.0;
    if (dtype == OCT_DTYPE_V4)
        return v4_numbers[code];
    float x;
    memcpy(&x, &code, sizeof x);
    return (double)x;
}

double oracle_decode(uint32_t dtype, const void *base, int64_t index)
{
    return oracle_decode_code(dtype, oracle_code_at(dtype, base, index));
}

int oracle_code_is_nan(uint32_t dtype, uint32_t code) { return isnan(oracle_decode_code(dtype, code)); }

static uint32_t encode_i8(double y)
{
    if (isnan(y))
        return 0;
    const double a = fabs(y);
    double n = floor(a);
    if (a - n > 0.5 || (a - n == 0.5 && fmod(n, 2.0) != 0.0))
        n += 1.0;
    if (n > 127.0)
        n = 127.0;
    return (uint32_t)(signbit(y) ? 256 - (int)n : (int)n) & 0xFF;
}

uint32_t oracle_encode(uint32_t dtype, double y)
{
    const format *f = find(dtype);
    if (dtype == OCT_DTYPE_I8)
        return encode_i8(y);
    if (dtype == OCT_DTYPE_V4) {
        const double x = oracle_decode_code(OCT_DTYPE_I8, encode_i8(y));
        uint32_t nearest = 0;
        for (uint32_t code = 1; code < 16; code++)
            if (fabs(x - v4_numbers[code]) < fabs(x - v4_numbers[nearest]))
                nearest = code;
        return nearest;
    }
    if (f == NULL) {
        const float x = (float)y;
        uint32_t code;
        memcpy(&code, &x, sizeof code);
        return code;
    }
    const uint32_t sign = 1u << (f->bits - 1);
    if (isnan(y))
        return f->kind == MINUS_ZERO_NAN ? 0x80 : sign - 1;
    const double *v = values[f - formats];
    const uint32_t last = n_values[f - formats] - 1;
    const double a = fabs(y);
    uint32_t code;
    if (a >= v[last]) {
        const double half_step = (v[last] - v[last - 1]) / 2;
        code = f->bits == 16 && a - v[last] >= half_step ? last + 1 : last;
    } else {
        uint32_t low = 0, high = last;   /* v[low] <= a < v[high] */
        while (high - low > 1) {
            const uint32_t middle = (low + high) / 2;
            if (v[middle] <= a)
                low = middle;
            else
                high = middle;
        }
        const double below = a - v[low], above = v[high] - a;
        code = below < above || (below == above && low % 2 == 0) ? low : high;
    }
    if (signbit(y) && !(f->kind == MINUS_ZERO_NAN && code == 0))
        code |= sign;
    return code;
}

void oracle_cell(uint32_t dtype, uint32_t code, double *low, double *high)
{
    const format *f = find(dtype);
    double a, below, above;
    int negative;
    if (f == NULL) {
        a = fabs(oracle_decode_code(dtype, code));
        negative = oracle_decode_code(dtype, code) < 0;
        const double half = dtype == OCT_DTYPE_I8 ? 0.5 : a < 0x1p-126 ? 0x1p-150 : ldexp(1.0, ilogb(a) - 24);
        below = a - half;
        above = a + half;
    } else {
        const uint32_t sign = 1u << (f->bits - 1);
        const double *v = values[f - formats];
        const uint32_t last = n_values[f - formats] - 1, at = code & (sign - 1);
        const double edge = f->bits == 8 ? (double)INFINITY : v[last] + (v[last] - v[last - 1]) / 2;   /* where infinity begins */
        must(at <= last || isinf(v[at]));
        a = v[at];
        negative = (code & sign) != 0;
        below = at == 0 ? -v[1] / 2 : at > last ? edge : (v[at - 1] + a) / 2;
        above = at < last ? (a + v[at + 1]) / 2 : at > last ? (double)INFINITY : edge;
    }
    *low = negative ? -above : below;
    *high = negative ? -below : above;
}

/* float64 has more than twice f32's bits plus two, so rounding the float64 quotient again gives the f32 quotient. */
double oracle_divide(double x, double scale) { return (double)(float)(x / scale); }

static uint32_t block_of(uint32_t n)
{
    uint32_t block = 1;
    while (n % (2 * block) == 0)
        block *= 2;
    return block;
}

void oracle_hadamard(double *x, uint32_t n)
{
    const uint32_t block = block_of(n);
    const double norm = 1.0 / sqrt((double)block);
    double y[512];
    must(block <= 512);
    for (uint32_t at = 0; at < n; at += block) {
        for (uint32_t r = 0; r < block; r++) {
            double sum = 0.0;
            for (uint32_t c = 0; c < block; c++)
                sum += signs[r][c] * x[at + c];
            y[r] = sum * norm;
        }
        memcpy(x + at, y, block * sizeof *y);
    }
}

static void hadamard_half(float *x, uint32_t n)
{
    /* Steps 1, 2, 4 ...: the halves of a block are complete before they meet. */
    if (n == 1)
        return;
    hadamard_half(x, n / 2);
    hadamard_half(x + n / 2, n / 2);
    for (uint32_t i = 0; i < n / 2; i++) {
        const float a = x[i], b = x[n / 2 + i];
        x[i] = a + b;
        x[n / 2 + i] = a - b;
    }
}

void oracle_hadamard_f32(float *x, uint32_t n)
{
    const uint32_t block = block_of(n);
    const float norm = (float)(1.0 / sqrt((double)block));
    for (uint32_t at = 0; at < n; at += block) {
        hadamard_half(x + at, block);
        for (uint32_t i = 0; i < block; i++)
            x[at + i] *= norm;
    }
}

static double rope_angle(const oct_rope *rope, int32_t position, uint32_t i)
{
    const double frequency = pow((double)rope->base, -2.0 * i / rope->n_dims);
    const double factor = rope->factors != NULL ? (double)rope->factors[i] : 1.0;
    return (double)position * (double)rope->position_scale * frequency / factor;
}

void oracle_rope(double *x, const oct_rope *rope, int32_t position)
{
    const uint32_t half = rope->n_dims / 2;
    for (uint32_t i = 0; i < half; i++) {
        const uint32_t first = rope->style == 0 ? i : 2 * i;
        const uint32_t second = rope->style == 0 ? i + half : 2 * i + 1;
        const double angle = rope_angle(rope, position, i), a = x[first], b = x[second];
        x[first] = a * cos(angle) - b * sin(angle);
        x[second] = a * sin(angle) + b * cos(angle);
    }
}
