/* guard.c: owns who may ask at all: the key, on which page a browser was when it asked, and how a body is announced. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "apps/serve/server.h"

/* As long as the keys are equally long it takes the same time wherever they differ. */
static bool key_fits(const app_server *server, struct MHD_Connection *c)
{
    static const char bearer[] = "Bearer ";   /* in any case, as all names of schemes */
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (given == NULL || strncasecmp(given, bearer, sizeof(bearer) - 1) != 0) {
        return false;
    }
    given += sizeof(bearer) - 1;
    const size_t n = strlen(server->api_key);
    if (strlen(given) != n) {
        return false;
    }
    unsigned char differs = 0;
    for (size_t i = 0; i < n; i++) {
        differs |= (unsigned char)(given[i] ^ server->api_key[i]);
    }
    return differs == 0;
}

/* What Host or --allowed-host names, without port and brackets. */
typedef struct named {
    char name[256];
    bool is_address;
} named;

/* "name", "name:port", "[address]" or "[address]:port", and nothing behind: "[::1].evil.example" is none of them. */
static bool read_name(const char *text, named *to)
{
    const bool brackets = text[0] == '[';
    const char *const begin = text + brackets;
    const size_t n = strcspn(begin, brackets ? "]" : ":");
    const char *rest = begin + n;
    if (n == 0 || n >= sizeof(to->name) || (brackets && *rest++ != ']')) {
        return false;
    }
    rest += *rest == ':' ? 1 + strspn(rest + 1, "0123456789") : 0;
    memcpy(to->name, begin, n);
    to->name[n] = '\0';
    if (!brackets && to->name[n - 1] == '.') {
        to->name[n - 1] = '\0';   /* of the root of all names */
    }
    unsigned char address[sizeof(struct in6_addr)];
    to->is_address = inet_pton(brackets ? AF_INET6 : AF_INET, to->name, address) == 1;
    return *rest == '\0' && to->name[0] != '\0' && (to->is_address || !brackets);
}

bool app_guard_can_name(const char *text)
{
    named ignored;
    return read_name(text, &ignored);
}

/* The whole of this machine's name, or what is before its first dot. */
static bool is_own_name(const char *name)
{
    char own[256] = "";
    if (gethostname(own, sizeof(own) - 1) != 0 || own[0] == '\0') {
        return false;
    }
    return strcasecmp(name, own) == 0 || (strlen(name) == strcspn(own, ".") && strncasecmp(name, own, strlen(name)) == 0);
}

/* A page of elsewhere can let its own name stand for an address of this machine (DNS rebinding), and would then be of this origin; its name stays in Host. An address
 * can't be made to stand for another one. */
static bool host_fits(const app_server *server, const char *host)
{
    named asked, allowed;
    if (!read_name(host, &asked)) {
        return false;
    }
    if (asked.is_address || strcasecmp(asked.name, "localhost") == 0 || strcasecmp(asked.name, server->host) == 0 || is_own_name(asked.name)) {
        return true;
    }
    for (uint32_t i = 0; i < server->allowed_hosts.n; i++) {
        if (read_name(server->allowed_hosts.item[i], &allowed) && strcasecmp(asked.name, allowed.name) == 0) {
            return true;
        }
    }
    return false;
}

/* Browsers name the page that asks; ours is of the same host. */
static bool origin_fits(const char *origin, const char *host)
{
    const size_t n = strncmp(origin, "http://", 7) == 0 ? 7 : strncmp(origin, "https://", 8) == 0 ? 8 : 0;
    return n > 0 && host != NULL && strcasecmp(origin + n, host) == 0;
}

typedef struct counted {
    uint32_t hosts, origins, lengths, codings, nameless;
} counted;

/* A name as RFC 9110 has it. What libmicrohttpd takes beyond that ("Content-Length " with a blank) it does not know by that name, and others may. */
static bool is_name(const char *key)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    size_t n = 0;
    for (; key[n] != '\0'; n++) {
        const char c = key[n];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr(marks, c) != NULL)) {
            return false;
        }
    }
    return n > 0;
}

static enum MHD_Result count_header(void *context, enum MHD_ValueKind kind, const char *key, const char *value)
{
    counted *const n = context;
    (void)kind;
    (void)value;
    n->nameless += !is_name(key);
    n->hosts += strcasecmp(key, MHD_HTTP_HEADER_HOST) == 0;
    n->origins += strcasecmp(key, MHD_HTTP_HEADER_ORIGIN) == 0;
    n->lengths += strcasecmp(key, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0;
    n->codings += strcasecmp(key, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    return MHD_YES;
}

/* Where a proxy and this server disagree on a body's end, what is behind it is somebody else's request. */
bool app_guard_length(const app_server *server, struct MHD_Connection *c, app_problem *problem)
{
    counted n = { 0 };
    (void)MHD_get_connection_values(c, MHD_HEADER_KIND, count_header, &n);
    const char *const length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const char *const coding = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    if (n.nameless > 0) {
        (void)app_problem_set(problem, 400, NULL, NULL, "%u headers have names with blanks or other characters that no name may have", n.nameless);
        problem->closes = true;
        return false;
    }
    if (n.lengths + n.codings > 1) {
        return app_problem_set(problem, 400, NULL, NULL, "a body must be announced once; there are %u headers Content-Length and %u Transfer-Encoding", n.lengths, n.codings);
    }
    if (coding != NULL && strcasecmp(coding, "chunked") != 0) {
        return app_problem_set(problem, 501, NULL, NULL, "Transfer-Encoding is '%.60s'; must be 'chunked'", coding);
    }
    return length == NULL || strtoull(length, NULL, 10) <= server->max_body_bytes ||
           app_problem_set(problem, 413, NULL, NULL, "the body is longer than %zu bytes", server->max_body_bytes);
}

bool app_guard_check(const app_server *server, struct MHD_Connection *c, const char *path, const char *version, app_problem *problem)
{
    counted n = { 0 };
    (void)MHD_get_connection_values(c, MHD_HEADER_KIND, count_header, &n);
    if (n.hosts > 1 || n.origins > 1 || (n.hosts == 0 && strcmp(version, MHD_HTTP_VERSION_1_1) == 0)) {
        return app_problem_set(problem, 400, NULL, NULL, "a request must have one header Host and at most one Origin; it has %u and %u", n.hosts, n.origins);
    }
    if (server->api_key != NULL) {
        return key_fits(server, c) || strcmp(path, "/health") == 0 || strcmp(path, "/") == 0 ||   /* the page asks for the key */
               app_problem_set(problem, 401, NULL, "invalid_api_key", "the header 'Authorization: Bearer KEY' is missing or has another key");
    }
    const char *const host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    const char *const origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    if (host != NULL && !host_fits(server, host)) {
        return app_problem_set(problem, 403, NULL, "host_not_allowed", "this server does not answer as '%.100s': start it with --allowed-host or --api-key", host);
    }
    if (origin != NULL && !origin_fits(origin, host)) {
        return app_problem_set(problem, 403, NULL, "origin_not_allowed", "pages of '%.100s' may not ask here without a key: start the server with --api-key", origin);
    }
    return true;
}
