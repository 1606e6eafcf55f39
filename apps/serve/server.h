/* server.h: owns what the parts of `octavo serve` share: the server, one request being answered (an exchange), and what may be wrong with it.
 * One HTTP thread owns all exchanges; the service's thread touches an exchange only through `suspended`, with the service's lock held; the thread that reads long bodies has
 * an exchange from when it is handed over, suspended, until it resumes it. */
#ifndef APP_SERVER_H
#define APP_SERVER_H

#include <jansson.h>
#include <microhttpd.h>

#include "apps/arguments.h"
#include "engine/sandbox.h"
#include "engine/serve/service.h"

enum { APP_CHOICES_MAX = 32, APP_ANSWERS_MAX = 128, APP_BIASES_MAX = 1024 };   /* choices of a prompt, answers of a request, tokens of logit_bias */

typedef struct app_server {
    octe_engine *engine;
    const octe_vocab *vocab;
    octe_service *service;
    octe_sandbox *sandbox;              /* of chat templates and schemas; NULL: not built */
    bool renders_chat;                  /* the chat template, in the sandbox; else libllama takes it for one that it knows */
    const char *model_name, *api_key;   /* api_key NULL: none is asked for */
    const char *host;                   /* as --host has it */
    int prefix_folder;                  /* of files of prefixes, a descriptor; -1: none are written or read */
    app_texts allowed_hosts;            /* names beside this machine's own */
    size_t max_body_bytes, max_upload_bytes;   /* of one body, of all that are on their way */
    size_t upload_bytes;                /* what those take; the HTTP thread's */
    uint32_t draft_tokens;              /* of speculation; 0: off */
    uint32_t request_seconds;           /* in which a connection must bring a whole request */
    double begun;
    struct app_reader *reader;          /* of long bodies */
    _Atomic uint32_t n_exchanges;       /* being answered */
    _Atomic uint32_t n_unsaid;          /* of these, not yet told their reply, or that it is a stream */
    _Atomic bool draining;
    _Atomic uint64_t n_requests, n_refused;
    struct app_exchange *first;         /* whose answers are being made; with the service's lock */
} app_server;

#define ROUTE(path, method, name) APP_ROUTE_##name,
typedef enum app_route { APP_ROUTE_NONE,
#include "apps/serve/routes.def"
} app_route;
#undef ROUTE

/* Why a request gets no answer, in OpenAI's shape. status 0: nothing is wrong. */
typedef struct app_problem {
    unsigned status;                    /* of HTTP */
    const char *type, *param, *code;    /* static; param, code may be NULL */
    const char *allow;                  /* methods, of 405 */
    bool closes;                        /* the connection: where the body ends is not known */
    char message[400];
} app_problem;

#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
bool app_problem_set(app_problem *problem, unsigned status, const char *param, const char *code, const char *format, ...);   /* returns false */
bool app_problem_of(app_problem *problem, const oct_error *error);   /* the HTTP status that fits; returns false */
json_t *app_problem_json(const app_problem *problem);

/* Whether the key fits or, without one, the browser's page is ours and Host names this machine. version: of HTTP. False: *problem. */
bool app_guard_check(const app_server *server, struct MHD_Connection *connection, const char *path, const char *version, app_problem *problem);
/* Whether all headers have names and a body is announced in one way, which those before this server read alike, and not as too long. False: *problem, which closes the connection. */
bool app_guard_length(const app_server *server, struct MHD_Connection *connection, app_problem *problem);
bool app_guard_can_name(const char *text);   /* a host as requests name it, with or without a port */

typedef struct app_prompt {
    int32_t *tokens;
    uint32_t n, max_new_tokens;
} app_prompt;

/* What a body asks for. */
typedef struct app_ask {
    json_t *stop;                       /* what spec.stop points into */
    app_prompt *prompt;                 /* [n_prompts] */
    uint32_t n_prompts;
    octe_logit_bias *bias;
    char *grammar;                      /* made for this body; NULL: none, or one that is there for all */
    octe_answer_spec spec;              /* of all prompts; request.prompt, n_prompt, max_new_tokens and sampling.penalty_tokens are each one's own */
    uint32_t n;                         /* choices of each prompt */
    uint32_t seed;
    bool chat, stream, include_usage, penalizes;
} app_ask;

/* Whether a body of completions has no field but those that are read, that change no answer, or that say that nothing is to change; the same of stream_options (NULL is fine).
 * False: *problem. */
bool app_fields_check(bool chat, const json_t *root, app_problem *problem);
bool app_stream_fields_check(const json_t *options, app_problem *problem);

/* The spec of one prompt's answers. */
octe_answer_spec app_ask_spec(const app_ask *ask, const app_prompt *prompt);

/* Reads the body of /v1/completions or /v1/chat/completions. False: *problem. The caller frees either way. */
bool app_whole_number(const json_t *value, int64_t least, int64_t most, int64_t *number);   /* 5 and 5.0 are the same to JSON Schema */
bool app_prompt_read(const app_server *server, const json_t *value, size_t *n_special, app_prompt *prompt, app_problem *problem);   /* a text, or a list of tokens */
/* Through the chat template; more: an object of other variables for it, or NULL. */
bool app_chat_prompt_read(const app_server *server, const json_t *messages, bool answer_follows, const json_t *more, app_prompt *prompt, app_problem *problem);
/* What an answer is held to (response_format, structured_outputs, guided_json, guided_choice), as ask->spec.sampling.grammar. */
bool app_format_read(const app_server *server, const json_t *root, app_ask *ask, app_problem *problem);
bool app_ask_read(const app_server *server, bool chat, const char *body, size_t n_body, app_ask *ask, app_problem *problem);   /* of the body nothing stays but the stop texts */
void app_ask_release(app_ask *ask);   /* what has been asked for: body, prompt, stop texts, biases; the switches stay */
void app_ask_free(app_ask *ask);

