/* check.h: owns the checks that several doors share: layers, scales, strides, formats of operands.
 *
 * Threads: pure functions. Cheap enough for every call: they look at scales and strides, never at pages; where pointers are a device's, not
 * at scales either. */
#ifndef OCT_API_CHECK_H
#define OCT_API_CHECK_H

#include <stdbool.h>

#include "octavo/kv.h"

/* How errors call a layer: literals, so that a call that has no error formats nothing. */
typedef struct oct__layer_keys { const char *layer, *spec, *n_pages; } oct__layer_keys;
#define OCT__LAYER_KEYS(name) ((oct__layer_keys){ name, name ".spec", name ".n_pages" })

/* Copies and checks a layer, hand-made or from a pool: size, spec, pointers and their alignment, strides that keep every vector apart, scale
 * pointers where the mode wants them and nowhere else, scale values finite and > 0. on_device: pointers are a GPU's, and their values stay unseen. */
oct_status oct__check_layer(oct_kv_layer *layer, const oct_kv_layer *given, bool on_device, oct__layer_keys keys, const char *where, oct_error *error);

/* Whether two legal specs say the same. */
bool oct__spec_equal(const oct_kv_spec *a, const oct_kv_spec *b);

/* A pointer to elements of element_bytes: given when n > 0, and aligned to an element. */
oct_status oct__check_pointer(const void *pointer, uint32_t element_bytes, int64_t n, const char *key, const char *where, oct_error *error);

/* An axis of an operand: how many, how far apart in elements. */
typedef struct oct__axis { int64_t n, stride; } oct__axis;

/* Whether vectors of `inner` elements at all points of the axes lie apart from each other, each axis beyond the span of the smaller
 * ones; and whether all offsets in bytes fit int64. Axes with one point may have any stride. At most 4 axes. */
bool oct__axes_are_apart(const oct__axis *axes, uint32_t n_axes, int64_t inner, uint32_t element_bytes);

/* The same for operands that are only read: strides >= 0 whose offsets fit. */
bool oct__axes_are_readable(const oct__axis *axes, uint32_t n_axes, int64_t inner, uint32_t element_bytes);

#endif
