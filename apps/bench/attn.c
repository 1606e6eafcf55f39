/* attn.c: owns `octavo bench attn`: single operations through the public API, one row a combination of what was listed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/bench/lists.h"
#include "apps/bench/machine.h"
#include "apps/bench/rig.h"
#include "apps/bench/row.h"
#include "apps/bench/timing.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "apps/thread_note.h"
#include "engine/peer_attn.h"
#include "host/error.h"
#include "host/threads.h"

enum { ROWS_MAX = 500, PEER_TYPES_MAX = 8 };
static const double sample_seconds = 3e-3;
static const char where[] = "octavo bench attn";

typedef struct attn_options {
    const char *ops, *heads, *dims, *batch, *q_len, *kv_len, *page, *window, *k, *v, *threads, *form, *output, *operand, *force, *deny, *peers, *peer_types, *rates, *device, *library;
    uint32_t n_rounds, parts;
    bool all_variants, warm;
} attn_options;

#define OPTION(field) offsetof(attn_options, field)
static const app_flag flags[] = {
    { "--op", "LIST", APP_TEXT, OPTION(ops), 0, 0, false, "operations: kv_write, attn_decode, attn_extend, attn_merge (attn_decode)" },
    { "--heads", "LIST", APP_TEXT, OPTION(heads), 0, 0, false, "query heads / KV heads (32/8)" },
    { "--dim", "LIST", APP_TEXT, OPTION(dims), 0, 0, false, "head dim, or K's / V's (128)" },
    { "--batch", "LIST", APP_TEXT, OPTION(batch), 0, 0, false, "sequences (1)" },
    { "--q-len", "LIST", APP_TEXT, OPTION(q_len), 0, 0, false, "query rows of a sequence, its last; tokens written, rows merged (1; attn_extend and kv_write: 512)" },
    { "--kv-len", "LIST", APP_TEXT, OPTION(kv_len), 0, 0, false, "keys of a sequence, its own rows included (8192; attn_extend: as --q-len)" },
    { "--page", "LIST", APP_TEXT, OPTION(page), 0, 0, false, "tokens of a page (16)" },
    { "--window", "LIST", APP_TEXT, OPTION(window), 0, 0, false, "tokens that a row sees, itself included; 0: all (0)" },
    { "-ctk, --cache-type-k", "LIST", APP_TEXT, OPTION(k), 0, 0, false, "formats of K, as of octavo run (e4m3)" },
    { "-ctv, --cache-type-v", "LIST", APP_TEXT, OPTION(v), 0, 0, false, "formats of V, each with each of K's (the same as K's)" },
    { "--operand", "f32|f16|bf16", APP_CHOICE, OPTION(operand), 0, 0, false, "of q and the result, and of what a write reads (bf16)" },
    { "--parts", "N", APP_COUNT, OPTION(parts), 1, 1024, false, "partial results that a merge merges (8)" },
    { "-t, --threads", "LIST", APP_TEXT, OPTION(threads), 0, 0, false, "threads (the machine's cores)" },
    { "-r, --repetitions", "N", APP_COUNT, OPTION(n_rounds), 1, BENCH_ROUNDS_MAX, false, "rounds in which all of a row's contenders take turns; medians count (7)" },
    { "--force", "NAMES", APP_TEXT, OPTION(force), 0, 0, false, "use these variants or fail: attn_decode.avx2,attn_extend.scalar; not of kv_write or attn_merge" },
    { "--deny", "NAMES", APP_TEXT, OPTION(deny), 0, 0, false, "never use these" },
    { "--all-variants", NULL, APP_SWITCH, OPTION(all_variants), 0, 0, false, "a row for every variant that can do it, the chosen one first" },
    { "--peers", "ggml", APP_CHOICE, OPTION(peers), 0, 0, false, "rows for ggml's CPU flash attention as well, in turns with ours" },
    { "--peer-types", "LIST", APP_TEXT, OPTION(peer_types), 0, 0, false, "its caches (f16,bf16,q8_0,q4_0)" },
    { "--warm", NULL, APP_SWITCH, OPTION(warm), 0, 0, false, "one layer over and over, which the caches may hold; else layers take turns, so that pages are cold" },
    APP_RATES_FLAG(OPTION(rates)),
    BENCH_DEVICE_FLAGS(OPTION(device), OPTION(library)),
    { "-o, --output-format", "md|csv|json|jsonl", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (md)" },
    { "--output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
};

typedef struct attn_bench {
    const app_command *command;
    attn_options options;
    bench_op ops[BENCH_OPS];
    uint32_t n_ops;
    bench_pairs heads, dims;
    bench_counts batch, q_len, kv_len, page, window, threads;
    bench_formats k, v;
    char peer_types[PEER_TYPES_MAX][16];
    uint32_t n_peer_types;
    bench_machine machine;
    app_progress progress;
    bench_problem problems[ROWS_MAX];
    uint32_t n_problems;
    bench_row *rows;
    uint32_t n_rows, room;
} attn_bench;

/* ---- what was asked ------------------------------------------------------------------------------------------------------ */

