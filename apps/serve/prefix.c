/* prefix.c: owns the bodies of /prefix/save and /prefix/restore: which text's pages go into which file of the directory, and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/serve/server.h"

/* Names stay within the directory: letters, digits, '.', '_' and '-', no '.' first. */
static bool can_be_file(const char *name, size_t n)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return n > 0 && n <= 100 && strlen(name) == n && name[0] != '.' && strspn(name, plain) == n;
}

static bool read_text(const app_server *server, const json_t *root, app_prefix *p, app_problem *problem)
{
    const json_t *const prompt = json_object_get(root, "prompt"), *const messages = json_object_get(root, "messages");
    if ((prompt == NULL) == (messages == NULL)) {
        return app_problem_set(problem, 400, "prompt", NULL, "there must be a 'prompt' or 'messages', one of them");
    }
    if (!(prompt != NULL ? app_prompt_read(server, prompt, &p->prompt, problem) : app_chat_prompt_read(server, messages, false, &p->prompt, problem))) {
        return false;
    }
    p->job.tokens = p->prompt.tokens;
    p->job.n_tokens = p->prompt.n;
    return true;
}

bool app_prefix_read(const app_server *server, bool restore, const char *body, size_t n_body, app_prefix *p, app_problem *problem)
{
    json_t *const root = app_json_read(body, n_body, problem);
    if (root == NULL) {
        return false;
    }
    const json_t *const name = json_object_get(root, "filename");
    bool fine = json_is_string(name) && can_be_file(json_string_value(name), json_string_length(name));
    if (!fine) {
        (void)app_problem_set(problem, 400, "filename", NULL, "'filename' must be 1 to 100 letters, digits, '.', '_' and '-', with no '.' first");
    } else if (server->prefix_directory == NULL) {
        fine = app_problem_set(problem, 400, NULL, "unsupported", "prefixes are neither saved nor restored: the server was started without --slot-save-path");
    } else {
        (void)snprintf(p->name, sizeof(p->name), "%s", json_string_value(name));
        const int n = snprintf(p->path, sizeof(p->path), "%s/%s", server->prefix_directory, p->name);
        fine = n > 0 && (size_t)n < sizeof(p->path);
        if (!fine) {
            (void)app_problem_set(problem, 500, NULL, NULL, "the path of '%s' is too long", p->name);
        }
    }
    p->job.restore = restore;
    p->job.path = p->path;
    /* What clients name must be theirs: not what a link leads to, and nothing that is never read to its end. */
    struct stat about;
    const bool there = fine && lstat(p->path, &about) == 0;
    if (there && !S_ISREG(about.st_mode)) {
        fine = app_problem_set(problem, 400, "filename", "bad_file", "'%s' is no regular file", p->name);
    } else if (fine && restore && !there) {
        fine = app_problem_set(problem, 404, "filename", NULL, "there is no file '%s'", p->name);
    }
    fine = fine && (restore || read_text(server, root, p, problem));
    json_decref(root);
    return fine;
}

/* What went wrong, with the file as the client named it: where the directory is, is not the client's business. */
static oct_error without_folder(const app_prefix *p)
{
    oct_error error = p->job.error;
    char *const at = strstr(error.text, p->path);
    if (at != NULL) {
        const size_t n_folder = strlen(p->path) - strlen(p->name);
        memmove(at, at + n_folder, strlen(at + n_folder) + 1);
    }
    return error;
}

json_t *app_prefix_reply(const app_prefix *p, app_problem *problem)
{
    const octe_prefix_job *const job = &p->job;
    if (job->status != OCT_OK) {
        const oct_error error = without_folder(p);
        (void)(job->status == OCT_BAD_DATA ? app_problem_set(problem, 400, "filename", "bad_file", "%s", error.text) : app_problem_of(problem, &error));
        return NULL;
    }
    if (!job->restore && job->moved.n_tokens == 0) {
        (void)app_problem_set(problem, 404, "prompt", "not_cached", "the cache has no whole page of this text's beginning");
        return NULL;
    }
    return json_pack("{s:s, s:I, s:I}", "filename", p->name, job->restore ? "n_restored" : "n_saved", (json_int_t)job->moved.n_tokens, job->restore ? "n_read" : "n_written",
                     (json_int_t)job->moved.n_bytes);
}

void app_prefix_free(app_prefix *p)
{
    if (p != NULL) {
        free(p->prompt.tokens);
        free(p);
    }
}
