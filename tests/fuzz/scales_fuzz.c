/* Fuzz target: the scales file. Whatever the bytes, it comes back; what it accepts holds what the contract says: every number finite
 * and > 0. No file is touched. One thread. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(const float *values, size_t n)
{
    for (size_t i = 0; i < n && values != NULL; i++) {
        if (!isfinite(values[i]) || !(values[i] > 0.0f)) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    oct_error error = OCT_ERROR_INIT;
    octe_scales sc;
    if (octe_scales_parse((const char *)data, size, "fuzz", 0, &sc, &error) != OCT_OK) {
        /* A refusal says why and leaves nothing to free. */
        if (error.text[0] == '\0' || sc.layer[0] != NULL || sc.head[0] != NULL || sc.channel[0] != NULL) {
            abort();
        }
        return 0;
    }
    if (sc.layer[0] == NULL || sc.layer[1] == NULL || sc.n_layers == 0 || memchr(sc.model_type, '\0', sizeof(sc.model_type)) == NULL) {
        abort();
    }
    for (int which = 0; which < 2; which++) {
        demand(sc.layer[which], sc.n_layers);
        demand(sc.head[which], (size_t)sc.n_layers * sc.n_heads);
        demand(sc.channel[which], (size_t)sc.n_layers * sc.n_heads * sc.dim);
    }
    for (uint32_t il = 0; il < sc.n_layers && sc.formats != NULL; il++) {
        char name[64];
        oct_kv_format back;
        /* What was read has a name, which reads back. */
        if (octe_kv_format_name(&sc.formats[il].k, name, sizeof(name)) >= sizeof(name) || octe_kv_format_from_name(name, &back, NULL) != OCT_OK ||
            octe_kv_format_name(&sc.formats[il].v, name, sizeof(name)) >= sizeof(name) || octe_kv_format_from_name(name, &back, NULL) != OCT_OK) {
            abort();
        }
    }
    octe_scales_free(&sc);
    return 0;
}