static int read_ops(attn_bench *b)
{
    const char *at = b->options.ops;
    for (;; at++) {
        const size_t length = strcspn(at, ",");
        const bench_op op = bench_op_from_name(at, length);
        if (op == BENCH_OPS || b->n_ops == BENCH_OPS) {
            return app_arguments_complain(b->command, "--op wants some of kv_write,attn_decode,attn_extend,attn_merge, not '%.60s'", b->options.ops);
        }
        b->ops[b->n_ops++] = op;
        at += length;
        if (*at == '\0') {
            return APP_OK;
        }
    }
}

static int read_peer_types(attn_bench *b)
{
    for (const char *at = b->options.peer_types;; at++) {
        const size_t length = strcspn(at, ",");
        if (b->n_peer_types == PEER_TYPES_MAX || length == 0 || length >= sizeof(b->peer_types[0])) {
            return app_arguments_complain(b->command, "--peer-types wants at most %d of ggml's types such as f16,q8_0, not '%.60s'", PEER_TYPES_MAX, b->options.peer_types);
        }
        memcpy(b->peer_types[b->n_peer_types++], at, length);
        at += length;
        if (*at == '\0') {
            return APP_OK;
        }
    }
}

static int read_lists(attn_bench *b)
{
    attn_options *const o = &b->options;
    const app_command *const c = b->command;
    char cores[16];
    (void)snprintf(cores, sizeof(cores), "%u", oct__threads_usable_cpus());
    int code = read_ops(b);
    for (uint32_t i = 0; i < b->n_ops && code == APP_OK && (o->force != NULL || o->deny != NULL || o->all_variants); i++) {
        if (b->ops[i] == BENCH_WRITE || b->ops[i] == BENCH_MERGE) {
            code = app_arguments_complain(c, "--force, --deny and --all-variants are for attn_decode and attn_extend: a program can't say which variant of %s runs", bench_op_name(b->ops[i]));
        }
    }
    const struct { const char *flag, *text; uint32_t min, max; bench_counts *list; } counts[] = {
        { "--batch", o->batch, 1, 1 << 16, &b->batch },
        { "--q-len", o->q_len != NULL ? o->q_len : "0", o->q_len != NULL, 1 << 20, &b->q_len },
        { "--kv-len", o->kv_len != NULL ? o->kv_len : "0", o->kv_len != NULL, 1 << 26, &b->kv_len },
        { "--page", o->page, 1, 1024, &b->page },
        { "--window", o->window, 0, 1 << 26, &b->window },
        { "-t", o->threads != NULL ? o->threads : cores, 1, 512, &b->threads },
    };
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]) && code == APP_OK; i++) {
        code = bench_read_counts(c, counts[i].flag, counts[i].text, counts[i].min, counts[i].max, counts[i].list);
    }
    code = code == APP_OK ? bench_read_pairs(c, "--heads", o->heads, 1, 1024, &b->heads) : code;
    code = code == APP_OK ? bench_read_pairs(c, "--dim", o->dims, 8, 512, &b->dims) : code;
    code = code == APP_OK ? bench_read_formats(c, "-ctk", o->k, &b->k) : code;
    code = code == APP_OK && o->v != NULL ? bench_read_formats(c, "-ctv", o->v, &b->v) : code;
    return code == APP_OK ? read_peer_types(b) : code;
}

