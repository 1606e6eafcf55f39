/* eval_logits.c: the logits of sequences under one cache, for whoever wants to compute from them what octavo eval says.
 *
 *   eval_logits MODEL FORMAT <sequences >logits
 *
 * FORMAT: as of octavo compare's --formats, llama:f16 for libllama's own. Sequences: int32 n, then n tokens, any number of them. Logits: f32 [n][n_vocab] of
 * each. All rows of a sequence are one step. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/compare/runner.h"

enum { MOST_TOKENS = 2048 };

static int fail(const char *what)
{
    fprintf(stderr, "eval_logits: %s\n", what);
    return 1;
}

static int copy_logits(compare_runner *runner, uint32_t n_vocab)
{
    int32_t n, tokens[MOST_TOKENS];
    oct_error error = OCT_ERROR_INIT;
    while (fread(&n, sizeof(n), 1, stdin) == 1) {
        const float *logits = NULL;
        if (n < 1 || n > MOST_TOKENS || fread(tokens, sizeof(tokens[0]), (size_t)n, stdin) != (size_t)n) {
            return fail("a sequence is cut or too long");
        }
        if (compare_runner_empty(runner, &error) != OCT_OK || compare_runner_step(runner, tokens, (uint32_t)n, (uint32_t)n, &logits, &error) != OCT_OK) {
            return fail(error.text);
        }
        if (fwrite(logits, sizeof(*logits) * n_vocab, (size_t)n, stdout) != (size_t)n) {
            return fail("standard output");
        }
    }
    return fflush(stdout) == 0 ? 0 : fail("standard output");
}

int main(int argc, char **argv)
{
    oct_error error = OCT_ERROR_INIT;
    octe_model *model = NULL;
    compare_format formats[COMPARE_MAX_FORMATS];
    uint32_t n_formats = 0;
    compare_runner runner = { 0 };
    char list[128];
    if (argc != 3) {
        return fail("wants MODEL FORMAT");
    }
    /* The first of a list must be ours. */
    (void)snprintf(list, sizeof(list), "f32,%.100s", argv[2]);
    if (octe_model_open(argv[1], NULL, &model, &error) != OCT_OK || compare_formats_parse(list, formats, &n_formats, &error) != OCT_OK) {
        return fail(error.text);
    }
    const uint32_t context = octe_model_info_get(model)->n_ctx_train, most = context < MOST_TOKENS ? context : MOST_TOKENS;
    const compare_runner_options options = { .model = model, .path = argv[1], .n_threads = 1, .context_tokens = most, .step_rows = most, .step_logits = most };
    const int code = compare_runner_open(&runner, &formats[1], &options, &error) == OCT_OK ? copy_logits(&runner, octe_model_info_get(model)->n_vocab) : fail(error.text);
    compare_runner_close(&runner);
    octe_model_close(model);
    return code;
}
