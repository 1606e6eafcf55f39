/* scalar.h: the scalar rows of variants.def, as the files that define them see them. plan/variant.h is their contract. */
#ifndef OCT_CPU_SCALAR_H
#define OCT_CPU_SCALAR_H

#include "plan/variant.h"

oct__kv_write_fn oct__kv_write__scalar;
oct__attn_fn oct__attn__scalar;
oct__attn_scratch_fn oct__attn_scratch__scalar;
oct__attn_merge_fn oct__attn_merge__scalar;

#endif
