/* gguf_check.c: see gguf_check.h. Reads little-endian bytes one field at a time, each checked against what is left of the file; the
 * numbers of the header are claims until then. */
#include "engine/gguf_check.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml.h>
#include <gguf.h>

#include "engine/map.h"
#include "engine/report.h"

/* Far above any model (a 405B model has some 1,100 tensors and 60 keys), low enough that the names fit 32 MiB. */
enum { MAX_KEYS = 1 << 20, MAX_TENSORS = 1 << 20 };
/* The file format says 2^16 - 1 for keys; ggml_tensor.name holds 63 bytes. */
enum { MAX_KEY_BYTES = 65535, MAX_TENSOR_NAME_BYTES = GGML_MAX_NAME - 1 };
/* ggml throws above this, without need for a model's merges or template. */
#define MAX_STRING_BYTES ((uint64_t)1 << 30)
/* A page of the largest kind in use; more would only be padding. */
enum { MIN_ALIGNMENT_BYTES = 8, MAX_ALIGNMENT_BYTES = 65536 };

/* The smallest encodings, so that a count that can't fit is refused before anything is allocated for it. */
enum { MIN_KEY_RECORD_BYTES = 8 + 1 + 4 + 1, MIN_TENSOR_RECORD_BYTES = 8 + 1 + 4 + 8 + 4 + 8 };

static const char *const where = "octe_gguf_check";

typedef struct reader {
    const unsigned char *data;
    size_t size, at;
    const char *file;
    oct_error *error;
} reader;

typedef struct name {
    const char *bytes;
    size_t n;
} name;

typedef struct tensor {
    uint64_t offset_bytes, size_bytes;
} tensor;

static bool take(reader *r, size_t n, const unsigned char **bytes)
{
    if (n > r->size - r->at) {
        return false;
    }
    *bytes = r->data + r->at;
    r->at += n;
    return true;
}

static bool take_u32(reader *r, uint32_t *value)
{
    const unsigned char *b;
    if (!take(r, 4, &b)) {
        return false;
    }
    *value = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return true;
}

static bool take_u64(reader *r, uint64_t *value)
{
    uint32_t low, high;
    if (!take_u32(r, &low) || !take_u32(r, &high)) {
        return false;
    }
    *value = low | (uint64_t)high << 32;
    return true;
}

static oct_status cut_off(const reader *r, const char *what)
{
    return octe__report(r->error, OCT_BAD_DATA, where, r->file, "truncated: the file ends at byte %zu, inside %s", r->size, what);
}

/* A length and as many bytes. what: for messages. */
static oct_status take_string(reader *r, const char *what, uint64_t max_bytes, name *string)
{
    uint64_t n;
    const unsigned char *bytes;
    if (!take_u64(r, &n)) {
        return cut_off(r, what);
    }
    if (n > max_bytes) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "%s has a length of %" PRIu64 " bytes; at most %" PRIu64 " are allowed", what, n,
                            max_bytes);
    }
    if (!take(r, (size_t)n, &bytes)) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "%s has a length of %" PRIu64 " bytes, but only %zu are left in the file", what, n,
                            r->size - r->at);
    }
    *string = (name){(const char *)bytes, (size_t)n};
    return OCT_OK;
}

/* 0 for strings, arrays and what is no type. */
static size_t scalar_bytes(uint32_t type)
{
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
        return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
        return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32:
        return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64:
        return 8;
    default:
        return 0;
    }
}

static oct_status skip_array(reader *r, const char *key)
{
    uint32_t type;
    uint64_t n;
    if (!take_u32(r, &type) || !take_u64(r, &n)) {
        return cut_off(r, "an array's type and count");
    }
    if (type == GGUF_TYPE_ARRAY) {
        /* The format allows arrays of arrays, no model uses them, and a reader that follows them recurses as deep as the file says. */
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "key '%s' is an array of arrays; only flat arrays are read", key);
    }
    const size_t bytes = scalar_bytes(type);
    if (bytes == 0 && type != GGUF_TYPE_STRING) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "key '%s' is an array of type %" PRIu32 ", which GGUF doesn't have", key, type);
    }
    const uint64_t least = bytes == 0 ? 8 : bytes;
    if (n > (r->size - r->at) / least) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "key '%s' is an array of %" PRIu64 " elements, but only %zu bytes are left in the file",
                            key, n, r->size - r->at);
    }
    if (bytes > 0) {
        r->at += (size_t)n * bytes;
        return OCT_OK;
    }
    for (uint64_t i = 0; i < n; i++) {
        name ignored;
        char what[OCTE__QUOTE_SIZE + 32];
        snprintf(what, sizeof(what), "a string of key '%s'", key);
        const oct_status status = take_string(r, what, MAX_STRING_BYTES, &ignored);
        if (status != OCT_OK) {
            return status;
        }
    }
    return OCT_OK;
}