static const uint32_t default_q_len[BENCH_OPS] = { 512, 1, 512, 1 };
enum { DEFAULT_KV_LEN = 8192 };

/* One combination after the other, the last list fastest; what has no meaning is left out. *why: of the last one that was. False: too many. */
static bool add_problem(attn_bench *b, bench_problem p, const char **why)
{
    p.q_len = p.q_len > 0 ? p.q_len : default_q_len[p.op];
    p.kv_len = p.kv_len > 0 ? p.kv_len : p.op == BENCH_EXTEND || p.q_len > DEFAULT_KV_LEN ? p.q_len : DEFAULT_KV_LEN;
    const char *const complaint = bench_problem_complaint(&p);
    if (complaint != NULL) {
        *why = complaint;
        return true;
    }
    if (b->n_problems == ROWS_MAX) {
        return false;
    }
    b->problems[b->n_problems++] = p;
    return true;
}

static bool add_shapes(attn_bench *b, const bench_problem *base, const char **why)
{
    bench_problem p = *base;
    bool room = true;
    for (uint32_t h = 0; h < b->heads.n; h++) {
        for (uint32_t d = 0; d < b->dims.n; d++) {
            for (uint32_t g = 0; g < b->page.n; g++) {
                for (uint32_t w = 0; w < b->window.n; w++) {
                    for (uint32_t s = 0; s < b->batch.n; s++) {
                        for (uint32_t q = 0; q < b->q_len.n; q++) {
                            for (uint32_t l = 0; l < b->kv_len.n && room; l++) {
                                p.heads_q = b->heads.first[h], p.heads_kv = b->heads.second[h], p.dim_k = b->dims.first[d], p.dim_v = b->dims.second[d];
                                p.page = b->page.item[g], p.window = b->window.item[w], p.batch = b->batch.item[s], p.q_len = b->q_len.item[q], p.kv_len = b->kv_len.item[l];
                                room = add_problem(b, p, why);
                            }
                        }
                    }
                }
            }
        }
    }
    return room;
}

static int list_problems(attn_bench *b)
{
    const uint32_t operand = oct_dtype_from_name(b->options.operand);
    const char *why = "nothing is listed";
    bool room = true;
    for (uint32_t o = 0; o < b->n_ops; o++) {
        for (uint32_t t = 0; t < b->threads.n; t++) {
            for (uint32_t k = 0; k < b->k.n; k++) {
                for (uint32_t v = 0; v < (b->options.v != NULL ? b->v.n : 1) && room; v++) {
                    const bench_problem base = { .op = b->ops[o], .k = b->k.item[k], .v = b->options.v != NULL ? b->v.item[v] : b->k.item[k], .operand = operand,
                                                 .parts = b->options.parts, .threads = b->threads.item[t] };
                    room = add_shapes(b, &base, &why);
                }
            }
        }
    }
    if (!room) {
        return app_arguments_complain(b->command, "the lists make more than %d combinations", ROWS_MAX);
    }
    return b->n_problems > 0 ? APP_OK : app_arguments_complain(b->command, "no combination of the lists can be run: %s", why);
}

/* ---- one problem ------------------------------------------------------------------------------------------------------------ */

typedef struct entry {
    bench_choice choice;        /* ours, or */
    octe_peer_attn *peer;
    const char *peer_type;
} entry;

static oct_status run_choice(void *what)
{
    return bench_choice_run(what);
}

static oct_status run_peer(void *what)
{
    return octe_peer_attn_run(what);
}

