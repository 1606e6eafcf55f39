/* http.c: owns connections and routes, over libmicrohttpd with one thread for all of them. While an answer is being made its connection is suspended: no
 * thread waits for it, and the service's thread wakes it when there is something to send. */
#define _GNU_SOURCE /* POLLRDHUP */
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "apps/serve/server.h"
#include "host/clock.h"

enum { HEADER_BYTES = 32 * 1024, TIMEOUT_BYTES = 1 << 20 };   /* TIMEOUT_BYTES: so many more of a reply give it --request-timeout once more */

/* A connection as its listener sees it. */
typedef struct connection {
    struct connection *next, *previous;
    int socket;
    bool busy;             /* a whole request has come and is being answered */
    double since;          /* when it was opened, or the last answer ended */
    double until;          /* when a reply that is no stream must have been read; 0: none is on its way */
    struct app_http *http;
} connection;

struct app_http {
    app_server *server;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;  /* of the list */
    connection *first;
};

/* ---- connections ---------------------------------------------------------------------------------------------------- */

static void note_connection(void *argument, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    app_http *const http = argument;
    (void)pthread_mutex_lock(&http->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        connection *const record = calloc(1, sizeof(*record));
        const union MHD_ConnectionInfo *const info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        if (record != NULL) {
            *record = (connection){ .next = http->first, .socket = info != NULL ? info->connect_fd : -1, .since = oct__clock_seconds(), .http = http };
            if (http->first != NULL) {
                http->first->previous = record;
            }
            http->first = record;
        }
        *context = record;
    } else if (*context != NULL) {
        connection *const record = *context;
        *(record->previous != NULL ? &record->previous->next : &http->first) = record->next;
        if (record->next != NULL) {
            record->next->previous = record->previous;
        }
        free(record);
        *context = NULL;
    }
    (void)pthread_mutex_unlock(&http->lock);
}

static connection *record_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *const info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static void set_busy(struct MHD_Connection *c, bool busy)
{
    connection *const record = record_of(c);
    if (record != NULL) {
        (void)pthread_mutex_lock(&record->http->lock);
        record->busy = busy;
        record->since = oct__clock_seconds();
        record->until = 0.0;
        (void)pthread_mutex_unlock(&record->http->lock);
    }
}

static double time_to_read(const app_server *server, size_t n_bytes) { return oct__clock_seconds() + server->request_seconds * (1.0 + (double)n_bytes / TIMEOUT_BYTES); }

/* libmicrohttpd's own time begins anew with each byte that leaves: who takes one now and then would keep connection and reply for ever. */
static void set_until(struct MHD_Connection *c, size_t n_bytes)
{
    connection *const record = record_of(c);
    if (record != NULL) {
        (void)pthread_mutex_lock(&record->http->lock);
        record->until = time_to_read(record->http->server, n_bytes);
        (void)pthread_mutex_unlock(&record->http->lock);
    }
}

bool app_http_has_hung_up(int socket)
{
    /* Not recv: bytes behind the request would hide the end that follows them. */
    struct pollfd end = { .fd = socket, .events = POLLRDHUP };
    return socket >= 0 && poll(&end, 1, 0) > 0;
}

/* The same of a stream whose answers have ended; while they are being made it lasts as long as they do. With the service's lock held. */
static bool is_over(app_exchange *x)
{
    if (!x->ask.stream || !x->asked || !app_reply_is_ready(x)) {
        return false;
    }
    if (x->until <= 0.0) {
        x->until = time_to_read(x->server, app_reply_stream_left(x));
    }
    return oct__clock_seconds() > x->until;
}

/* A suspended connection is not looked at by libmicrohttpd: without this, who hangs up would keep pages until its answer is whole. A client that closes its own side
 * only looks the same from here, and is taken for one that has gone. */
static void end_hung_up(app_server *server)
{
    octe_service_lock(server->service);
    for (app_exchange *x = server->first; x != NULL; x = x->next) {
        const bool over = !x->gone && is_over(x);
        if (over) {
            (void)shutdown(x->socket, SHUT_RDWR);
        }
        if (x->gone || !(over || app_http_has_hung_up(x->socket))) {
            continue;
        }
        x->gone = true;
        /* What a job works on is the exchange's: one that has begun is waited for. */
        if (x->suspended && (x->prefix == NULL || octe_service_withdraw(server->service, &x->prefix->job))) {
            x->suspended = false;
            MHD_resume_connection(x->connection);
        }
    }
    octe_service_unlock(server->service);
}

