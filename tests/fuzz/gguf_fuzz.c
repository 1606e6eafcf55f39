/* Fuzz target: the strict GGUF check. It must come back on any bytes, and what it accepts ggml's own reader must accept as well; then
 * the keys are read as those of a model and of a vocabulary. No file is touched. One thread. */
#include <stdint.h>
#include <stdlib.h>

#include <ggml.h>
#include <gguf.h>

#include "engine/arch.h"
#include "engine/gguf_check.h"
#include "engine/runtime.h"
#include "engine/vocab_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    oct_error error = OCT_ERROR_INIT;
    octe_gguf_summary summary;
    octe__runtime_start();   /* ggml's complaints go nowhere */
    if (octe_gguf_check_memory(data, size, "fuzz", &summary, &error) != OCT_OK) {
        return 0;
    }
    /* The promise that everything behind the check relies on. */
    if (summary.data_offset_bytes > size || summary.data_size_bytes > size - summary.data_offset_bytes) {
        abort();
    }
    struct ggml_context *tensors = NULL;
    const struct gguf_init_params params = {.no_alloc = true, .ctx = &tensors};
    struct gguf_context *gguf = gguf_init_from_buffer(data, size, params);
    if (gguf == NULL) {
        abort();
    }
    octe__hparams hparams;
    octe__metadata m = {.gguf = gguf, .file = "fuzz", .architecture = "", .where = "fuzz", .error = &error};
    (void)octe__hparams_read(&m, &hparams);
    (void)octe__vocab_check(&m);
    gguf_free(gguf);
    ggml_free(tensors);
    return 0;
}
