/* guard.c: owns who may ask at all: the key, and on which page a browser was when it asked. */
#include <string.h>
#include <strings.h>

#include "apps/serve/server.h"

/* As long as the keys are equally long it takes the same time wherever they differ. */
static bool key_fits(const app_server *server, struct MHD_Connection *c)
{
    static const char bearer[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    if (given == NULL || strncmp(given, bearer, sizeof(bearer) - 1) != 0) {
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

/* Length of the name in "name:port" or "[address]:port"; the brackets belong to it. */
static size_t name_length(const char *host)
{
    if (host[0] == '[') {
        const char *const end = strchr(host, ']');
        return end != NULL ? (size_t)(end - host) + 1 : strlen(host);
    }
    return strcspn(host, ":");
}

static bool is_name(const char *host, size_t n, const char *name) { return strlen(name) == n && strncasecmp(host, name, n) == 0; }

/* Four numbers and dots, beginning with 127; "127.0.0.1.evil.example" is a name like any other. */
static bool is_loopback_address(const char *host, size_t n)
{
    return n > 4 && strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") >= n;
}

bool app_guard_is_loopback(const char *host)
{
    return is_loopback_address(host, strlen(host)) || strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

/* A page of elsewhere can let its own name stand for 127.0.0.1 (DNS rebinding), and would then be of this origin; its name stays in Host. */
static bool host_fits(const app_server *server, const char *host)
{
    const size_t n = name_length(host);
    if (is_name(host, n, "localhost") || is_name(host, n, "[::1]") || is_loopback_address(host, n) || is_name(host, n, server->host)) {
        return true;
    }
    for (uint32_t i = 0; i < server->allowed_hosts.n; i++) {
        if (is_name(host, n, server->allowed_hosts.item[i])) {
            return true;
        }
    }
    return false;
}

/* Browsers name the page that asks; ours is of the same host. */
static bool origin_fits(const char *origin, const char *host)
{
    const char *const at = strstr(origin, "://");
    return at != NULL && host != NULL && (strncmp(origin, "http://", 7) == 0 || strncmp(origin, "https://", 8) == 0) && strcasecmp(at + 3, host) == 0;
}

bool app_guard_check(const app_server *server, struct MHD_Connection *c, const char *path, app_problem *problem)
{
    if (server->api_key != NULL) {
        return key_fits(server, c) || strcmp(path, "/health") == 0 || strcmp(path, "/") == 0 ||   /* the page asks for the key */
               app_problem_set(problem, 401, NULL, "invalid_api_key", "the header 'Authorization: Bearer KEY' is missing or has another key");
    }
    const char *const host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    const char *const origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    if (host != NULL && app_guard_is_loopback(server->host) && !host_fits(server, host)) {
        return app_problem_set(problem, 403, NULL, "host_not_allowed", "this server answers this machine alone, and not as '%.100s': start it with --allowed-host or --api-key", host);
    }
    if (origin != NULL && !origin_fits(origin, host)) {
        return app_problem_set(problem, 403, NULL, "origin_not_allowed", "pages of '%.100s' may not ask here without a key: start the server with --api-key", origin);
    }
    return true;
}