/* A header that comes a byte at a time is never idle, so the time counts from the beginning. */
void app_http_tend(app_http *http)
{
    end_hung_up(http->server);
    const double now = oct__clock_seconds();
    (void)pthread_mutex_lock(&http->lock);
    for (connection *c = http->first; c != NULL; c = c->next) {
        if (c->socket >= 0 && (c->busy ? c->until > 0.0 && now > c->until : now - c->since > http->server->request_seconds)) {
            (void)shutdown(c->socket, SHUT_RDWR);
            c->socket = -1;
        }
    }
    (void)pthread_mutex_unlock(&http->lock);
}

/* ---- replies ------------------------------------------------------------------------------------------------------------ */

static enum MHD_Result send_text_with(struct MHD_Connection *c, unsigned status, const char *type, const app_problem *problem, char *text)
{
    if (text == NULL) {
        return MHD_NO;
    }
    struct MHD_Response *const response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return MHD_NO;
    }
    set_until(c, strlen(text));
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    /* The page is one file, asks this server alone and is nobody's frame. */
    (void)MHD_add_response_header(response, "Content-Security-Policy",
                                  "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    if (problem != NULL && problem->allow != NULL) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, problem->allow);
    }
    if (problem != NULL && problem->closes) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    if (status == MHD_HTTP_UNAUTHORIZED) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    }
    if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    }
    const enum MHD_Result result = MHD_queue_response(c, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_text(struct MHD_Connection *c, unsigned status, const char *type, char *text) { return send_text_with(c, status, type, NULL, text); }

static enum MHD_Result send_json(struct MHD_Connection *c, unsigned status, json_t *json)
{
    char *const text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return send_text(c, status, "application/json", text);
}

static enum MHD_Result send_problem(app_exchange *x, const app_problem *problem)
{
    x->server->n_refused++;
    json_t *const json = app_problem_json(problem);
    char *const text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return send_text_with(x->connection, problem->status, "application/json", problem, text);
}

/* ---- answers --------------------------------------------------------------------------------------------------------------- */

/* From the service's thread, with its lock held. */
static void wake(void *context)
{
    app_exchange *const x = context;
    if (x->suspended && (x->ask.stream || app_reply_is_ready(x))) {
        x->suspended = false;
        MHD_resume_connection(x->connection);
    }
}

/* The next bytes of a stream. Without any the connection sleeps until wake. */
static ssize_t read_stream(void *context, uint64_t position, char *to, size_t most)
{
    app_exchange *const x = context;
    (void)position;
    octe_service_lock(x->server->service);
    bool fine = !x->gone;
    if (fine && x->at_out == x->n_out) {
        fine = app_reply_stream(x);
    }
    size_t n = fine ? x->n_out - x->at_out : 0;
    n = n < most ? n : most;
    if (n > 0) {
        memcpy(to, x->out + x->at_out, n);
        x->at_out += n;
    } else if (fine && !x->finished) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    octe_service_unlock(x->server->service);
    return !fine ? MHD_CONTENT_READER_END_WITH_ERROR : n > 0 || !x->finished ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

static enum MHD_Result begin_stream(app_exchange *x)
{
    struct MHD_Response *const response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 * 1024, read_stream, x, NULL);
    if (response == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    const enum MHD_Result result = MHD_queue_response(x->connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result send_whole(app_exchange *x)
{
    octe_service_lock(x->server->service);
    if (x->gone) {
        octe_service_unlock(x->server->service);
        return MHD_NO;
    }
    if (!app_reply_is_ready(x)) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
        octe_service_unlock(x->server->service);
        return MHD_YES;
    }
    app_problem problem = { 0 };
    for (uint32_t i = 0; i < x->n_answers && problem.status == 0; i++) {
        const octe_answer_view view = octe_answer_look(x->answer[i]);
        if (view.end == OCTE_END_FAILED) {
            (void)app_problem_of(&problem, view.error);
        }
    }
    octe_service_unlock(x->server->service);
    /* Answers that have ended stay as they are: a long reply is written without the lock, which the next step waits for. */
    json_t *const reply = problem.status == 0 ? app_reply_whole(x) : NULL;
    return problem.status == 0 ? send_json(x->connection, MHD_HTTP_OK, reply) : send_problem(x, &problem);
}

static void list_exchange(app_exchange *x)
{
    octe_service_lock(x->server->service);
    x->listed = true;
    x->next = x->server->first;
    if (x->next != NULL) {
        x->next->previous = x;
    }
    x->server->first = x;
    octe_service_unlock(x->server->service);
}

static void unlist_exchange(app_exchange *x)
{
    octe_service_lock(x->server->service);
    if (x->listed) {
        *(x->previous != NULL ? &x->previous->next : &x->server->first) = x->next;
        if (x->next != NULL) {
            x->next->previous = x->previous;
        }
    }
    octe_service_unlock(x->server->service);
}

static bool ask_all(app_exchange *x, app_problem *problem)
{
    list_exchange(x);
    static uint64_t last_id;
    x->created = (int64_t)time(NULL);
    (void)snprintf(x->id, sizeof(x->id), "%s-%08" PRIx64 "%08" PRIx64, x->ask.chat ? "chatcmpl" : "cmpl", (uint64_t)x->created, ++last_id);
    for (uint32_t i = 0; i < x->ask.n * x->ask.n_prompts; i++) {
        octe_answer_spec spec = app_ask_spec(&x->ask, &x->ask.prompt[i / x->ask.n]);
        oct_error error = OCT_ERROR_INIT;
        spec.sampling.seed = x->ask.seed + i % x->ask.n;
        spec.notify = wake;
        spec.context = x;
        octe_answer *answer;
        if (octe_service_ask(x->server->service, &spec, &answer, &error) != OCT_OK) {
            return app_problem_of(problem, &error);
        }
        /* The service's thread may look at the list at once. */
        octe_service_lock(x->server->service);
        x->answer[x->n_answers++] = answer;
        octe_service_unlock(x->server->service);
    }
    octe_service_lock(x->server->service);
    x->asked = true;
    octe_service_unlock(x->server->service);
    return true;
}

static enum MHD_Result begin_answer(app_exchange *x)
{
    app_problem problem = { 0 };
    if (x->late) {
        (void)app_problem_set(&problem, 503, NULL, NULL, "the server is going down");
        return send_problem(x, &problem);
    }
    if (!ask_all(x, &problem)) {
        return send_problem(x, &problem);
    }
    /* The service has copies; a body of megabytes must not stay for as long as the answer takes. */
    app_ask_release(&x->ask);
    return x->ask.stream ? begin_stream(x) : send_whole(x);
}

/* ---- prefixes ------------------------------------------------------------------------------------------------------------------ */

/* From the service's thread, with its lock held. */
static void wake_prefix(void *context)
{
    app_exchange *const x = context;
    if (x->suspended) {
        x->suspended = false;
        MHD_resume_connection(x->connection);
    }
}

/* A connection stays until its job is done or withdrawn: it is suspended, so nobody ends its exchange. */
static enum MHD_Result send_prefix(app_exchange *x)
{
    octe_service_lock(x->server->service);
    octe_prefix_job *const job = &x->prefix->job;
    const bool nobody = x->gone && (job->withdrawn || octe_service_withdraw(x->server->service, job)), done = job->done;
    if (!done && !nobody) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    octe_service_unlock(x->server->service);
    if (!done || nobody) {
        return nobody ? MHD_NO : MHD_YES;
    }
    app_problem problem = { 0 };
    json_t *const reply = app_prefix_reply(x->prefix, &problem);
    return reply != NULL ? send_json(x->connection, MHD_HTTP_OK, reply) : send_problem(x, &problem);
}

static enum MHD_Result begin_prefix(app_exchange *x)
{
    app_problem problem = { 0 };
    x->prefix->job.notify = wake_prefix;
    x->prefix->job.context = x;
    oct_error error = OCT_ERROR_INIT;
    if (x->late) {
        (void)app_problem_set(&problem, 503, NULL, NULL, "the server is going down");
        return send_problem(x, &problem);
    }
    list_exchange(x);
    if (octe_service_submit(x->server->service, &x->prefix->job, &error) != OCT_OK) {
        (void)app_problem_of(&problem, &error);
        return send_problem(x, &problem);
    }
    x->submitted = true;
    return send_prefix(x);
}

/* ---- routes ------------------------------------------------------------------------------------------------------------------- */

#define ROUTE(path, method, name) { path, method, APP_ROUTE_##name },
static const struct { const char *path, *method; app_route route; } routes[] = {
#include "apps/serve/routes.def"
};
#undef ROUTE

static app_route find_route(const char *path, const char *method, app_problem *problem)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(routes[i].path, path) == 0) {
            const bool reads = strcmp(routes[i].method, "GET") == 0;
            if (strcmp(routes[i].method, method) == 0 || (reads && strcmp(method, "HEAD") == 0)) {
                return routes[i].route;   /* of HEAD libmicrohttpd leaves out the body */
            }
            (void)app_problem_set(problem, 405, NULL, NULL, "%s takes %s", path, routes[i].method);
            problem->allow = reads ? "GET, HEAD" : "POST";
            return APP_ROUTE_NONE;
        }
    }
    (void)app_problem_set(problem, 404, NULL, NULL, "there is no %.100s", path);
    return APP_ROUTE_NONE;
}

