/* eval.c: owns `octavo eval`: what 8 bits do to a model, token by token and on tasks, with what can be told from chance and what can't. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/command.h"
#include "apps/eval/session.h"
#include "apps/output.h"
#include "apps/rates.h"
#include "apps/thread_note.h"

#define OPTION(field) offsetof(eval_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "--kv-cache-dtype", "LIST", APP_TEXT, OPTION(formats), 0, 0, false,
      "caches to judge: names as of octavo run (--kv-cache-dtype or -ctk), K/V where they differ; a first f16 or bf16 is the base, else f16 is (" EVAL_DEFAULT_FORMATS ")" },
    { "--tasks", "LIST", APP_TEXT, OPTION(tasks), 0, 0, false,
      "tokens, greedy, inside, hellaswag, truthfulqa, needle, recall, copy, lookup, gsm8k, or all: what can be run of all of these (all)" },
    { "-f, --file", "TEXT", APP_TEXTS, OPTION(texts), 0, 0, false,
      "a text to judge tokens on; may be given several times; built-in: a chronicle that Octavo makes itself, so that no model has read it (built-in)" },
    { "-o, --output-format", EVAL_FORMS, APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (md)" },
    { "--output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write the report to FILE, whole or not at all, instead of standard output" },
    { "--save", "FILE", APP_TEXTS, OPTION(saves), 0, 0, false, "write it to FILE as well, in the form that its ending says; may be given several times" },
    { "--save-items", "FILE", APP_TEXT, OPTION(items), 0, 0, false, "write what the tasks ask to FILE, before they are run: a line of JSON an item, its texts and tokens" },
    { "--f32-weights", NULL, APP_SWITCH, OPTION(f32_weights), 0, 0, false, "judge on a copy of the model with F32 weights as well, without the noise of quantised products" },
    { "--f32-dir", "FOLDER", APP_TEXT, OPTION(f32_folder), 0, 0, false, "where that copy is kept for the next time (beside the model)" },
    { "--tokens", "N", APP_COUNT, OPTION(n_tokens), 2, 1u << 20, false, "tokens of each text (2048)" },
    { "--chunk", "N", APP_COUNT, OPTION(chunk_tokens), 16, 1u << 20, false, "in sequences of so many tokens (1024)" },
    { "--items", "N", APP_COUNT, OPTION(n_items), 1, 100000, false, "items of each of hellaswag and truthfulqa, at most (100)" },
    { "--gsm8k-items", "N", APP_COUNT, OPTION(n_generated), 1, 100000, false, "items of gsm8k, at most (20)" },
    { "--gsm8k-tokens", "N", APP_COUNT, OPTION(generate_tokens), 1, 1u << 16, false, "longest answer to one (200)" },
    { "--lengths", "LIST", APP_TEXT, OPTION(lengths), 0, 0, false, "tokens of the texts of needle and recall (512,2048)" },
    { "--data", "FOLDER", APP_TEXT, OPTION(folder), 0, 0, false, "where hellaswag.jsonl, truthfulqa.jsonl and gsm8k.jsonl lie, as tools/setup/tasks.sh puts them (build/tasks)" },
    { "--seed", "N", APP_COUNT, OPTION(seed), 0, UINT32_MAX, false, "of made items and of the bootstrap (1)" },
    { "--sensitivity", "N", APP_COUNT, OPTION(n_sensitivities), 0, EVAL_MAX_FORMATS, false,
      "caches after the base that are taken layer by layer, in their order; each costs about as much as all else of 'inside' (1)" },
    { "--no-floor", NULL, APP_SWITCH, OPTION(no_floor), 0, 0, false, "don't measure the noise floor, which loads the model a second time in llama.cpp" },
    { "--partial", "FILE", APP_TEXT, OPTION(partial), 0, 0, false,
      "where an unfinished evaluation is kept, and continued from by the same command; none: nowhere (in the user's cache folder)" },
    { "--keep-every", "SECONDS", APP_COUNT, OPTION(keep_seconds), 0, 86400, false, "how often it is kept (10)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
    { "--block-size", "N", APP_COUNT, OPTION(block_size), 1, 1024, false, "tokens of a page (16)" },
    APP_RATES_FLAG(OPTION(rates_file)),
    { "--quick", NULL, APP_SWITCH, OPTION(quick), 0, 0, false,
      "a first look in minutes: --tokens 512 --chunk 512 --items 16 --gsm8k-items 6 --gsm8k-tokens 96 --lengths 256,512" },
};

static void apply_quick(eval_options *o)
{
    o->n_tokens = o->chunk_tokens = 512;
    o->n_items = 16;
    o->n_generated = 6;
    o->generate_tokens = 96;
    o->lengths = "256,512";
    o->quick = true;
}

/* False: the program ends with *code. */
static bool read_options(const app_command *command, int argc, char **argv, eval_session *s, int *code)
{
    eval_options *const o = &s->options;
    *o = (eval_options){
        .form = "md", .formats = EVAL_DEFAULT_FORMATS, .tasks = "all", .n_tokens = 2048, .chunk_tokens = 1024, .n_items = 100, .n_generated = 20, .generate_tokens = 200,
        .lengths = "512,2048", .folder = "build/tasks", .seed = 1, .keep_seconds = 10, .block_size = 16, .n_sensitivities = 1,
    };
    /* --quick is a set of defaults: what is said beside it counts. */
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            apply_quick(o);
        }
    }
    if (!app_arguments_parse(command, argc, argv, o, code)) {
        return false;
    }
    *code = APP_USAGE;
    oct_error error = OCT_ERROR_INIT;
    if (eval_session_asked(s, &error) != OCT_OK) {
        (void)app_arguments_complain(command, "%s", error.text);
        return false;
    }
    for (uint32_t i = 0; i < o->saves.n; i++) {
        if (eval_form_of(o->saves.item[i]) == NULL) {
            (void)app_arguments_complain(command, "--save: '%s' ends in none of %s", o->saves.item[i], EVAL_ENDINGS);
            return false;
        }
    }
    if (o->f32_folder != NULL && o->f32_folder[0] == '\0') {
        (void)app_arguments_complain(command, "--f32-dir: the folder's name is empty");
        return false;
    }
    if (o->texts.n == 0) {
        o->texts.item[o->texts.n++] = APP_TEXT_BUILT_IN;
    }
    app_thread_note(o->n_threads);
    *code = app_rates_load(o->rates_file, &s->rates);
    return *code == APP_OK;
}

