/* calibrate.c: owns `octavo calibrate`: scales of K and V from a text, in a file that octavo reads, and its plug-ins for vLLM and SGLang. */
#include <stdlib.h>
#include <string.h>

#include "apps/chronicle.h"
#include "apps/command.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "apps/texts.h"
#include "apps/thread_note.h"
#include "engine/calibrate.h"

typedef struct calibrate_options {
    const char *model, *text, *output, *dtype;
    uint32_t n_threads, n_tokens, chunk_tokens, n_ranks;
    bool per_head, per_channel, rotate_k, rotate_v;
} calibrate_options;

#define OPTION(field) offsetof(calibrate_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "-f, --file", "TEXT", APP_TEXT, OPTION(text), 0, 0, false, "the text to calibrate on; built-in: a chronicle that Octavo makes itself (built-in)" },
    { "-o, --output", "FILE.json", APP_TEXT, OPTION(output), 0, 0, true, "the file of scales, written whole or not at all" },
    { "--per-head", NULL, APP_SWITCH, OPTION(per_head), 0, 0, false, "scales of each layer and KV head as well, under the key \"octavo\", which others ignore" },
    { "--per-channel", NULL, APP_SWITCH, OPTION(per_channel), 0, 0, false, "and of each channel" },
    { "--tp", "N", APP_COUNT, OPTION(n_ranks), 1, OCTE_SCALES_MAX_RANKS, false, "tensor-parallel ranks that the file serves (1)" },
    { "--dtype", "fp8|fp8_e4m3", APP_CHOICE, OPTION(dtype), 0, 0, false, "the format that the scales are for; files carry e4m3 (fp8_e4m3)" },
    { "--rotate-k", NULL, APP_SWITCH, OPTION(rotate_k), 0, 0, false, "for a cache that keeps K rotated" },
    { "--rotate-v", NULL, APP_SWITCH, OPTION(rotate_v), 0, 0, false, "for a cache that keeps V rotated" },
    { "--tokens", "N", APP_COUNT, OPTION(n_tokens), 2, 1u << 24, false, "tokens of the text to use at most (4096)" },
    { "--chunk", "N", APP_COUNT, OPTION(chunk_tokens), 0, 1u << 20, false, "the text is cut into sequences of so many tokens; 0: 2048, or the model's context (0)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
};

static bool advance(void *user, uint64_t done, uint64_t total)
{
    app_progress *const progress = user;
    progress->total = (double)total;
    app_progress_add(progress, (double)done - progress->done);
    return !app_interrupted();
}

/* What the file is to carry of all that was measured. */
static oct_status select_scales(const octe_scales *all, const calibrate_options *o, octe_scales *chosen, oct_error *error)
{
    const bool per_head = o->per_head || o->per_channel;
    const oct_status status = octe_scales_create(chosen, all->n_layers, per_head ? all->n_heads : 0, o->per_channel ? all->dim : 0, error);
    if (status != OCT_OK) {
        return status;
    }
    const size_t n = all->n_layers, n_heads = n * all->n_heads, n_channels = n_heads * all->dim;
    memcpy(chosen->model_type, all->model_type, sizeof(chosen->model_type));
    chosen->dtype = all->dtype;
    chosen->layer_split = all->layer_split;
    for (int side = 0; side < 2; side++) {
        chosen->rotated[side] = all->rotated[side];
        memcpy(chosen->layer[side], all->layer[side], n * sizeof(float));
        if (chosen->head[side] != NULL) {
            memcpy(chosen->head[side], all->head[side], n_heads * sizeof(float));
        }
        if (chosen->channel[side] != NULL) {
            memcpy(chosen->channel[side], all->channel[side], n_channels * sizeof(float));
        }
    }
    return OCT_OK;
}

static void add_range(app_text *text, const char *side, const float *scale, uint32_t n)
{
    float least = scale[0], most = scale[0];
    for (uint32_t i = 1; i < n; i++) {
        least = scale[i] < least ? scale[i] : least;
        most = scale[i] > most ? scale[i] : most;
    }
    app_text_add(text, "%s %.4g to %.4g", side, (double)least, (double)most);
}

static int tell(const calibrate_options *o, const octe_scales *scales, uint32_t n_tokens)
{
    app_text text = { 0 };
    app_text_add(&text, "%s: %u layers from %u tokens of %s; scales by layer: ", o->output, scales->n_layers, n_tokens, app_text_title(o->text));
    add_range(&text, "K", scales->layer[0], scales->n_layers);
    add_range(&text, ", V", scales->layer[1], scales->n_layers);
    app_text_add(&text, "%s\n", scales->channel[0] != NULL ? "; with scales by head and channel" : scales->head[0] != NULL ? "; with scales by head" : "");
    const int code = app_output_report(&text, NULL);
    app_text_free(&text);
    return code;
}

static int run(const app_command *command, int argc, char **argv)
{
    calibrate_options options = { .text = APP_TEXT_BUILT_IN, .dtype = "fp8_e4m3", .n_ranks = 1, .n_tokens = 4096 };
    int code;
    if (!app_arguments_parse(command, argc, argv, &options, &code)) {
        return code;
    }
    app_thread_note(options.n_threads);
    oct_error error = OCT_ERROR_INIT;
    octe_model *model = NULL;
    octe_vocab *vocab = NULL;
    int32_t *tokens = NULL;
    uint32_t n_tokens = 0;
    octe_scales all = { 0 }, chosen = { 0 };
    app_progress progress = { 0 };
    oct_status status = octe_model_open(options.model, NULL, &model, &error);
    if (status == OCT_OK) {
        status = octe_vocab_open(options.model, &vocab, &error);
    }
    if (status == OCT_OK) {
        status = app_text_tokens(vocab, options.text, APP_CHRONICLE_CALIBRATION, options.n_tokens, &tokens, &n_tokens, &error);
    }
    if (status == OCT_OK) {
        app_progress_begin(&progress, n_tokens);
        app_progress_say(&progress, "calibrating");
        const octe_calibrate_options wanted = {
            .n_threads = options.n_threads, .chunk_tokens = options.chunk_tokens, .dtype = OCT_DTYPE_E4M3FN, .rotate = { options.rotate_k, options.rotate_v },
            .progress = advance, .user = &progress,
        };
        status = octe_calibrate(model, tokens, n_tokens, &wanted, &all, &error);
        app_progress_end(&progress);
    }
    if (status == OCT_OK) {
        status = select_scales(&all, &options, &chosen, &error);
    }
    if (status == OCT_OK) {
        status = octe_scales_write(&chosen, options.n_ranks, options.output, &error);
    }
    if (status == OCT_OK) {
        code = tell(&options, &chosen, n_tokens);
    } else {
        error.status = status;
        code = app_output_error(&error);
    }
    octe_scales_free(&all);
    octe_scales_free(&chosen);
    free(tokens);
    octe_vocab_close(vocab);
    octe_model_close(model);
    return code;
}

const app_command app_command_calibrate = {
    .name = "calibrate",
    .summary = "scales of K and V from a text, in a file for octavo, and for vLLM and SGLang by its plug-ins",
    .operands = "-m MODEL.gguf -o FILE.json [flags]",
    .notes = "octavo run --kv-scales FILE.json reads it back.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