static enum MHD_Result answer_route(app_exchange *x)
{
    app_server *const server = x->server;
    char *reply;
    app_body_drop(x);   /* it has been read: its memory is not for as long as the reply takes */
    if (x->left) {
        return MHD_NO;
    }
    if (x->problem.status != 0) {
        return send_problem(x, &x->problem);
    }
    x->begun = true;
    switch (x->route) {
    case APP_ROUTE_HEALTH:
        return server->draining ? send_json(x->connection, 503, json_pack("{s:s}", "status", "going down")) : send_json(x->connection, 200, json_pack("{s:s}", "status", "ok"));
    case APP_ROUTE_MODELS:
        return send_json(x->connection, 200, app_reply_models(server));
    case APP_ROUTE_COMPLETIONS:
    case APP_ROUTE_CHAT:
        return begin_answer(x);
    case APP_ROUTE_METRICS:
        return send_text(x->connection, 200, "text/plain; version=0.0.4; charset=utf-8", app_reply_metrics(server));
    case APP_ROUTE_EXPLAIN:
        return send_text(x->connection, 200, "application/json", app_reply_explain(server));
    case APP_ROUTE_OPENAPI:
        return send_json(x->connection, 200, app_reply_openapi(server));
    case APP_ROUTE_PREFIX_SAVE:
    case APP_ROUTE_PREFIX_RESTORE:
        return begin_prefix(x);
    case APP_ROUTE_STATUS:
        return send_json(x->connection, 200, app_reply_status(server));
    case APP_ROUTE_PAGE:
        return send_text(x->connection, 200, "text/html; charset=utf-8", app_reply_page());
    default:
        reply = x->reply;
        x->reply = NULL;
        return send_text(x->connection, 200, "application/json", reply);
    }
}

