/* status.c: owns what describes the server: the page at /, the state of pools and requests that it shows, and the API at /openapi.json. */
#include <stdlib.h>
#include <string.h>

#include "apps/serve/server.h"
#include "octavo/version.h"

enum { MOST_REQUESTS = 64 };

/* page.html, by CMake. */
extern const unsigned char app_page_bytes[];
extern const size_t app_page_n_bytes;

/* openapi.json, by CMake; the test of its routes holds it to routes.def. */
extern const unsigned char app_openapi_bytes[];
extern const size_t app_openapi_n_bytes;

/* With what depends on the model. */
json_t *app_reply_openapi(const app_server *server)
{
    json_t *const root = json_loadb((const char *)app_openapi_bytes, app_openapi_n_bytes, 0, NULL);
    const json_t *const schemas = json_object_get(json_object_get(root, "components"), "schemas");
    const uint32_t n_vocab = octe_vocab_size(server->vocab);
    (void)json_object_set_new(json_object_get(root, "info"), "version", json_string(oct_version_string()));
    (void)json_object_set_new(json_object_get(schemas, "Token"), "maximum", json_integer((json_int_t)n_vocab - 1));
    (void)json_object_set_new(json_object_get(schemas, "Token"), "description", json_string("A token of this model."));
    return root;
}

char *app_reply_page(void)
{
    char *const text = malloc(app_page_n_bytes + 1);
    if (text != NULL) {
        memcpy(text, app_page_bytes, app_page_n_bytes);
        text[app_page_n_bytes] = '\0';
    }
    return text;
}

json_t *app_reply_status(const app_server *server)
{
    octe_service_stats s;
    octe_service_stats_get(server->service, &s);
    const octe_scheduler_stats *const c = &s.scheduler;
    octe_open_answer open[MOST_REQUESTS];
    const uint32_t n = octe_service_list(server->service, open, MOST_REQUESTS);
    static const char *const names[] = { "Full attention", "Window" };
    json_t *const pools = json_array(), *const requests = json_array();
    for (int g = 0; g < 2 && c->pool[g].n > 0; g++) {
        const struct octe_pool_stats *const p = &c->pool[g];
        (void)json_array_append_new(pools, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I}", "name", names[g], "pages", (json_int_t)p->n, "free", (json_int_t)p->n_free, "cached", (json_int_t)p->n_cached, "used",
                                                     (json_int_t)p->n_used, "shared", (json_int_t)p->n_shared));
    }
    for (uint32_t i = 0; i < n; i++) {
        (void)json_array_append_new(requests, json_pack("{s:I, s:I, s:I, s:I, s:f}", "prompt", (json_int_t)open[i].n_prompt, "cached", (json_int_t)open[i].n_cached, "generated",
                                                        (json_int_t)open[i].n_sampled, "most", (json_int_t)open[i].max_new_tokens, "seconds", open[i].seconds));
    }
    const uint32_t waiting = s.n_open > c->n_running ? s.n_open - c->n_running : 0;
    return json_pack("{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "pools", pools, "requests", requests, "running", (json_int_t)c->n_running, "waiting", (json_int_t)waiting, "generated_tokens",
                     (json_int_t)s.n_sampled, "computed_tokens", (json_int_t)c->n_rows, "prompt_tokens", (json_int_t)c->n_prompt_tokens, "cached_tokens", (json_int_t)c->n_cached_tokens);
}
