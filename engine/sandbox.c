/* sandbox.c: see sandbox.h. The keeper is forked early, and forks for each job: what a job leaves behind, takes or breaks ends with it. Texts go through memory that all of them share. */
#define _GNU_SOURCE   /* MAP_ANONYMOUS, MADV_REMOVE */
#include "engine/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>
#include <llama.h>

#include "engine/report.h"
#include "engine/sandbox_jobs.h"
#include "engine/vocab_state.h"

static const char where[] = "octe_sandbox";

#ifdef OCTE_HAVE_JINJA

typedef enum job_kind { JOB_CHECK, JOB_CHAT, JOB_GRAMMAR } job_kind;

/* in: a template and its variables, or a schema, each with a zero behind. */
typedef struct shared {
    job_kind kind;
    size_t n_template, n_in;
    size_t n_out;
    octe__job_outcome outcome;   /* 0: the job has not come to an end */
    int signal;                  /* that ended it */
    char in[OCTE_SANDBOX_TEXT_BYTES], out[OCTE_SANDBOX_TEXT_BYTES];
} shared;

typedef struct lane {
    pthread_mutex_t lock;
    shared *shared;
    int socket;
    pid_t keeper;
} lane;

/* What is long takes up to seconds, and what is short does not wait for it: a server answers the short on the thread that all connections wait for. */
enum { LANES = 2, SHORT_BYTES = 64 * 1024 };

struct octe_sandbox {
    lane lane[LANES];
};

bool octe_sandbox_is_built(void) { return true; }

/* ---- the other processes ----------------------------------------------------------------------------------------- */

static void limit(int what, rlim_t soft, rlim_t hard)
{
    const struct rlimit to = { soft, hard };
    (void)setrlimit(what, &to);
}

/* What the converter can't express it leaves out, and says so on standard error alone: such a grammar is none. */
static void convert(shared *s, octe__job_text *text)
{
    int ends[2];
    if (pipe(ends) != 0 || fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0 || fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0 || dup2(ends[1], STDERR_FILENO) < 0) {
        s->outcome = OCTE__JOB_NO_MEMORY;
        return;
    }
    const octe__job_outcome outcome = octe__job_grammar(s->in, text);
    const ssize_t n = read(ends[0], s->out, outcome == OCTE__JOB_DONE ? 256 : 0);
    text->n = n > 0 ? (size_t)n : text->n;
    s->outcome = n > 0 ? OCTE__JOB_FAILED : outcome;
}

static void work(shared *s)
{
    enum { STACK_MIB = 8, WALL_SECONDS = 60 };
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* Whatever the program does about them is not for this process. */
    static const int deaths[] = { SIGXCPU, SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
    for (size_t i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++) {
        (void)signal(deaths[i], SIG_DFL);
    }
    limit(RLIMIT_CORE, 0, 0);
#ifndef OCTE_SANITIZED
    limit(RLIMIT_STACK, (rlim_t)STACK_MIB << 20, (rlim_t)STACK_MIB << 20);   /* no part of RLIMIT_DATA; what inherits none would recurse through the machine's memory */
#endif
    limit(RLIMIT_CPU, OCTE_SANDBOX_SECONDS, OCTE_SANDBOX_SECONDS + 1);
#ifndef OCTE_SANITIZED   /* whose shadow memory is terabytes */
    limit(RLIMIT_DATA, (rlim_t)OCTE_SANDBOX_MEMORY_MIB << 20, (rlim_t)OCTE_SANDBOX_MEMORY_MIB << 20);
#endif
    (void)alarm(WALL_SECONDS);   /* what waits takes no processor's time, and the server waits with it */
    octe__job_text text = { s->out, 0, sizeof(s->out) };
    octe__job_outcome outcome = 0;
    if (s->kind == JOB_GRAMMAR) {
        convert(s, &text);
        outcome = s->outcome;
    } else {
        outcome = octe__job_chat(s->in, s->kind == JOB_CHECK ? NULL : s->in + s->n_template + 1, &text);
    }
    s->n_out = text.n;
    s->outcome = outcome;
}

/* Never returns. Its parent's end is the end of the socket. */
static void keep(shared *s, int socket)
{
    char byte;
    /* Ctrl-C goes to all processes of a terminal, and the server still answers what has come. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL);   /* ignored by whoever started the program, a job's end could not be told */
    for (;;) {
        ssize_t n = read(socket, &byte, 1);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n != 1) {
            _exit(0);
        }
        s->outcome = 0;
        s->signal = 0;
        const pid_t job = fork();
        if (job == 0) {
            (void)close(socket);
            work(s);
            _exit(0);
        }
        int status = 0;
        while (job > 0 && waitpid(job, &status, 0) < 0 && errno == EINTR) {
        }
        if (job < 0 || (WIFEXITED(status) && WEXITSTATUS(status) != 0)) {
            s->outcome = 0;
        } else if (WIFSIGNALED(status)) {
            s->outcome = 0;
            s->signal = WTERMSIG(status);
        }
        if (write(socket, &byte, 1) != 1) {
            _exit(0);
        }
    }
}