static bool is_attention(const bench_problem *p)
{
    return p->op == BENCH_DECODE || p->op == BENCH_EXTEND;
}

/* The choice, then every other variant that can, over the same pages. */
static oct_status open_choices(const attn_bench *b, const bench_problem *p, oct_context *context, bench_rig *rig, entry *entries, uint32_t *n, oct_error *error)
{
    const attn_options *const o = &b->options;
    oct_status status = bench_choice_make(rig, o->force, o->deny, &entries[*n].choice, error);
    *n += status == OCT_OK;
    for (uint32_t i = 0; status == OCT_OK && o->all_variants && is_attention(p) && oct_context_variant_name(context, i) != NULL && *n < BENCH_CONTENDERS_MAX - PEER_TYPES_MAX; i++) {
        const char *const name = oct_context_variant_name(context, i), *const op = bench_op_name(p->op);
        if (strncmp(name, op, strlen(op)) != 0 || strcmp(name, entries[0].choice.variant) == 0) {
            continue;
        }
        oct_error why = OCT_ERROR_INIT;
        const oct_status tried = bench_choice_make(rig, name, o->deny, &entries[*n].choice, &why);
        *n += tried == OCT_OK;
        /* A gate that fails, or a row that is denied, makes no row here. */
        status = tried == OCT_UNSUPPORTED || tried == OCT_INVALID_ARGUMENT || tried == OCT_OK ? OCT_OK : oct__error_set(error, tried, where, "%s", why.text);
    }
    return status;
}

static oct_status open_peers(const attn_bench *b, const bench_problem *p, entry *entries, uint32_t *n, oct_error *error)
{
    for (uint32_t i = 0; b->options.peers != NULL && is_attention(p) && i < b->n_peer_types; i++) {
        const octe_peer_attn_options options = {
            .type = b->peer_types[i], .heads_q = p->heads_q, .heads_kv = p->heads_kv, .dim_k = p->dim_k, .dim_v = p->dim_v, .batch = p->batch, .q_len = p->q_len,
            .kv_len = p->kv_len, .window_tokens = p->window, .n_threads = p->threads, .cold_bytes = b->options.warm ? 0 : bench_machine_cold_bytes(&b->machine),
        };
        oct_error why = OCT_ERROR_INIT;
        const oct_status status = octe_peer_attn_open(&options, &entries[*n].peer, &why);
        if (status == OCT_UNSUPPORTED) {
            (void)app_output_fail("ggml: %s; no row", why.text);
            continue;
        }
        if (status != OCT_OK) {
            return oct__error_set(error, status, where, "%s", why.text);
        }
        entries[(*n)++].peer_type = b->peer_types[i];
    }
    return OCT_OK;
}

static void fill_row(const attn_bench *b, const bench_problem *p, const entry *e, const bench_contender *c, bench_row *row)
{
    *row = (bench_row){ .device = b->machine.device != NULL ? b->machine.device_name : NULL, .problem = *p, .seconds_median = bench_median(c->samples, c->n_samples), .seconds_min = bench_least(c->samples, c->n_samples), .saturated = NAN };
    if (e->choice.rig != NULL) {
        uint64_t cut, all;
        (void)snprintf(row->variant, sizeof(row->variant), "%s", e->choice.variant);
        (void)octe_kv_format_name(&p->k, row->k_format, sizeof(row->k_format));
        (void)octe_kv_format_name(&p->v, row->v_format, sizeof(row->v_format));
        if (p->op == BENCH_MERGE) {
            (void)snprintf(row->k_format, sizeof(row->k_format), "f32");
            (void)snprintf(row->v_format, sizeof(row->v_format), "f32");
        }
        bench_rig_saturated(e->choice.rig, &cut, &all);
        row->saturated = all > 0 ? (double)cut / (double)all : NAN;
        row->bytes = bench_amount_of(p).bytes;
    } else {
        (void)snprintf(row->variant, sizeof(row->variant), "ggml");
        (void)snprintf(row->k_format, sizeof(row->k_format), "%s", e->peer_type);
        (void)snprintf(row->v_format, sizeof(row->v_format), "%s", e->peer_type);
        row->bytes = (double)octe_peer_attn_bytes(e->peer);
    }
    row->fraction_of_limit = bench_limit_seconds(p, &b->machine.limits) / row->seconds_median;
}

