/* kernels_sm90a.c: the kernels of kernels_sm90a.def and those of every GPU in one unit, so that one code object serves Hopper; for nvcc, and for the host
 * executor at warps of 32. */
#include "device/kernels.c"

#include "cuda/attn_decode_sm90a.h"
#include "cuda/attn_extend8_sm90a.h"
#include "cuda/attn_extend_sm90a.h"
#include "cuda/attn_finish_sm90a.h"
#include "cuda/attn_merge_sm90a.h"
#include "cuda/kv_write_sm90a.h"
