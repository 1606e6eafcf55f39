/* client.h: owns requests to an OpenAI-compatible server as its users would send them: at their times, so many at once, streamed, each token's arrival noted. Over
 * libcurl; one thread. */
#ifndef APP_BENCH_CLIENT_H
#define APP_BENCH_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bench_request {
    /* in */
    char *body;                 /* JSON, malloc'ed; with "stream": true and "stream_options": {"include_usage": true} */
    double at;                  /* seconds after the beginning */
    uint32_t n_input;           /* tokens; what the server says takes its place */
    /* out, seconds after the beginning */
    double begun, first, last;
    double *gaps;               /* [n_gaps] from a piece with text to the next */
    uint32_t n_gaps, gaps_room, n_pieces, n_output, n_cached;
    bool ok;
    char error[160];            /* why not */
} bench_request;

typedef struct bench_client {
    const char *url, *api_key;  /* api_key NULL: none */
    uint32_t max_concurrency;   /* 0: any number */
    uint32_t timeout_seconds;   /* of one request */
    const char *where;          /* what messages begin with */
} bench_client;

/* Sends n requests, in the order of their times. *seconds: from the beginning to the last answer; *most: how many were under way at once. False: libcurl can't be
 * had, or Ctrl-C came; what was answered is there. */
bool bench_client_run(const bench_client *client, bench_request *requests, uint32_t n, double *seconds, uint32_t *most);
void bench_client_free(bench_request *requests, uint32_t n);

/* The first model that GET url names, malloc'ed; NULL after a message on standard error. */
char *bench_client_model(const bench_client *client);

#endif