static oct_status run_problem(attn_bench *b, const bench_problem *p, oct_context *context, oct_error *error)
{
    static bench_contender contenders[BENCH_CONTENDERS_MAX];
    entry entries[BENCH_CONTENDERS_MAX] = { { .peer = NULL } };
    uint32_t n = 0;
    bench_rig *rig = NULL;
    oct_status status = bench_rig_create(p, context, b->machine.clock, b->options.warm ? 0 : bench_machine_cold_bytes(&b->machine), &rig, error);
    if (status == OCT_OK) {
        status = open_choices(b, p, context, rig, entries, &n, error);
    }
    if (status == OCT_OK) {
        status = open_peers(b, p, entries, &n, error);
    }
    if (status == OCT_OK) {
        for (uint32_t i = 0; i < n; i++) {
            contenders[i] = entries[i].peer == NULL ? (bench_contender){ .run = run_choice, .sample = b->machine.clock != NULL ? bench_choice_sample : NULL, .what = &entries[i].choice, .n_per_run = 1 }
                                                    : (bench_contender){ .run = run_peer, .what = entries[i].peer, .n_per_run = octe_peer_attn_operations(entries[i].peer) };
        }
        const bench_timing timing = { .n_rounds = b->options.n_rounds, .sample_seconds = sample_seconds, .cpu_clock = p->threads == 1 && b->machine.clock == NULL };
        status = bench_time(contenders, n, &timing);
        if (status != OCT_OK) {
            (void)oct__error_set(error, status, where, "%s", status == OCT_CANCELLED ? "stopped" : oct_status_message(status));
        }
    }
    if (status == OCT_OK && b->n_rows + n > b->room) {
        b->room = 2 * (b->n_rows + n);
        bench_row *const rows = realloc(b->rows, b->room * sizeof(*rows));
        status = rows != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the rows");
        b->rows = rows != NULL ? rows : b->rows;
    }
    for (uint32_t i = 0; status == OCT_OK && i < n; i++) {
        fill_row(b, p, &entries[i], &contenders[i], &b->rows[b->n_rows++]);
    }
    for (uint32_t i = 0; i < n; i++) {
        bench_choice_free(&entries[i].choice);
        octe_peer_attn_close(entries[i].peer);
    }
    bench_rig_destroy(rig);
    return status;
}

/* ---- all of them -------------------------------------------------------------------------------------------------------------- */