static bool is_plain(name n)
{
    for (size_t i = 0; i < n.n; i++) {
        if ((unsigned char)n.bytes[i] < 0x20 || n.bytes[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

static bool same(name n, const char *text) { return n.n == strlen(text) && memcmp(n.bytes, text, n.n) == 0; }

static oct_status read_key(reader *r, uint64_t i, name *key, uint32_t *alignment_bytes)
{
    char what[64], quoted[OCTE__QUOTE_SIZE];
    snprintf(what, sizeof(what), "the name of key %" PRIu64, i);
    oct_status status = take_string(r, what, MAX_KEY_BYTES, key);
    if (status != OCT_OK) {
        return status;
    }
    octe__quote(quoted, key->bytes, key->n);
    if (key->n == 0 || !is_plain(*key)) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "key %" PRIu64 " has the name '%s', which is empty or holds control characters", i,
                            quoted);
    }
    uint32_t type;
    if (!take_u32(r, &type)) {
        return cut_off(r, "a key's type");
    }
    if (type == GGUF_TYPE_ARRAY) {
        status = skip_array(r, quoted);
    } else if (type == GGUF_TYPE_STRING) {
        name ignored;
        snprintf(what, sizeof(what), "the text of key %" PRIu64, i);
        status = take_string(r, what, MAX_STRING_BYTES, &ignored);
    } else {
        const unsigned char *value;
        const size_t bytes = scalar_bytes(type);
        if (bytes == 0) {
            return octe__report(r->error, OCT_BAD_DATA, where, r->file, "key '%s' has type %" PRIu32 ", which GGUF doesn't have", quoted, type);
        }
        if (!take(r, bytes, &value)) {
            return cut_off(r, "a key's value");
        }
        if (same(*key, GGUF_KEY_GENERAL_ALIGNMENT) && type == GGUF_TYPE_UINT32) {
            r->at -= 4;
            (void)take_u32(r, alignment_bytes);
        }
    }
    if (status != OCT_OK) {
        return status;
    }
    if (same(*key, GGUF_KEY_GENERAL_ALIGNMENT)) {
        if (type != GGUF_TYPE_UINT32) {
            return octe__report(r->error, OCT_BAD_DATA, where, r->file, "key '%s' has type %" PRIu32 "; must be u32 (4)", quoted, type);
        }
        const uint32_t a = *alignment_bytes;
        if (a < MIN_ALIGNMENT_BYTES || a > MAX_ALIGNMENT_BYTES || (a & (a - 1)) != 0) {
            return octe__report(r->error, OCT_BAD_DATA, where, r->file, "key '%s' is %" PRIu32 "; must be a power of two from %d to %d", quoted, a,
                                MIN_ALIGNMENT_BYTES, MAX_ALIGNMENT_BYTES);
        }
    }
    return OCT_OK;
}

/* Bytes of a tensor, or 0 and a message. Nothing overflows: the product stays within the file's size, an element has at most a few bytes. */
static oct_status read_shape(reader *r, const char *quoted, uint64_t *size_bytes)
{
    uint32_t n_dims, type;
    if (!take_u32(r, &n_dims)) {
        return cut_off(r, "a tensor's shape");
    }
    if (n_dims < 1 || n_dims > GGML_MAX_DIMS) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor '%s' has %" PRIu32 " dimensions; must be 1 to %d", quoted, n_dims, GGML_MAX_DIMS);
    }
    uint64_t dims[GGML_MAX_DIMS];
    for (uint32_t d = 0; d < n_dims; d++) {
        if (!take_u64(r, &dims[d])) {
            return cut_off(r, "a tensor's shape");
        }
        if (dims[d] < 1 || dims[d] > INT64_MAX) {
            return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor '%s' has dimension %" PRIu32 " of %" PRIu64 "; must be 1 to 2^63 - 1", quoted,
                                d, dims[d]);
        }
    }
    if (!take_u32(r, &type)) {
        return cut_off(r, "a tensor's type");
    }
    const uint64_t block_elements = type < GGML_TYPE_COUNT ? (uint64_t)ggml_blck_size((enum ggml_type)type) : 0;
    const uint64_t block_bytes = type < GGML_TYPE_COUNT ? ggml_type_size((enum ggml_type)type) : 0;
    if (block_elements == 0 || block_bytes == 0) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor '%s' has type %" PRIu32 ", which this ggml doesn't know", quoted, type);
    }
    if (dims[0] % block_elements != 0) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor '%s' has rows of %" PRIu64 " elements; must be a multiple of %" PRIu64 " (%s)",
                            quoted, dims[0], block_elements, ggml_type_name((enum ggml_type)type));
    }
    uint64_t blocks = dims[0] / block_elements;
    for (uint32_t d = 1; d < n_dims; d++) {
        if (blocks > r->size / dims[d]) {
            return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor '%s' is larger than the file (%zu bytes): its dimensions multiply to too much",
                                quoted, r->size);
        }
        blocks *= dims[d];
    }
    if (blocks > r->size / block_bytes) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor '%s' is larger than the file: %" PRIu64 " blocks of %" PRIu64 " bytes, file %zu bytes",
                            quoted, blocks, block_bytes, r->size);
    }
    *size_bytes = blocks * block_bytes;
    return OCT_OK;
}