/* What a body of /prefix/save or /prefix/restore asks for. */
typedef struct app_prefix {
    octe_prefix_job job;
    app_prompt prompt;
    char name[128];
} app_prefix;

typedef struct app_exchange {
    app_server *server;
    struct MHD_Connection *connection;
    char *body;
    size_t n_body, body_room;
    app_problem problem;
    app_ask ask;
    app_prefix *prefix;                 /* NULL: none */
    char *reply;                        /* of /tokenize and /detokenize, as it goes out */
    app_route route;
    struct app_exchange *next_to_read;
    int socket;                         /* from when it is routed */
    octe_answer *answer[APP_ANSWERS_MAX];   /* choice k of prompt p: p * ask.n + k */
    uint32_t n_answers;
    bool routed, begun, counted;        /* routed: it has come whole; begun: its body is read, answers or jobs are asked for */
    bool late;                          /* it came whole when the server was going down already; the HTTP thread's */
    bool unsaid;                        /* counted in n_unsaid */
    bool submitted;                     /* its prefix is a job */
    bool left;                          /* its client had hung up when its turn to be read came */
    /* With the service's lock. */
    struct app_exchange *next, *previous;
    bool listed, suspended, gone;       /* gone: the client has hung up */
    bool asked;                         /* all of its answers */
    double until;                       /* seconds: when what is left of a stream must be read, once its answers have ended; 0: they have not */
    /* What a stream has sent. */
    size_t given[APP_ANSWERS_MAX];
    uint32_t given_tokens[APP_ANSWERS_MAX];
    bool opened[APP_ANSWERS_MAX], ended[APP_ANSWERS_MAX], finished;
    char *out;
    size_t n_out, at_out;
    char id[40];
    int64_t created;
} app_exchange;

/* Bodies, on the HTTP thread: takes in the next piece; gives all of it back; reads what it asks for into ask, prefix, reply or problem. False: a thread of its own does that for a long
 * one, and resumes the connection when it is done. */
void app_body_take(app_exchange *exchange, const char *bytes, size_t n);
void app_body_drop(app_exchange *exchange);
bool app_body_read(app_exchange *exchange);
bool app_reader_start(app_server *server);   /* false: no thread */
void app_reader_stop(app_server *server);    /* what waits to be read, and what comes later, gets 503; may be called twice */
void app_reader_free(app_server *server);    /* once nobody asks any more */

/* Whether who sent a request can't hear its reply any more. Any thread. */
bool app_http_has_hung_up(int socket);

/* With the service's lock held: whether all answers have ended; the whole reply (without the lock, once all have ended); the next events of a stream, appended to out (nothing new: nothing). */
bool app_reply_is_ready(const app_exchange *exchange);
json_t *app_reply_whole(const app_exchange *exchange);
bool app_reply_stream(app_exchange *exchange);   /* false: no memory */
size_t app_reply_stream_left(const app_exchange *exchange);   /* about so many bytes that have come and are not sent */

/* special: names of special tokens become those. False: *problem. length SIZE_MAX: strlen. n_special as below. */
bool app_text_tokenize(const app_server *server, const char *text, size_t length, bool special, size_t *n_special, app_prompt *prompt, app_problem *problem);
/* Whether a text is tokenized in reasonable time beside the body's others, whose special tokens *n_special counts (0 at first); false: *problem. length SIZE_MAX: strlen. */
bool app_text_check(const app_server *server, const char *text, size_t length, size_t *n_special, app_problem *problem);

/* Reads the body of /prefix/save or /prefix/restore; false: *problem. What came of it, once the job is done. Frees. */
bool app_prefix_read(const app_server *server, bool restore, const char *body, size_t n_body, app_prefix *prefix, app_problem *problem);
json_t *app_prefix_reply(const app_prefix *prefix, app_problem *problem);   /* NULL: *problem */
void app_prefix_free(app_prefix *prefix);

/* Replies without a model. NULL: no memory. */
json_t *app_reply_openapi(const app_server *server);
json_t *app_json_read(const char *body, size_t n_body, app_problem *problem);   /* an object; NULL: *problem */
json_t *app_reply_models(const app_server *server);
json_t *app_reply_tokenize(const app_server *server, const char *body, size_t n_body, app_problem *problem);
json_t *app_reply_detokenize(const app_server *server, const char *body, size_t n_body, app_problem *problem);
json_t *app_reply_status(const app_server *server);   /* of pools and requests, for the page */
char *app_reply_page(void);                           /* malloc'ed HTML */
char *app_reply_metrics(const app_server *server);    /* malloc'ed */
char *app_reply_explain(const app_server *server);    /* malloc'ed */

/* The HTTP side: listens on host:port (0: any free one, *port says which). False: a message has gone to standard error. */
typedef struct app_http app_http;
bool app_http_start(app_server *server, const char *host, uint16_t *port, uint32_t max_connections, app_http **http);
/* Once in a while, from the thread that started it: closes connections that bring no request in time, and ends answers whose clients have hung up. */
void app_http_tend(app_http *http);
void app_http_stop_listening(app_http *http);
void app_http_stop(app_http *http);   /* no answer is being made any more */

#endif
