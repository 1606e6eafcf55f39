/* client.c: see client.h. */
#include "apps/bench/client.h"

#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/interrupt.h"
#include "host/clock.h"

/* One request under way. */
typedef struct call {
    struct call *next, *previous;   /* of those under way */
    bench_request *request;
    CURL *easy;
    double epoch;
    char *line;                 /* what has come of a line, or of a body that is no stream */
    size_t n_line, room;
    bool done;                  /* [DONE] has come */
    char curl_error[CURL_ERROR_SIZE];
} call;

/* ---- events ------------------------------------------------------------------------------------------------------------ */

static void note_piece(call *c, double now)
{
    bench_request *r = c->request;
    if (r->n_pieces++ == 0) {
        r->first = r->last = now;
        return;
    }
    if (r->n_gaps == r->gaps_room) {
        const uint32_t room = r->gaps_room * 2 + 64;
        double *const larger = realloc(r->gaps, room * sizeof(*larger));
        if (larger == NULL) {
            return;
        }
        r->gaps = larger;
        r->gaps_room = room;
    }
    r->gaps[r->n_gaps++] = now - r->last;
    r->last = now;
}

static void read_event(call *c, const char *text, size_t n)
{
    const double now = oct__clock_seconds() - c->epoch;
    bench_request *r = c->request;
    if (n == 6 && memcmp(text, "[DONE]", 6) == 0) {
        c->done = true;
        return;
    }
    json_t *const event = json_loadb(text, n, 0, NULL);
    const json_t *const choice = json_array_get(json_object_get(event, "choices"), 0), *const usage = json_object_get(event, "usage"), *const error = json_object_get(event, "error");
    const char *piece = json_string_value(json_object_get(choice, "text"));
    piece = piece != NULL ? piece : json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
    if (piece != NULL && piece[0] != '\0') {
        note_piece(c, now);
    }
    if (json_is_object(usage)) {
        r->n_output = (uint32_t)json_integer_value(json_object_get(usage, "completion_tokens"));
        r->n_input = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
        r->n_cached = (uint32_t)json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    }
    if (json_is_object(error)) {
        const char *const message = json_string_value(json_object_get(error, "message"));
        (void)snprintf(r->error, sizeof(r->error), "%s", message != NULL ? message : "an error without a message");
    }
    json_decref(event);
}

/* Lines "data: ..."; of another body the beginning stays as the error's text. */
static size_t receive(char *bytes, size_t size, size_t n, void *context)
{
    call *const c = context;
    (void)size;
    if (c->n_line + n + 1 > c->room) {
        char *const larger = realloc(c->line, (c->n_line + n + 1) * 2);
        if (larger == NULL) {
            return 0;
        }
        c->line = larger;
        c->room = (c->n_line + n + 1) * 2;
    }
    memcpy(c->line + c->n_line, bytes, n);
    c->n_line += n;
    size_t begin = 0;
    for (const char *end; (end = memchr(c->line + begin, '\n', c->n_line - begin)) != NULL;) {
        size_t length = (size_t)(end - (c->line + begin));
        const size_t next = begin + length + 1;
        length -= length > 0 && c->line[begin + length - 1] == '\r';
        if (length > 5 && memcmp(c->line + begin, "data:", 5) == 0) {
            const size_t skip = c->line[begin + 5] == ' ' ? 6 : 5;
            read_event(c, c->line + begin + skip, length - skip);
        } else if (c->line[begin] == '{') {
            (void)snprintf(c->request->error, sizeof(c->request->error), "%.*s", (int)(length < 150 ? length : 150), c->line + begin);   /* no stream */
        }
        begin = next;
    }
    memmove(c->line, c->line + begin, c->n_line - begin);
    c->n_line -= begin;
    return n;
}

/* ---- requests ------------------------------------------------------------------------------------------------------------- */

static struct curl_slist *headers_of(const bench_client *client)
{
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    if (client->api_key != NULL) {
        char header[600];
        (void)snprintf(header, sizeof(header), "Authorization: Bearer %.500s", client->api_key);
        list = curl_slist_append(list, header);
    }
    /* Or bodies of a kilobyte wait for the server's consent. */
    return curl_slist_append(list, "Expect:");
}

