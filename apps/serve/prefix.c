/* prefix.c: owns the bodies of /prefix/save and /prefix/restore: which text's pages go into which file of the directory, and back. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/serve/server.h"

/* Names stay within the directory: letters, digits, '.', '_' and '-', no '.' first. */
static bool can_be_file(const char *name, size_t n)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return n > 0 && n <= 100 && strlen(name) == n && name[0] != '.' && strspn(name, plain) == n;
}

static bool read_text(const app_server *server, const json_t *root, app_prefix *p, app_problem *problem)
{
    size_t n_special = 0;
    const json_t *const prompt = json_object_get(root, "prompt"), *const messages = json_object_get(root, "messages");
    if ((prompt == NULL) == (messages == NULL)) {
        return app_problem_set(problem, 400, "prompt", NULL, "there must be a 'prompt' or 'messages', one of them");
    }
    if (!(prompt != NULL ? app_prompt_read(server, prompt, &n_special, &p->prompt, problem) : app_chat_prompt_read(server, messages, false, NULL, &p->prompt, problem))) {
        return false;
    }
    p->job.tokens = p->prompt.tokens;
    p->job.n_tokens = p->prompt.n;
    return true;
}

/* What clients name must be theirs: not what a link leads to, and nothing that is never read to its end. What is open is judged, and what was judged is read. */
static bool open_file(const app_server *server, app_prefix *p, app_problem *problem)
{
    p->job.file = openat(server->prefix_folder, p->name, O_RDONLY | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    struct stat about;
    if (p->job.file < 0) {
        return errno == ENOENT                                              ? app_problem_set(problem, 404, "filename", NULL, "there is no file '%s'", p->name)
               : errno == ELOOP || errno == ENXIO || errno == ENODEV || errno == EACCES ? app_problem_set(problem, 400, "filename", "bad_file", "'%s' is no regular file that can be read", p->name)
                                                                            : app_problem_set(problem, 503, NULL, NULL, "'%s' can't be opened now", p->name);
    }
    return (fstat(p->job.file, &about) == 0 && S_ISREG(about.st_mode)) || app_problem_set(problem, 400, "filename", "bad_file", "'%s' is no regular file that can be read", p->name);
}

/* Whatever comes of that name meanwhile is replaced, and neither followed nor written to. */
static bool check_target(const app_server *server, const app_prefix *p, app_problem *problem)
{
    struct stat about;
    return fstatat(server->prefix_folder, p->name, &about, AT_SYMLINK_NOFOLLOW) != 0 || S_ISREG(about.st_mode) ||
           app_problem_set(problem, 400, "filename", "bad_file", "'%s' is no regular file", p->name);
}

bool app_prefix_read(const app_server *server, bool restore, const char *body, size_t n_body, app_prefix *p, app_problem *problem)
{
    p->job = (octe_prefix_job){ .restore = restore, .folder = server->prefix_folder, .name = p->name, .file = -1 };
    json_t *const root = app_json_read(body, n_body, problem);
    if (root == NULL) {
        return false;
    }
    const json_t *const name = json_object_get(root, "filename");
    bool fine = json_is_string(name) && can_be_file(json_string_value(name), json_string_length(name));
    if (!fine) {
        (void)app_problem_set(problem, 400, "filename", NULL, "'filename' must be 1 to 100 letters, digits, '.', '_' and '-', with no '.' first");
    } else if (server->prefix_folder < 0) {
        fine = app_problem_set(problem, 400, NULL, "unsupported", "prefixes are neither saved nor restored: the server was started without --slot-save-path");
    } else {
        (void)snprintf(p->name, sizeof(p->name), "%s", json_string_value(name));
    }
    fine = fine && (restore ? open_file(server, p, problem) : check_target(server, p, problem));
    fine = fine && (restore || read_text(server, root, p, problem));
    json_decref(root);
    return fine;
}

json_t *app_prefix_reply(const app_prefix *p, app_problem *problem)
{
    const octe_prefix_job *const job = &p->job;
    if (job->status != OCT_OK) {
        (void)(job->status == OCT_BAD_DATA ? app_problem_set(problem, 400, "filename", "bad_file", "%s", job->error.text) : app_problem_of(problem, &job->error));
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
        if (p->job.file >= 0) {
            (void)close(p->job.file);
        }
        free(p->prompt.tokens);
        free(p);
    }
}