static void note_said(app_exchange *x)
{
    x->server->n_unsaid -= x->unsaid ? 1 : 0;
    x->unsaid = false;
}

/* What is suspended has not been told anything. */
static enum MHD_Result note_reply(app_exchange *x, enum MHD_Result result)
{
    const union MHD_ConnectionInfo *const info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_SUSPENDED);
    if (info == NULL || info->suspended != MHD_YES) {
        note_said(x);
    }
    return result;
}

/* Called with the header, then with each piece of the body, then without one; and again each time a suspended connection goes on. */
static enum MHD_Result handle(void *argument, struct MHD_Connection *c, const char *url, const char *method, const char *version, const char *upload, size_t *n_upload,
                              void **context)
{
    app_http *const http = argument;
    app_exchange *x = *context;
    if (x == NULL) {
        x = calloc(1, sizeof(*x));
        if (x == NULL) {
            return MHD_NO;
        }
        x->server = http->server;
        x->connection = c;
        *context = x;
        if (!app_guard_length(x->server, c, &x->problem)) {
            x->server->n_requests++;
            return send_problem(x, &x->problem);   /* before it comes; then libmicrohttpd closes the connection */
        }
        /* Of who is refused, or asks where nothing is to be brought, the body is read to its end, so that the reply is heard, and not kept: /health needs no key. */
        if (app_guard_check(x->server, c, url, version, &x->problem)) {
            x->route = find_route(url, method, &x->problem);
        }
        return MHD_YES;
    }
    if (*n_upload > 0) {
        if (strcmp(method, MHD_HTTP_METHOD_POST) == 0) {
            app_body_take(x, upload, *n_upload);
        }
        *n_upload = 0;
        return MHD_YES;
    }
    if (x->begun) {
        return note_reply(x, x->submitted ? send_prefix(x) : send_whole(x));   /* woken: a stream goes on by itself */
    }
    if (!x->routed) {
        x->routed = x->counted = true;
        x->server->n_requests++;
        x->server->n_exchanges++;
        x->server->n_unsaid++;
        x->unsaid = true;
        set_busy(c, true);
        const union MHD_ConnectionInfo *const info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        x->socket = info != NULL ? info->connect_fd : -1;
        x->late = x->server->draining;
        if (x->problem.status == 0 && !app_body_read(x)) {
            return MHD_YES;   /* suspended */
        }
    }
    return note_reply(x, answer_route(x));
}

