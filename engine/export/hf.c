/* hf.c: see hf.h. The folder is made under a name of its own beside the wanted one and renamed when all files are in it. */
#include "engine/export/hf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/export/parts.h"
#include "engine/report.h"
#include "octavo/kv.h"

static const char where[] = "octe_export_hf";
static const char *const files[] = { "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors" };
enum { CONFIG, GENERATION, TOKENIZER_CONFIG, TOKENIZER, WEIGHTS, N_FILES };

/* folder/file, malloc'ed. */
static char *join(const char *folder, const char *file)
{
    const size_t n = strlen(folder) + strlen(file) + 2;
    char *const path = malloc(n);
    if (path != NULL) {
        snprintf(path, n, "%s/%s", folder, file);
    }
    return path;
}

static oct_status failed(const octe__metadata *m, const char *path, const char *what)
{
    return octe__report(m->error, OCT_IO_ERROR, where, path, "%s: %s", what, strerror(errno));
}

static oct_status write_part(const char *folder, int which, json_t *json, const octe_model *model, const octe__metadata *m, const octe_export_hf_options *options,
                             octe_export_hf_result *result)
{
    char *const path = join(folder, files[which]);
    if (path == NULL) {
        return octe__report(m->error, OCT_OUT_OF_MEMORY, where, m->file, "no memory for a path");
    }
    FILE *const file = fopen(path, "wb");
    oct_status status = file != NULL ? OCT_OK : failed(m, path, "can't be made");
    if (status == OCT_OK && which == WEIGHTS) {
        status = octe__hf_weights(model, m, options, file, result);
    } else if (status == OCT_OK) {
        const size_t flags = which == TOKENIZER ? JSON_COMPACT : JSON_INDENT(2);
        status = json_dumpf(json, file, flags | JSON_REAL_PRECISION(9)) == 0 && fputc('\n', file) != EOF ? OCT_OK : failed(m, path, "can't be written");
    }
    const bool synced = file == NULL || (fflush(file) == 0 && fsync(fileno(file)) == 0);
    if (file != NULL && (fclose(file) != 0 || !synced) && status == OCT_OK) {
        status = failed(m, path, "can't be written");
    }
    free(path);
    return status;
}

static void take_away(const char *folder)
{
    for (int i = 0; i < N_FILES; i++) {
        char *const path = join(folder, files[i]);
        if (path != NULL) {
            (void)unlink(path);
        }
        free(path);
    }
    (void)rmdir(folder);
}

static oct_status write_folder(const octe_model *model, const octe__metadata *m, const char *folder, json_t *const *parts, const octe_export_hf_options *options,
                               octe_export_hf_result *result)
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    char *const part = malloc(length + 32);
    if (part == NULL) {
        return octe__report(m->error, OCT_OUT_OF_MEMORY, where, m->file, "no memory for a path");
    }
    snprintf(part, length + 32, "%.*s.part-%ld", (int)length, folder, (long)getpid());
    oct_status status = mkdir(part, 0777) == 0 ? OCT_OK : failed(m, part, "can't be made");
    if (status == OCT_OK) {
        for (int i = 0; i < N_FILES && status == OCT_OK; i++) {
            status = write_part(part, i, parts[i], model, m, options, result);
        }
        /* Takes the place of an empty folder; any other stays. */
        if (status == OCT_OK && rename(part, folder) != 0) {
            status = failed(m, folder, errno == EEXIST || errno == ENOTEMPTY ? "is there and not empty" : "can't be made");
        }
        if (status != OCT_OK) {
            take_away(part);
        }
    }
    free(part);
    return status;
}

oct_status octe_export_hf(const char *path, const char *folder, const octe_export_hf_options *options, octe_export_hf_result *result, oct_error *error)
{
    const octe_model_options plain = { .no_repack = true };
    octe_model *model = NULL;
    oct_status status = octe_model_open(path, &plain, &model, error);
    if (status != OCT_OK) {
        return status;
    }
    /* The model has read its keys and let them go; they are those of the same checked bytes. */
    struct gguf_context *const gguf = gguf_init_from_buffer(model->map.data, model->map.size_bytes, (struct gguf_init_params){ .no_alloc = true });
    const octe__metadata m = { .gguf = gguf, .file = model->path, .architecture = model->hparams.arch->name, .where = where, .error = error };
    octe_export_hf_result made = { 0 };
    json_t *parts[N_FILES] = { NULL };
    if (gguf == NULL) {
        status = octe__report(error, OCT_OUT_OF_MEMORY, where, model->path, "no memory for the file's keys");
    } else if (options->dtype != OCT_DTYPE_BF16 && options->dtype != OCT_DTYPE_F16 && options->dtype != OCT_DTYPE_F32) {
        status = octe__report(error, OCT_INVALID_ARGUMENT, where, model->path, "options.dtype is %u; must be bf16, f16 or f32", options->dtype);
    }
    if (status == OCT_OK) {
        status = octe__hf_config_check(model, &m);
    }
    if (status == OCT_OK) {
        status = octe__hf_tokenizer(&m, &parts[TOKENIZER]);
    }
    if (status == OCT_OK) {
        parts[CONFIG] = octe__hf_config(model, &m, options->dtype);
        parts[GENERATION] = octe__hf_generation_config(&m);
        parts[TOKENIZER_CONFIG] = octe__hf_tokenizer_config(&m);
        if (parts[CONFIG] == NULL || parts[GENERATION] == NULL || parts[TOKENIZER_CONFIG] == NULL) {
            status = octe__report(error, OCT_OUT_OF_MEMORY, where, model->path, "no memory for the configuration");
        }
    }
    if (status == OCT_OK) {
        status = write_folder(model, &m, folder, parts, options, &made);
    }
    if (status == OCT_OK && result != NULL) {
        *result = made;
    }
    for (int i = 0; i < N_FILES; i++) {
        json_decref(parts[i]);
    }
    if (gguf != NULL) {
        gguf_free(gguf);
    }
    octe_model_close(model);
    return status;
}
