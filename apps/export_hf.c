/* export_hf.c: owns `octavo export-hf`: a GGUF as a Hugging Face checkpoint, for vLLM, SGLang and transformers. */
#include <string.h>

#include "apps/command.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "engine/export/hf.h"
#include "octavo/kv.h"

typedef struct export_options {
    const char *model, *output, *dtype;
} export_options;

#define OPTION(field) offsetof(export_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "-o, --output", "DIR", APP_TEXT, OPTION(output), 0, 0, true, "the folder, which appears whole or not at all; one that is there must be empty" },
    { "--dtype", "bf16|f16|f32", APP_CHOICE, OPTION(dtype), 0, 0, false, "the type of the dequantised weights (bf16)" },
};

static bool advance(void *user, uint64_t done, uint64_t total)
{
    app_progress *const progress = user;
    progress->total = (double)total;
    app_progress_add(progress, (double)done - progress->done);
    return !app_interrupted();
}

static int run(const app_command *command, int argc, char **argv)
{
    export_options options = { .dtype = "bf16" };
    int code;
    if (!app_arguments_parse(command, argc, argv, &options, &code)) {
        return code;
    }
    oct_error error = OCT_ERROR_INIT;
    app_progress progress = { 0 };
    octe_export_hf_result result;
    app_progress_begin(&progress, 1);
    app_progress_say(&progress, "exporting");
    const octe_export_hf_options wanted = { .dtype = oct_dtype_from_name(options.dtype), .progress = advance, .user = &progress };
    const oct_status status = octe_export_hf(options.model, options.output, &wanted, &result, &error);
    app_progress_end(&progress);
    if (status != OCT_OK) {
        error.status = status;
        return app_output_error(&error);
    }
    app_text text = { 0 };
    app_text_add(&text, "%s: %llu tensors in %s, %.1f MB; a vocabulary of %u\n", options.output, (unsigned long long)result.n_tensors, options.dtype,
                 (double)result.weight_bytes / 1e6, result.n_vocab);
    code = app_output_report(&text, NULL);
    app_text_free(&text);
    return code;
}

const app_command app_command_export_hf = {
    .name = "export-hf",
    .summary = "a GGUF as a Hugging Face checkpoint, for vLLM, SGLang and transformers",
    .operands = "-m MODEL.gguf -o DIR [flags]",
    .notes = "What quantisation took from the weights stays lost: the checkpoint computes what the GGUF computes.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