static CURL *open_easy(const bench_client *client, const struct curl_slist *headers, call *c)
{
    CURL *const easy = curl_easy_init();
    if (easy != NULL) {
        (void)curl_easy_setopt(easy, CURLOPT_URL, client->url);
        (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
        (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, receive);
        (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, c);
        (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, c->curl_error);
        (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT, (long)client->timeout_seconds);
        (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");   /* nothing from the environment */
        (void)curl_easy_setopt(easy, CURLOPT_PRIVATE, c);
    }
    return easy;
}

typedef struct run {
    const bench_client *client;
    CURLM *multi;
    struct curl_slist *headers;
    call *first;
    double epoch;
} run;

static bool begin(run *run, bench_request *r)
{
    call *const c = calloc(1, sizeof(*c));
    CURL *const easy = c != NULL ? open_easy(run->client, run->headers, c) : NULL;
    if (easy == NULL) {
        free(c);
        return false;
    }
    c->request = r;
    c->easy = easy;
    c->epoch = run->epoch;
    c->next = run->first;
    if (c->next != NULL) {
        c->next->previous = c;
    }
    run->first = c;
    (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, r->body);
    (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE, (long)strlen(r->body));
    r->begun = oct__clock_seconds() - run->epoch;
    (void)curl_multi_add_handle(run->multi, easy);
    return true;
}

static void finish(run *run, call *c, CURLcode code)
{
    bench_request *const r = c->request;
    long status = 0;
    (void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    r->ok = code == CURLE_OK && status == 200 && c->done && r->error[0] == '\0';
    if (!r->ok && r->error[0] == '\0') {
        const int n = (int)(c->n_line < 120 ? c->n_line : 120);
        if (code != CURLE_OK) {
            (void)snprintf(r->error, sizeof(r->error), "%.140s", c->curl_error[0] != '\0' ? c->curl_error : curl_easy_strerror(code));
        } else {
            (void)snprintf(r->error, sizeof(r->error), "status %ld%s%.*s", status, status == 200 ? ", and the stream ended early " : " ", n, c->line != NULL ? c->line : "");
        }
    }
    if (r->n_output == 0) {
        r->n_output = r->n_pieces;   /* a server that tells no usage */
    }
    *(c->previous != NULL ? &c->previous->next : &run->first) = c->next;
    if (c->next != NULL) {
        c->next->previous = c->previous;
    }
    (void)curl_multi_remove_handle(run->multi, c->easy);
    curl_easy_cleanup(c->easy);
    free(c->line);
    free(c);
}

/* Ends what has ended; returns how many. */
static uint32_t collect(run *run)
{
    uint32_t n = 0;
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(run->multi, &left)) != NULL;) {
        if (m->msg == CURLMSG_DONE) {
            char *c;
            const CURLcode code = m->data.result;
            (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
            finish(run, (call *)(void *)c, code);
            n++;
        }
    }
    return n;
}

/* Milliseconds to wait for events: until the next request's time, at most 100. */
static int patience(const bench_request *next, double now)
{
    const double ms = next != NULL ? (next->at - now) * 1e3 : 100;
    return ms < 0 ? 0 : ms > 100 ? 100 : (int)ms;
}

bool bench_client_run(const bench_client *client, bench_request *requests, uint32_t n, double *seconds, uint32_t *most)
{
    run r = { .client = client, .multi = curl_multi_init(), .headers = headers_of(client), .epoch = oct__clock_seconds() };
    uint32_t n_begun = 0, n_done = 0;
    bool fine = r.multi != NULL && r.headers != NULL;
    *most = 0;
    *seconds = 0;
    while (fine && n_done < n) {
        double now = oct__clock_seconds() - r.epoch;
        while (fine && n_begun < n && requests[n_begun].at <= now && (client->max_concurrency == 0 || n_begun - n_done < client->max_concurrency)) {
            fine = begin(&r, &requests[n_begun]);
            n_begun += fine;
        }
        *most = n_begun - n_done > *most ? n_begun - n_done : *most;
        int running;
        fine = fine && curl_multi_perform(r.multi, &running) == CURLM_OK;
        n_done += fine ? collect(&r) : 0;
        *seconds = now = oct__clock_seconds() - r.epoch;
        const bool may_begin = n_begun < n && (client->max_concurrency == 0 || n_begun - n_done < client->max_concurrency);
        fine = fine && (n_done == n || curl_multi_poll(r.multi, NULL, 0, patience(may_begin ? &requests[n_begun] : NULL, now), NULL) == CURLM_OK) && !app_interrupted();
    }
    while (r.first != NULL) {
        finish(&r, r.first, CURLE_ABORTED_BY_CALLBACK);
    }
    curl_slist_free_all(r.headers);
    (void)curl_multi_cleanup(r.multi);
    return fine;
}

void bench_client_free(bench_request *requests, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        free(requests[i].body);
        free(requests[i].gaps);
    }
    free(requests);
}

char *bench_client_model(const bench_client *client)
{
    call c = { 0 };
    bench_request nobody = { 0 };
    c.request = &nobody;
    struct curl_slist *const headers = headers_of(client);
    CURL *const easy = open_easy(client, headers, &c);
    const CURLcode code = easy != NULL ? curl_easy_perform(easy) : CURLE_OUT_OF_MEMORY;
    json_t *const reply = code == CURLE_OK ? json_loadb(c.line != NULL ? c.line : "", c.n_line, 0, NULL) : NULL;
    const char *const id = json_string_value(json_object_get(json_array_get(json_object_get(reply, "data"), 0), "id"));
    char *const name = id != NULL ? strdup(id) : NULL;
    if (name == NULL) {
        fprintf(stderr, "octavo %s: %s names no model: %s\n", client->where, client->url, code != CURLE_OK ? (c.curl_error[0] != '\0' ? c.curl_error : curl_easy_strerror(code)) : "give --model");
    }
    json_decref(reply);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    free(c.line);
    return name;
}
