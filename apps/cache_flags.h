/* cache_flags.h: owns the flags that say how K and V are kept, shared by several commands, and their meaning. Single-threaded. */
#ifndef APP_CACHE_FLAGS_H
#define APP_CACHE_FLAGS_H

#include "apps/command.h"
#include "engine/kv_config.h"

typedef struct app_cache_flags {
    const char *dtype, *k, *v;     /* NULL: not given */
    const char *scales;
    float k_scale, v_scale;        /* 0: not given */
    uint32_t block_size;           /* 0: the engine's */
    const char *layout;
} app_cache_flags;

/* The rows of a command's table. type: the command's options, with a field `cache` of app_cache_flags. */
#define APP_CACHE_FLAG(type, field) (offsetof(type, cache) + offsetof(app_cache_flags, field))
#define APP_CACHE_FLAGS(type)                                                                                                                        \
    { "--kv-cache-dtype", "NAME", APP_TEXT, APP_CACHE_FLAG(type, dtype), 0, 0, false,                                                                \
      "cache format: auto (= f16), bf16, f16, f32, fp8 (= fp8_e4m3), fp8_e4m3, fp8_e5m2, fp8_e4m3fnuz, fp8_per_token_head, "                         \
      "int8_per_token_head, int8_rotated, int8_v4 (auto)" },                                                                                         \
    { "-ctk, --cache-type-k", "TYPE", APP_TEXT, APP_CACHE_FLAG(type, k), 0, 0, false,                                                                \
      "format of K alone: f32, f16, bf16, e4m3, e4m3fnuz, e5m2 (scale 1; with :tensor, :layer, :head or :channel calibrated scales, with "           \
      ":token dynamic ones), i8, i8:channel; a suffix +rot keeps it rotated" },                                                                      \
    { "-ctv, --cache-type-v", "TYPE", APP_TEXT, APP_CACHE_FLAG(type, v), 0, 0, false, "format of V alone, as -ctk; v4" },                              \
    { "--kv-scales", "FILE", APP_TEXT, APP_CACHE_FLAG(type, scales), 0, 0, false,                                                                    \
      "calibrated scales, as octavo calibrate writes them; 8-bit floats of scale 1 become :layer. A file of octavo advise also says what each layer "  \
      "is kept in, where no format is given" },                        \
    { "--k-scale", "X", APP_NUMBER, APP_CACHE_FLAG(type, k_scale), 1e-30, 1e30, false, "one scale for all of K instead of a file (an 8-bit float of scale 1 becomes :tensor)" }, \
    { "--v-scale", "X", APP_NUMBER, APP_CACHE_FLAG(type, v_scale), 1e-30, 1e30, false, "the same for V" },                                           \
    { "--block-size", "N", APP_COUNT, APP_CACHE_FLAG(type, block_size), 1, 1024, false, "tokens of a page (16)" },                                   \
    { "--kv-layout", "nhd|hnd|v5d", APP_CHOICE, APP_CACHE_FLAG(type, layout), 0, 0, false, "order within a page (nhd)" }

/* The config that the flags mean. *scales is zeroed first and, when a file was read, holds what config->scales points to: free it with
 * octe_scales_free once the engine is open. Returns 0, or the exit code after a message. */
int app_cache_config(const app_command *command, const app_cache_flags *flags, octe_kv_config *config, octe_scales *scales);

/* "K i8+rot:token, V e4m3fn; 3 of 30 layers otherwise"; one name where both are the same. text: as snprintf. */
void app_cache_name(const octe_kv_config *config, char *text, size_t size);

#endif
