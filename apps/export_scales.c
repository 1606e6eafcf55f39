/* export_scales.c: owns `octavo export-scales`: of a file of scales, what engines without octavo read. */
#include "apps/command.h"
#include "apps/output.h"
#include "engine/scales.h"
#include "host/error.h"

typedef struct export_options {
    const char *input, *output;
    uint32_t n_ranks;
} export_options;

#define OPTION(field) offsetof(export_options, field)
static const app_flag flags[] = {
    { "--kv-scales", "FILE.json", APP_TEXT, OPTION(input), 0, 0, true, "the scales, as octavo calibrate and octavo advise write them" },
    { "-o, --output", "FILE.json", APP_TEXT, OPTION(output), 0, 0, true, "the file, written whole or not at all" },
    { "--tp", "N", APP_COUNT, OPTION(n_ranks), 1, OCTE_SCALES_MAX_RANKS, false, "tensor-parallel ranks that the file serves (1)" },
};

/* How much coarser a side gets where the layer's other number is the larger. */
static float widest(const octe_scales *scales, int which)
{
    float most = 1.0f;
    for (uint32_t i = 0; i < scales->n_layers; i++) {
        const float ratio = scales->layer[!which][i] / scales->layer[which][i];
        most = ratio > most ? ratio : most;
    }
    return most;
}

static int run(const app_command *command, int argc, char **argv)
{
    export_options options = { .n_ranks = 1 };
    int code;
    if (!app_arguments_parse(command, argc, argv, &options, &code)) {
        return code;
    }
    oct_error error = OCT_ERROR_INIT;
    octe_scales scales = { 0 };
    oct_status status = OCT_OK;
    if (app_output_is_same(options.input, options.output)) {
        /* The finer numbers of the input would be lost. */
        status = oct__error_set(&error, OCT_INVALID_ARGUMENT, "octavo export-scales", "--output '%s' would take the place of --kv-scales", options.output);
    } else {
        status = octe_scales_read(options.input, OCTE_SCALES_ALL_RANKS, &scales, &error);
    }
    if (status == OCT_OK) {
        status = octe_scales_write_shared(&scales, options.n_ranks, options.output, &error);
    }
    if (status == OCT_OK) {
        app_text text = { 0 };
        app_text_add(&text, "%s: %u layers, one number for K and V of each, the larger: ", options.output, scales.n_layers);
        app_text_add(&text, "K's up to %.3g times its own, V's up to %.3g times%s\n", (double)widest(&scales, 0), (double)widest(&scales, 1),
                     scales.head[0] != NULL || scales.head[1] != NULL ? "; those by head and channel stay behind" : "");
        code = app_output_report(&text, NULL);
        app_text_free(&text);
    } else {
        error.status = status;
        code = app_output_error(&error);
    }
    octe_scales_free(&scales);
    return code;
}

const app_command app_command_export_scales = {
    .name = "export-scales",
    .summary = "of a file of scales, what SGLang's own loader reads",
    .operands = "--kv-scales FILE.json -o FILE.json [flags]",
    .notes = "A file whose numbers others would misread is refused: scales of rotated values, layers in formats of their own. Of a file of several ranks each layer's "
             "largest number is taken, for all ranks.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