/* The reply is sent, or the client has gone. */
static void end_exchange(void *argument, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode code)
{
    app_exchange *const x = *context;
    (void)argument;
    (void)code;
    if (x == NULL) {
        return;
    }
    unlist_exchange(x);
    for (uint32_t i = 0; i < x->n_answers; i++) {
        octe_answer_abandon(x->answer[i]);
    }
    note_said(x);
    if (x->counted) {
        x->server->n_exchanges--;
    }
    set_busy(c, false);
    app_ask_free(&x->ask);
    app_prefix_free(x->prefix);
    free(x->reply);
    app_body_drop(x);
    free(x->out);
    free(x);
    *context = NULL;
}

/* ---- the daemon ------------------------------------------------------------------------------------------------------------------ */

bool app_http_start(app_server *server, const char *host, uint16_t *port, uint32_t max_connections, app_http **http)
{
    char service[8];
    struct addrinfo *found = NULL, wanted = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    app_http *const h = calloc(1, sizeof(*h));
    *http = h;
    (void)snprintf(service, sizeof(service), "%u", *port);
    const int code = h != NULL ? getaddrinfo(host, service, &wanted, &found) : EAI_MEMORY;
    if (code != 0) {
        fprintf(stderr, "octavo serve: --host %s: %s\n", host, gai_strerror(code));
        free(h);
        *http = NULL;
        return false;
    }
    h->server = server;
    (void)pthread_mutex_init(&h->lock, NULL);
    if (!app_reader_start(server)) {
        fprintf(stderr, "octavo serve: no thread for long bodies\n");
        freeaddrinfo(found);
        app_http_stop(h);
        *http = NULL;
        return false;
    }
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | (found->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    h->daemon = MHD_start_daemon(flags, *port, NULL, NULL, handle, h, MHD_OPTION_SOCK_ADDR, found->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, end_exchange, h,
                                 MHD_OPTION_NOTIFY_CONNECTION, note_connection, h, MHD_OPTION_CONNECTION_LIMIT, (unsigned)max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
                                 (unsigned)server->request_seconds, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES, MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u,
                                 MHD_OPTION_END);
    freeaddrinfo(found);
    const union MHD_DaemonInfo *const info = h->daemon != NULL ? MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT) : NULL;
    if (info == NULL) {
        fprintf(stderr, "octavo serve: can't listen on %s, port %u: the port is taken, or the address is not this machine's\n", host, *port);
        app_http_stop(h);
        *http = NULL;
        return false;
    }
    *port = info->port;
    return true;
}

void app_http_stop_listening(app_http *http)
{
    const MHD_socket socket = MHD_quiesce_daemon(http->daemon);
    if (socket != MHD_INVALID_SOCKET) {
        (void)close(socket);
    }
}

void app_http_stop(app_http *http)
{
    app_reader_stop(http->server);   /* libmicrohttpd ends the program where a connection is suspended for ever */
    if (http->daemon != NULL) {
        MHD_stop_daemon(http->daemon);
    }
    app_reader_free(http->server);
    (void)pthread_mutex_destroy(&http->lock);
    free(http);
}
