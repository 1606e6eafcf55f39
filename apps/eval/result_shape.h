/* result_shape.h: owns how an evaluation's structs lie in JSON: one table a struct, which the writer, the reader and the release all walk, so that a field
 * is named once. Constant; any thread. */
#ifndef APP_EVAL_RESULT_SHAPE_H
#define APP_EVAL_RESULT_SHAPE_H

#include <stddef.h>

#include "apps/eval/result.h"

typedef enum eval_kind {
    EVAL_CHARS,      /* char [size] */
    EVAL_TEXT,       /* char *, malloc'ed or NULL */
    EVAL_BOOL, EVAL_I8, EVAL_I32, EVAL_U32, EVAL_I64, EVAL_U64,
    EVAL_F64,        /* null: NAN */
    EVAL_RANGE,      /* eval_interval: [low, high] */
    EVAL_RECORD,     /* one struct of shape `of` */
    EVAL_RECORDS,    /* an array of them */
    EVAL_NUMBERS,    /* an array of uint32_t */
    EVAL_INSIDE      /* struct eval_inside *, or NULL: inside.h has its JSON */
} eval_kind;

/* How many an array has. */
typedef enum eval_count {
    EVAL_OWN,        /* the array's own length, kept in the uint32_t at n_offset; on reading it comes from the JSON array */
    EVAL_BY_FORMAT,  /* one a format */
    EVAL_GRID,       /* formats x the uint32_t at n_offset: a list of lists */
    EVAL_GRID_64,    /* the same with a uint64_t */
    EVAL_LIKE_64     /* the uint64_t at n_offset, which another field has set */
} eval_count;

typedef struct eval_shape eval_shape;

typedef struct eval_field {
    const char *key;
    eval_kind kind;
    size_t offset;
    size_t size;             /* of a char array; of an inline array: its capacity, 0: on the heap */
    const eval_shape *of;
    eval_count count;
    size_t n_offset;
    bool raw;                /* only in raw JSON */
} eval_field;

struct eval_shape {
    const char *name;        /* for errors */
    size_t size;             /* bytes */
    bool tuple;              /* a list of its values instead of an object */
    const eval_field *fields;
    size_t n_fields;
};

extern const eval_shape eval_result_shape;

/* What an array has, given that what it depends on is there. */
uint64_t eval_field_count(const eval_field *field, const void *record, const eval_result *result);

#endif
