/* Everything: attention over a KV cache kept in 8-bit pages. */
#ifndef OCTAVO_OCTAVO_H
#define OCTAVO_OCTAVO_H

#include "octavo/attn.h"
#include "octavo/context.h"
#include "octavo/device.h"
#include "octavo/kv.h"
#include "octavo/page.h"
#include "octavo/plan.h"
#include "octavo/rates.h"
#include "octavo/status.h"
#include "octavo/version.h"

#endif
