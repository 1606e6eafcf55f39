/* body.c: owns the bodies of requests: their bytes as they come, and what they ask for. A short one is read at once, by the HTTP thread. The JSON and the tokens of a long one take
 * up to seconds: it is read by a thread of its own, one after the other, while its connection is suspended and all others go on. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "apps/serve/server.h"

enum { SHORT_BYTES = 16 * 1024 };   /* some ten milliseconds of tokens */

typedef struct app_reader {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    app_exchange *first, *last;   /* suspended, in the order in which they came */
    bool stopping, joined;
} app_reader;

/* ---- bytes, on the HTTP thread ------------------------------------------------------------------------------------------ */

/* All bodies together are bounded: without, as many clients as there may be connections could each bring the longest. */
void app_body_drop(app_exchange *x)
{
    free(x->body);
    x->server->upload_bytes -= x->body_room;
    x->body = NULL;
    x->n_body = x->body_room = 0;
}

void app_body_take(app_exchange *x, const char *bytes, size_t n)
{
    if (x->problem.status != 0) {
        return;   /* read to its end, so that the reply is heard, and not kept */
    }
    if (n > x->server->max_body_bytes - x->n_body) {
        app_body_drop(x);
        (void)app_problem_set(&x->problem, 413, NULL, NULL, "the body is longer than %zu bytes", x->server->max_body_bytes);
        return;
    }
    if (x->n_body + n > x->body_room) {
        const size_t room = (x->n_body + n) * 2, others = x->server->upload_bytes - x->body_room, most = x->server->max_upload_bytes;
        /* A short one always finds room: who fills what there is with halves of long ones does not keep everybody out. */
        const bool fits = room <= 2 * SHORT_BYTES || (others <= most && room <= most - others);
        char *const larger = fits ? realloc(x->body, room) : NULL;
        if (larger == NULL) {
            (void)app_problem_set(&x->problem, 503, NULL, NULL, "no memory for a body of %zu bytes beside others of %zu that are on their way", x->n_body + n, others);
            app_body_drop(x);
            return;
        }
        x->body = larger;
        x->body_room = room;
        x->server->upload_bytes = others + room;
    }
    memcpy(x->body + x->n_body, bytes, n);
    x->n_body += n;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------ */

/* Lists and objects of a JSON text, as far as it is one, and commas between values. */
static size_t count_containers(const char *text, size_t n, size_t *n_commas)
{
    size_t n_containers = 0;
    *n_commas = 0;
    bool within = false;   /* a string */
    for (size_t i = 0; i < n; i++) {
        if (within && text[i] == '\\') {
            i++;
        } else if (within) {
            within = text[i] != '"';
        } else {
            within = text[i] == '"';
            n_containers += text[i] == '[' || text[i] == '{';
            *n_commas += text[i] == ',';
        }
    }
    return n_containers;
}

/* jansson takes a hundred bytes and more for the three of "[]," or "{},": a body of megabytes would take, and leave scattered, hundreds of them. */
enum { MOST_CONTAINERS = 65536, MOST_COMMAS = 1 << 20 };

json_t *app_json_read(const char *body, size_t n_body, app_problem *problem)
{
    json_error_t error;
    size_t n_commas = 0;
    if (n_body > MOST_CONTAINERS && count_containers(body, n_body, &n_commas) > MOST_CONTAINERS) {
        (void)app_problem_set(problem, 400, NULL, NULL, "the body has more than %d lists and objects", MOST_CONTAINERS);
        return NULL;
    }
    if (n_commas > MOST_COMMAS) {
        (void)app_problem_set(problem, 400, NULL, NULL, "the body has more than %d values", MOST_COMMAS);
        return NULL;
    }
    json_t *const root = json_loadb(body, n_body, JSON_REJECT_DUPLICATES, &error);
    if (json_is_object(root)) {
        return root;
    }
    (void)(root == NULL ? app_problem_set(problem, 400, NULL, NULL, "the body is no JSON: %s (line %d, column %d)", error.text, error.line, error.column)
                        : app_problem_set(problem, 400, NULL, NULL, "the body must be a JSON object"));
    json_decref(root);
    return NULL;
}

/* ---- what they ask for ------------------------------------------------------------------------------------------------------ */

static void write_reply(app_exchange *x, json_t *reply)
{
    x->reply = reply != NULL ? json_dumps(reply, JSON_COMPACT) : NULL;
    json_decref(reply);
    if (x->reply == NULL && x->problem.status == 0) {
        (void)app_problem_set(&x->problem, 503, NULL, NULL, "no memory for the reply");
    }
}

/* Touches the exchange, and of the server what never changes. */
static void read_now(app_exchange *x)
{
    const char *const body = x->body != NULL ? x->body : "";
    switch (x->route) {
    case APP_ROUTE_COMPLETIONS:
    case APP_ROUTE_CHAT:
        (void)app_ask_read(x->server, x->route == APP_ROUTE_CHAT, body, x->n_body, &x->ask, &x->problem);
        break;
    case APP_ROUTE_PREFIX_SAVE:
    case APP_ROUTE_PREFIX_RESTORE:
        x->prefix = calloc(1, sizeof(*x->prefix));
        (void)(x->prefix != NULL ? app_prefix_read(x->server, x->route == APP_ROUTE_PREFIX_RESTORE, body, x->n_body, x->prefix, &x->problem)
                                 : app_problem_set(&x->problem, 503, NULL, NULL, "no memory for a prefix"));
        break;
    case APP_ROUTE_TOKENIZE:
        write_reply(x, app_reply_tokenize(x->server, body, x->n_body, &x->problem));
        break;
    case APP_ROUTE_DETOKENIZE:
        write_reply(x, app_reply_detokenize(x->server, body, x->n_body, &x->problem));
        break;
    default:
        break;   /* of no matter */
    }
    if (x->problem.status != 0) {   /* what is refused is freed here, and not by the thread that all connections wait for */
        app_prefix_free(x->prefix);
        x->prefix = NULL;
    }
}

static void *work(void *argument)
{
    app_reader *const r = argument;
    (void)pthread_mutex_lock(&r->lock);
    for (;;) {
        while (r->first == NULL && !r->stopping) {
            (void)pthread_cond_wait(&r->work, &r->lock);
        }
        app_exchange *const x = r->first;
        if (x == NULL) {
            break;
        }
        r->first = x->next_to_read;
        const bool stopping = r->stopping;
        (void)pthread_mutex_unlock(&r->lock);
        /* Seconds of work for nobody would hold up all that wait behind. */
        x->left = app_http_has_hung_up(x->socket);
        if (x->left) {
            /* no work */
        } else if (stopping) {
            (void)app_problem_set(&x->problem, 503, NULL, NULL, "the server is going down");
        } else {
            read_now(x);
        }
        MHD_resume_connection(x->connection);   /* and x is the HTTP thread's again */
        (void)pthread_mutex_lock(&r->lock);
    }
    (void)pthread_mutex_unlock(&r->lock);
    return NULL;
}

bool app_body_read(app_exchange *x)
{
    app_reader *const r = x->server->reader;
    if (x->n_body <= SHORT_BYTES) {
        read_now(x);
        return true;
    }
    (void)pthread_mutex_lock(&r->lock);
    const bool taken = !r->stopping;
    if (taken) {
        MHD_suspend_connection(x->connection);
        x->next_to_read = NULL;
        *(r->first != NULL ? &r->last->next_to_read : &r->first) = x;
        r->last = x;
        (void)pthread_cond_signal(&r->work);
    }
    (void)pthread_mutex_unlock(&r->lock);
    if (!taken) {
        (void)app_problem_set(&x->problem, 503, NULL, NULL, "the server is going down");
    }
    return !taken;
}

bool app_reader_start(app_server *server)
{
    app_reader *const r = calloc(1, sizeof(*r));
    if (r == NULL) {
        return false;
    }
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_cond_init(&r->work, NULL);
    server->reader = r;
    r->joined = pthread_create(&r->thread, NULL, work, r) != 0;   /* none to wait for */
    return !r->joined;
}

/* Of what is read it waits for the end: a suspended connection can't be closed. */
void app_reader_stop(app_server *server)
{
    app_reader *const r = server->reader;
    if (r == NULL || r->joined) {
        return;
    }
    (void)pthread_mutex_lock(&r->lock);
    r->stopping = true;
    (void)pthread_cond_signal(&r->work);
    (void)pthread_mutex_unlock(&r->lock);
    (void)pthread_join(r->thread, NULL);
    r->joined = true;
}

void app_reader_free(app_server *server)
{
    app_reader *const r = server->reader;
    if (r != NULL) {
        (void)pthread_cond_destroy(&r->work);
        (void)pthread_mutex_destroy(&r->lock);
        free(r);
        server->reader = NULL;
    }
}