static oct_status read_tensor(reader *r, uint64_t i, name *tensor_name, tensor *t)
{
    char what[64], quoted[OCTE__QUOTE_SIZE];
    snprintf(what, sizeof(what), "the name of tensor %" PRIu64, i);
    oct_status status = take_string(r, what, MAX_TENSOR_NAME_BYTES, tensor_name);
    if (status != OCT_OK) {
        return status;
    }
    octe__quote(quoted, tensor_name->bytes, tensor_name->n);
    /* ggml keeps names as C strings: a zero byte would make two different names one. */
    if (tensor_name->n == 0 || !is_plain(*tensor_name)) {
        return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor %" PRIu64 " has the name '%s', which is empty or holds control characters", i,
                            quoted);
    }
    status = read_shape(r, quoted, &t->size_bytes);
    if (status == OCT_OK && !take_u64(r, &t->offset_bytes)) {
        status = cut_off(r, "a tensor's offset");
    }
    return status;
}

static int compare_names(const void *left, const void *right)
{
    const name *a = left, *b = right;
    const int order = memcmp(a->bytes, b->bytes, a->n < b->n ? a->n : b->n);
    return order != 0 ? order : (a->n > b->n) - (a->n < b->n);
}

static oct_status check_unique(const reader *r, name *names, uint64_t n, const char *what)
{
    if (n > 1) {
        qsort(names, (size_t)n, sizeof(*names), compare_names);
    }
    for (uint64_t i = 1; i < n; i++) {
        if (compare_names(&names[i - 1], &names[i]) == 0) {
            char quoted[OCTE__QUOTE_SIZE];
            return octe__report(r->error, OCT_BAD_DATA, where, r->file, "two %s have the name '%s'", what, octe__quote(quoted, names[i].bytes, names[i].n));
        }
    }
    return OCT_OK;
}

/* Tensors follow each other in the order of their records, each at the next multiple of the alignment: ggml takes nothing else. */
static oct_status check_offsets(const reader *r, const name *names, const tensor *tensors, octe_gguf_summary *s)
{
    const uint64_t mask = s->alignment_bytes - 1;
    uint64_t next = 0, end = 0;
    const uint64_t room = r->size - s->data_offset_bytes;
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        char quoted[OCTE__QUOTE_SIZE];
        if (tensors[i].offset_bytes != next) {
            return octe__report(r->error, OCT_BAD_DATA, where, r->file, "tensor '%s' has offset %" PRIu64 "; must be %" PRIu64,
                                octe__quote(quoted, names[i].bytes, names[i].n), tensors[i].offset_bytes, next);
        }
        /* next <= room + alignment and a size <= the file's: far from 2^64. */
        end = next + tensors[i].size_bytes;
        if (end > room) {
            return octe__report(r->error, OCT_BAD_DATA, where, r->file,
                                "truncated: tensor '%s' ends at byte %" PRIu64 ", the file at %zu", octe__quote(quoted, names[i].bytes, names[i].n),
                                s->data_offset_bytes + end, r->size);
        }
        next = (end + mask) & ~mask;
    }
    s->data_size_bytes = end;
    return OCT_OK;
}