static int run_problems(attn_bench *b)
{
    const bool as_we_go = strcmp(b->options.form, "jsonl") == 0 && b->options.output == NULL;
    oct_context *context = NULL;
    uint32_t context_threads = 0;
    int code = APP_OK;
    app_progress_begin(&b->progress, b->n_problems);
    for (uint32_t i = 0; i < b->n_problems && code == APP_OK; i++) {
        const bench_problem *const p = &b->problems[i];
        if (p->threads != context_threads) {
            oct_context_destroy(context);
            context = bench_machine_context(&b->machine, p->threads);
            context_threads = p->threads;
        }
        oct_error error = OCT_ERROR_INIT;
        const uint32_t before = b->n_rows;
        app_progress_say(&b->progress, bench_op_name(p->op));
        const oct_status status = context != NULL ? run_problem(b, p, context, &error) : OCT_OUT_OF_MEMORY;
        if (status != OCT_OK) {
            app_progress_end(&b->progress);
            error.status = status;
            code = context != NULL ? app_output_error(&error) : APP_FAILED;
        }
        app_progress_add(&b->progress, 1);
        for (uint32_t r = before; as_we_go && code == APP_OK && r < b->n_rows; r++) {
            app_text line = { 0 };
            bench_row_line(&b->rows[r], b->machine.cpu, &line);
            code = app_output_report(&line, NULL);
            app_text_free(&line);
        }
    }
    app_progress_end(&b->progress);
    oct_context_destroy(context);
    if (code != APP_OK || as_we_go) {
        return code;
    }
    app_text text = { 0 };
    const bool on_gpu = b->machine.clock != NULL;
    bench_rows_write(b->rows, b->n_rows, on_gpu && strcmp(b->options.form, "md") == 0 ? b->machine.device_name : b->machine.cpu, b->options.form, &text);
    if (strcmp(b->options.form, "md") == 0 && on_gpu) {
        app_text_add(&text, "\n%s; medians of %u rounds between the GPU's own events; limits measured just before: memory read at %.0f GB/s, copied at %.0f GB/s\n",
                     b->options.warm ? "warm: one layer over and over" : "cold: caches flushed, then one graph over layers of their own", b->options.n_rounds,
                     b->machine.limits.read_memory_bytes[1] * 1e-9, b->machine.limits.copy_memory_bytes[1] * 1e-9);
    } else if (strcmp(b->options.form, "md") == 0) {
        app_text_add(&text, "\n%s; medians of %u rounds, on one thread of its CPU time; limits %s%s\n",
                     b->options.warm ? "warm: one layer over and over" : "cold: layers take turns, so that pages come from memory", b->options.n_rounds,
                     b->machine.measured_now ? "measured just before" : "of ", b->machine.measured_now ? "" : b->machine.limits.source);
    }
    code = app_output_report(&text, b->options.output);
    app_text_free(&text);
    return code;
}

static int run(const app_command *command, int argc, char **argv)
{
    static attn_bench b;   /* large */
    b = (attn_bench){ .command = command, .options = { .ops = "attn_decode", .heads = "32/8", .dims = "128", .batch = "1", .page = "16", .window = "0", .k = "e4m3", .form = "md",
                                                       .operand = "bf16", .peer_types = "f16,bf16,q8_0,q4_0", .n_rounds = 7, .parts = 8 } };
    int code;
    if (!app_arguments_parse(command, argc, argv, &b.options, &code)) {
        return code;
    }
    code = read_lists(&b);
    code = code == APP_OK ? list_problems(&b) : code;
    uint32_t most = 1;
    for (uint32_t i = 0; i < b.threads.n; i++) {
        most = b.threads.item[i] > most ? b.threads.item[i] : most;
    }
    const bool on_gpu = b.options.device != NULL && strcmp(b.options.device, "cpu") != 0;
    if (code == APP_OK && on_gpu && (b.options.threads != NULL || b.options.peers != NULL)) {
        code = app_arguments_complain(command, "%s is not for --device %s", b.options.threads != NULL ? "-t" : "--peers", b.options.device);
    }
    if (code == APP_OK) {
        if (!on_gpu) {
            app_thread_note(most);
        }
        code = bench_machine_open(b.options.rates, true, most, b.options.device, b.options.library, &b.machine);
    }
    if (code == APP_OK && b.machine.clock != NULL) {
        for (uint32_t i = 0; i < b.n_problems; i++) {
            b.problems[i].threads = b.machine.n_units;
        }
    }
    code = code == APP_OK ? run_problems(&b) : code;
    bench_machine_close(&b.machine);
    free(b.rows);
    return code;
}

_Static_assert(ROWS_MAX == 500, "the notes name it");

const app_command app_command_bench_attn = {
    .name = "bench attn",
    .summary = "single operations: bandwidth, arithmetic and the share of this machine's limits",
    .operands = "[flags]",
    .notes = "Every flag that takes a LIST multiplies the rows; more than 500 combinations that can be run are refused. GB/s are the stored bytes of K and V that attention "
             "needs at least, or what a write and a merge read and write; the limit is the read (copy) bandwidth or the highest f32 or bf16 rate, whichever takes longer. "
             "doc/BENCH.md says how it is measured.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