/* ---- this process ---------------------------------------------------------------------------------------------------- */

static oct_status open_lane(lane *b, oct_error *error)
{
    int ends[2] = { -1, -1 };
    void *const memory = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the process that renders chat templates");
    }
    const int made = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
    const pid_t keeper = made == 0 ? fork() : -1;
    if (keeper == 0) {
        (void)close(ends[0]);
        keep(memory, ends[1]);
    }
    const int why = errno;
    if (made == 0) {
        (void)close(ends[1]);
    }
    if (keeper < 0) {
        if (made == 0) {
            (void)close(ends[0]);
        }
        (void)munmap(memory, sizeof(shared));
        return octe__report(error, OCT_IO_ERROR, where, NULL, "no process for chat templates: %s", strerror(why));
    }
    *b = (lane){ .shared = memory, .socket = ends[0], .keeper = keeper };
    (void)pthread_mutex_init(&b->lock, NULL);
    return OCT_OK;
}

static void close_lane(lane *b)
{
    /* A process that was forked since may have this end, too: closed alone, it would be no end to the keeper. */
    (void)shutdown(b->socket, SHUT_RDWR);
    (void)close(b->socket);
    while (waitpid(b->keeper, NULL, 0) < 0 && errno == EINTR) {
    }
    (void)munmap(b->shared, sizeof(shared));
    (void)pthread_mutex_destroy(&b->lock);
}

oct_status octe_sandbox_open(octe_sandbox **sandbox, oct_error *error)
{
    octe_sandbox *const b = calloc(1, sizeof(*b));
    *sandbox = NULL;
    if (b == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the process that renders chat templates");
    }
    for (int i = 0; i < LANES; i++) {
        const oct_status status = open_lane(&b->lane[i], error);
        if (status != OCT_OK) {
            while (i-- > 0) {
                close_lane(&b->lane[i]);
            }
            free(b);
            return status;
        }
    }
    *sandbox = b;
    return OCT_OK;
}

void octe_sandbox_close(octe_sandbox *b)
{
    for (int i = 0; b != NULL && i < LANES; i++) {
        close_lane(&b->lane[i]);
    }
    free(b);
}