static void note_command(eval_session *s, int argc, char **argv)
{
    app_text text = { 0 };
    app_text_add(&text, "octavo eval");
    for (int i = 0; i < argc; i++) {
        const bool plain = argv[i][0] != '\0' && strpbrk(argv[i], " \t\n\"'\\$&;|<>()*?`") == NULL;
        app_text_add(&text, plain ? " %s" : " '%s'", argv[i]);
    }
    s->command = text.failed ? NULL : text.bytes;
}

static int run(const app_command *command, int argc, char **argv)
{
    eval_session *const s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return app_output_fail("out of memory");
    }
    int code;
    if (read_options(command, argc, argv, s, &code)) {
        note_command(s, argc, argv);
        oct_error error = OCT_ERROR_INIT;
        oct_status status = eval_session_check_outputs(s, &error);
        if (status == OCT_OK) {
            status = eval_session_run(s, &error);
        }
        if (status == OCT_OK) {
            code = eval_session_deliver(s);
        } else {
            error.status = status;
            code = app_output_error(&error);
        }
        if (code != APP_OK) {
            eval_session_say_kept(s);
        }
    }
    eval_session_close(s);
    free(s);
    return code;
}

const app_command app_command_eval = {
    .name = "eval",
    .summary = "what 8 bits do to a model: tokens, tasks, and what is chance",
    .operands = "-m MODEL.gguf [flags]",
    .notes = "Everything is paired with the base on the same tokens and items. Ctrl-C keeps what is done; the same command continues from it.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