static oct_status check_keys(reader *r, octe_gguf_summary *s)
{
    name *keys = calloc((size_t)s->n_keys + 1, sizeof(*keys));
    if (keys == NULL) {
        return octe__report(r->error, OCT_OUT_OF_MEMORY, where, r->file, "no memory for the names of %" PRIu64 " keys", s->n_keys);
    }
    oct_status status = OCT_OK;
    for (uint64_t i = 0; i < s->n_keys && status == OCT_OK; i++) {
        status = read_key(r, i, &keys[i], &s->alignment_bytes);
    }
    if (status == OCT_OK) {
        status = check_unique(r, keys, s->n_keys, "keys");
    }
    free(keys);
    return status;
}

static oct_status check_tensors(reader *r, octe_gguf_summary *s)
{
    name *names = calloc((size_t)s->n_tensors + 1, sizeof(*names));
    tensor *tensors = calloc((size_t)s->n_tensors + 1, sizeof(*tensors));
    oct_status status = OCT_OK;
    if (names == NULL || tensors == NULL) {
        status = octe__report(r->error, OCT_OUT_OF_MEMORY, where, r->file, "no memory for the records of %" PRIu64 " tensors", s->n_tensors);
    }
    for (uint64_t i = 0; i < s->n_tensors && status == OCT_OK; i++) {
        status = read_tensor(r, i, &names[i], &tensors[i]);
    }
    if (status == OCT_OK) {
        const uint64_t mask = s->alignment_bytes - 1;
        s->data_offset_bytes = s->n_tensors > 0 ? ((uint64_t)r->at + mask) & ~mask : r->at;
        status = s->data_offset_bytes > r->size ? cut_off(r, "the padding before the tensors") : check_offsets(r, names, tensors, s);
    }
    if (status == OCT_OK) {
        status = check_unique(r, names, s->n_tensors, "tensors");
    }
    free(tensors);
    free(names);
    return status;
}

oct_status octe_gguf_check_memory(const void *data, size_t size, const char *file, octe_gguf_summary *summary, oct_error *error)
{
    reader r = {data, size, 0, file, error};
    octe_gguf_summary s = {.alignment_bytes = GGUF_DEFAULT_ALIGNMENT};
    const unsigned char *magic;
    if (data == NULL || !take(&r, 4, &magic) || memcmp(magic, GGUF_MAGIC, 4) != 0) {
        return octe__report(error, OCT_BAD_DATA, where, file, "not a GGUF file: it doesn't begin with 'GGUF'");
    }
    if (!take_u32(&r, &s.version) || !take_u64(&r, &s.n_tensors) || !take_u64(&r, &s.n_keys)) {
        return cut_off(&r, "the header");
    }
    if (s.version < 2 || s.version > GGUF_VERSION) {
        return octe__report(error, OCT_BAD_DATA, where, file, "GGUF version %" PRIu32 "; versions 2 to %d in little-endian order are read", s.version,
                            GGUF_VERSION);
    }
    const size_t left = size - r.at;
    if (s.n_keys > MAX_KEYS || s.n_keys > left / MIN_KEY_RECORD_BYTES) {
        return octe__report(error, OCT_BAD_DATA, where, file, "the header counts %" PRIu64 " keys; a file of %zu bytes can't hold them, or they are over %d",
                            s.n_keys, size, MAX_KEYS);
    }
    if (s.n_tensors > MAX_TENSORS || s.n_tensors > left / MIN_TENSOR_RECORD_BYTES) {
        return octe__report(error, OCT_BAD_DATA, where, file, "the header counts %" PRIu64 " tensors; a file of %zu bytes can't hold them, or they are over %d",
                            s.n_tensors, size, MAX_TENSORS);
    }
    oct_status status = check_keys(&r, &s);
    if (status == OCT_OK) {
        status = check_tensors(&r, &s);
    }
    if (status == OCT_OK && summary != NULL) {
        *summary = s;
    }
    return status;
}

oct_status octe_gguf_check_file(const char *path, octe_gguf_summary *summary, oct_error *error)
{
    octe__map map;
    oct_status status = octe__map_open(path, &map, where, error);
    if (status != OCT_OK) {
        return status;
    }
    status = octe_gguf_check_memory(map.data, map.size_bytes, path, summary, error);
    octe__map_close(&map);
    return status;
}