/* A byte there, a byte back. */
static bool wait_for_job(const lane *b)
{
    char byte = 'j';
    ssize_t n;
    do {
        n = send(b->socket, &byte, 1, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n != 1) {
        return false;
    }
    do {
        n = recv(b->socket, &byte, 1, 0);
    } while (n < 0 && errno == EINTR);
    return n == 1;
}

/* The error's text is short: of a long one the beginning, in one line. */
static oct_status fail(const shared *s, const char *what, oct_error *error)
{
    char text[160];
    size_t n = 0;
    for (size_t i = 0; i < s->n_out && i < sizeof(s->out) && n + 1 < sizeof(text); i++) {
        const unsigned char byte = (unsigned char)s->out[i];
        const char c = byte < 0x20 || byte == 0x7F ? ' ' : s->out[i];   /* a terminal shows it, and obeys no file */
        if (c != ' ' || (n > 0 && text[n - 1] != ' ')) {
            text[n++] = c;
        }
    }
    text[n] = '\0';
    switch (s->outcome) {
    case OCTE__JOB_REFUSED:
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%s refuses: %s", what, text);
    case OCTE__JOB_FAILED:
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%s can't be applied: %s", what, text);
    case OCTE__JOB_TOO_LONG:
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "%s makes more than %d bytes", what, OCTE_SANDBOX_TEXT_BYTES);
    case OCTE__JOB_NO_MEMORY:
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "%s needs more than %d MiB", what, OCTE_SANDBOX_MEMORY_MIB);
    default:
        break;
    }
    if (s->signal == SIGXCPU || s->signal == SIGKILL || s->signal == SIGALRM) {
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "%s takes more than %d seconds", what, OCTE_SANDBOX_SECONDS);
    }
    return octe__report(error, OCT_UNSUPPORTED, where, NULL, "%s ends the process that reads it (signal %d)", what, s->signal);
}

static oct_status run(octe_sandbox *sandbox, job_kind kind, const char *first, const char *second, const char *what, char **text, oct_error *error)
{
    enum { SMALL_BYTES = 1 << 20 };
    const size_t n_first = strlen(first), n_second = second != NULL ? strlen(second) : 0;
    lane *const b = &sandbox->lane[(second != NULL ? n_second : n_first) > SHORT_BYTES];
    shared *const s = b->shared;
    *text = NULL;
    if (n_first > sizeof(s->in) / 2 || n_second > sizeof(s->in) / 2 - 2) {
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "%s with %zu bytes; at most %zu", what, n_first > n_second ? n_first : n_second, sizeof(s->in) / 2 - 2);
    }
    (void)pthread_mutex_lock(&b->lock);
    memcpy(s->in, first, n_first + 1);
    memcpy(s->in + n_first + 1, second != NULL ? second : "", n_second + 1);
    s->kind = kind;
    s->n_template = n_first;
    s->n_in = n_first + n_second + 2;
    s->n_out = 0;
    oct_status status = OCT_OK;
    if (!wait_for_job(b)) {
        status = octe__report(error, OCT_IO_ERROR, where, NULL, "the process that renders chat templates has ended");
    } else if (s->outcome != OCTE__JOB_DONE || s->n_out > sizeof(s->out)) {
        status = fail(s, what, error);
    } else {
        /* The renderer cuts texts by bytes: half a character becomes U+FFFD. */
        octe_stream stream = { 0 };
        *text = malloc(3 * (s->n_out + sizeof(stream.held)) + 1 + sizeof(stream.held));
        if (*text != NULL) {
            octe_stream_finish(&stream, *text + octe_stream_bytes(&stream, s->out, s->n_out, *text));
        } else {
            status = octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for %zu bytes", s->n_out);
        }
    }
    /* Pages of a long chat would stay for good. */
    if (s->n_in + s->n_out > SMALL_BYTES) {
        (void)madvise(s, sizeof(*s), MADV_REMOVE);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return status;
}

/* The variables with the tokens that the template names. */
static char *add_tokens(const octe_vocab *v, const char *variables)
{
    json_error_t ignored;
    json_t *const root = json_loads(variables, JSON_ALLOW_NUL, &ignored);
    const struct { const char *name; int32_t token; } tokens[] = { { "bos_token", octe_vocab_bos(v) }, { "eos_token", octe_vocab_eos(v) } };
    for (size_t i = 0; i < 2 && root != NULL; i++) {
        if (tokens[i].token >= 0 && (uint32_t)tokens[i].token < octe_vocab_size(v)) {
            (void)json_object_set_new(root, tokens[i].name, json_string(llama_vocab_get_text(v->vocab, tokens[i].token)));
        }
    }
    char *const made = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return made;
}

static const char a_template[] = "the model's chat template";

static const char *find_template(const octe_vocab *v, oct_error *error)
{
    const char *const chat_template = llama_model_chat_template(v->model, NULL);
    if (chat_template == NULL) {
        (void)octe__report(error, OCT_UNSUPPORTED, where, NULL, "the model has no chat template (key 'tokenizer.chat_template')");
    }
    return chat_template;
}

oct_status octe_sandbox_check_chat(octe_sandbox *b, const octe_vocab *vocab, oct_error *error)
{
    const char *const chat_template = find_template(vocab, error);
    char *nothing = NULL;
    const oct_status status = chat_template != NULL ? run(b, JOB_CHECK, chat_template, NULL, a_template, &nothing, error) : OCT_UNSUPPORTED;
    free(nothing);
    return status == OCT_INVALID_ARGUMENT ? OCT_UNSUPPORTED : status;
}

oct_status octe_sandbox_chat(octe_sandbox *b, const octe_vocab *vocab, const char *variables, char **text, oct_error *error)
{
    const char *const chat_template = find_template(vocab, error);
    *text = NULL;
    if (chat_template == NULL) {
        return OCT_UNSUPPORTED;
    }
    char *const all = add_tokens(vocab, variables);
    const oct_status status = all != NULL ? run(b, JOB_CHAT, chat_template, all, a_template, text, error)
                                          : octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a chat");
    free(all);
    return status;
}

/* Halves of surrogate pairs, which the converter lets stand alone and counts as characters of their own, are left out of the rule of characters: a text has them in UTF-8. */
static char *narrow(const char *grammar)
{
    static const char name[] = "char ::= ";
    static const char rule[] = "char ::= [^\"\\\\\\x7F\\x00-\\x1F] | [\\\\] ([\"\\\\bfnrt] | \"u\" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))";
    const char *at = grammar;
    while (at != NULL && strncmp(at, name, sizeof(name) - 1) != 0) {
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
    const char *const end = at != NULL ? strchr(at, '\n') : NULL;
    char *const made = malloc(strlen(grammar) + sizeof(rule));
    if (made != NULL && end != NULL) {
        const size_t before = (size_t)(at - grammar);
        memcpy(made, grammar, before);
        memcpy(made + before, rule, sizeof(rule) - 1);
        memcpy(made + before + sizeof(rule) - 1, end, strlen(end) + 1);
    } else if (made != NULL) {
        memcpy(made, grammar, strlen(grammar) + 1);
    }
    return made;
}

oct_status octe_sandbox_grammar(octe_sandbox *b, const char *schema, char **grammar, oct_error *error)
{
    char *converted;
    *grammar = NULL;
    const oct_status status = run(b, JOB_GRAMMAR, schema, NULL, "the schema", &converted, error);
    if (status != OCT_OK) {
        return status;
    }
    *grammar = narrow(converted);
    free(converted);
    return *grammar != NULL ? OCT_OK : octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a grammar");
}

#else

bool octe_sandbox_is_built(void) { return false; }

static oct_status none(oct_error *error) { return octe__report(error, OCT_UNSUPPORTED, where, NULL, "this engine was built without llama-jinja (doc/SERVING.md)"); }

oct_status octe_sandbox_open(octe_sandbox **sandbox, oct_error *error)
{
    *sandbox = NULL;
    return none(error);
}

void octe_sandbox_close(octe_sandbox *sandbox) { (void)sandbox; }

oct_status octe_sandbox_check_chat(octe_sandbox *sandbox, const octe_vocab *vocab, oct_error *error)
{
    (void)sandbox, (void)vocab;
    return none(error);
}

oct_status octe_sandbox_chat(octe_sandbox *sandbox, const octe_vocab *vocab, const char *variables, char **text, oct_error *error)
{
    (void)sandbox, (void)vocab, (void)variables;
    *text = NULL;
    return none(error);
}

oct_status octe_sandbox_grammar(octe_sandbox *sandbox, const char *schema, char **grammar, oct_error *error)
{
    (void)sandbox, (void)schema;
    *grammar = NULL;
    return none(error);
}

#endif
