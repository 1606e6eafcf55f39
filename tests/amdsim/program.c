/* program.c: owns the reading of an assembly text: its kernels, their labels and code, and what the kernel descriptors say. Threads: one. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amdsim/machine.h"

typedef struct span { const char *at; size_t n; } span;

static span trim(span s)
{
    while (s.n > 0 && isspace((unsigned char)s.at[0]))
        s.at++, s.n--;
    while (s.n > 0 && isspace((unsigned char)s.at[s.n - 1]))
        s.n--;
    return s;
}

/* Without its comment; texts in quotes hold neither sign. */
static span strip(span s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.at[i] == ';' || (s.at[i] == '/' && i + 1 < s.n && s.at[i + 1] == '/')) {
            s.n = i;
            break;
        }
    return trim(s);
}

static span first_word(span s)
{
    size_t n = 0;
    while (n < s.n && !isspace((unsigned char)s.at[n]))
        n++;
    return (span){ s.at, n };
}

static int is_word(span s, const char *word) { return s.n == strlen(word) && memcmp(s.at, word, s.n) == 0; }
static int begins(span s, const char *word) { return s.n >= strlen(word) && memcmp(s.at, word, strlen(word)) == 0; }

/* Room for one more, or NULL. */
static void *grow(void *all, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return all;
    const size_t more = *room * 2 + 64;
    void *grown = realloc(all, more * size);
    if (grown != NULL)
        *room = more;
    return grown;
}

static struct sim_kernel *find_kernel(const sim_program *p, span name)
{
    for (size_t i = 0; i < p->n_kernels; i++)
        if (is_word(name, p->kernels[i]->name))
            return p->kernels[i];
    return NULL;
}

static void blame(struct sim_kernel *k, int line, span text, const char *why)
{
    if (k->error[0] == 0)
        snprintf(k->error, sizeof k->error, "%s: %s:%d: %s: %.*s", k->name, k->program->name, line, why, (int)(text.n < 200 ? text.n : 200), text.at);
}

/* ---- lines ------------------------------------------------------------------------------------------------------------------------ */

static int add_label(struct sim_kernel *k, span name)
{
    label *grown = grow(k->labels, k->n_labels, &k->labels_room, sizeof *grown);
    if (grown == NULL || name.n >= sizeof grown->name)
        return -1;
    k->labels = grown;
    label *l = &k->labels[k->n_labels++];
    memset(l, 0, sizeof *l);
    memcpy(l->name, name.at, name.n);
    l->at = (int32_t)k->n_code;
    return 0;
}

/* Where branches go is known once all labels of the kernel are. */
typedef struct pending { label name; size_t at; } pending;
typedef struct reader { sim_program *p; struct sim_kernel *kernel, *described; pending *pending; size_t n_pending, pending_room; int is_elsewhere; } reader;   /* is_elsewhere: not in .text */

static int add_instruction(reader *r, span text, int line)
{
    struct sim_kernel *k = r->kernel;
    const span name = first_word(text);
    instruction *grown = grow(k->code, k->n_code, &k->code_room, sizeof *grown);
    char why[200];
    label target;
    size_t n = name.n;
    if (grown == NULL)
        return -1;
    k->code = grown;
    instruction *in = &k->code[k->n_code++];
    memset(in, 0, sizeof *in);
    in->line = line;
    static const char *const suffixes[] = { "_e32", "_e64", "_sdwa", "_dpp" };
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        const size_t m = strlen(suffixes[i]);
        if (n > m && memcmp(name.at + n - m, suffixes[i], m) == 0) {
            n -= m;
            in->is_sdwa = i == 2;
            break;
        }
    }
    in->op = op_find(name.at, n);
    if (in->op == NULL) {
        blame(k, line, text, "unknown instruction");
        return 0;
    }
    if (instruction_read(in, text.at + name.n, text.n - name.n, &target, why, sizeof why) != 0) {
        blame(k, line, text, why);
        return 0;
    }
    for (int i = 0; i < in->n_operands; i++) {
        const operand *o = &in->operands[i];
        if (o->kind == OPERAND_VGPR && o->reg % AGPR0 + o->count > 256)
            blame(k, line, text, "a register beyond 255");
    }
    if (target.name[0] != 0) {
        pending *more = grow(r->pending, r->n_pending, &r->pending_room, sizeof *more);
        if (more == NULL)
            return -1;
        r->pending = more;
        r->pending[r->n_pending++] = (pending){ target, k->n_code - 1 };
    }
    return 0;
}

/* Branches of the kernel that ends here. */
static void bind_branches(reader *r)
{
    struct sim_kernel *k = r->kernel;
    for (size_t i = 0; i < r->n_pending && k != NULL; i++) {
        instruction *in = &k->code[r->pending[i].at];
        in->branch_to = -1;
        for (size_t j = 0; j < k->n_labels && in->branch_to < 0; j++)
            if (strcmp(k->labels[j].name, r->pending[i].name.name) == 0)
                in->branch_to = k->labels[j].at;
        if (in->branch_to < 0 || (size_t)in->branch_to >= k->n_code)
            blame(k, in->line, (span){ r->pending[i].name.name, strlen(r->pending[i].name.name) }, "no such label");
    }
    r->n_pending = 0;
    r->kernel = NULL;
}

static int begin_kernel(reader *r, span name)
{
    sim_program *p = r->p;
    struct sim_kernel **grown = grow(p->kernels, p->n_kernels, &p->kernels_room, sizeof *grown);
    struct sim_kernel *k = calloc(1, sizeof *k);
    if (grown != NULL)
        p->kernels = grown;
    if (grown == NULL || k == NULL || name.n >= sizeof k->name) {
        free(k);
        return -1;
    }
    memcpy(k->name, name.at, name.n);
    k->program = p;
    p->kernels[p->n_kernels++] = r->kernel = k;
    return 0;
}

/* ---- descriptors -------------------------------------------------------------------------------------------------------------------- */

/* What a kernel may ask of the machine; what is neither taken nor ignored must be as written here. */
static void describe(reader *r, span name, uint32_t value, int line, span text)
{
    struct sim_kernel *k = r->described;
    const struct { const char *name; uint32_t *to; } words[] = {
        { ".amdhsa_group_segment_fixed_size", &k->lds_bytes }, { ".amdhsa_kernarg_size", &k->kernarg_bytes }, { ".amdhsa_user_sgpr_count", &k->user_sgprs }, { ".amdhsa_next_free_vgpr", &k->n_vgprs },
        { ".amdhsa_next_free_sgpr", &k->n_sgprs }, { ".amdhsa_accum_offset", &k->accum_offset },
    };
    const struct { const char *name; uint8_t *to; } flags[] = {
        { ".amdhsa_user_sgpr_dispatch_ptr", &k->has_dispatch_ptr }, { ".amdhsa_user_sgpr_queue_ptr", &k->has_queue_ptr },
        { ".amdhsa_user_sgpr_kernarg_segment_ptr", &k->has_kernarg_ptr }, { ".amdhsa_user_sgpr_dispatch_id", &k->has_dispatch_id },
        { ".amdhsa_user_sgpr_private_segment_size", &k->has_private_size }, { ".amdhsa_system_sgpr_workgroup_id_x", &k->has_block_x },
        { ".amdhsa_system_sgpr_workgroup_id_y", &k->has_block_y }, { ".amdhsa_system_sgpr_workgroup_id_z", &k->has_block_z },
    };
    static const struct { const char *name; uint32_t value; } fixed[] = {
        { ".amdhsa_user_sgpr_kernarg_preload_length", 0 }, { ".amdhsa_user_sgpr_kernarg_preload_offset", 0 }, { ".amdhsa_uses_dynamic_stack", 0 },
        { ".amdhsa_system_sgpr_workgroup_info", 0 }, { ".amdhsa_system_vgpr_workitem_id", 0 },
        { ".amdhsa_float_round_mode_32", 0 }, { ".amdhsa_float_round_mode_16_64", 0 }, { ".amdhsa_float_denorm_mode_32", 3 },
        { ".amdhsa_float_denorm_mode_16_64", 3 }, { ".amdhsa_dx10_clamp", 1 }, { ".amdhsa_ieee_mode", 1 }, { ".amdhsa_fp16_overflow", 0 },
        { ".amdhsa_tg_split", 0 },
    };
    /* A frame may be left over although nothing is in it: the instructions that reach scratch are not known here, and so refused. */
    static const char *const ignored[] = { ".amdhsa_reserve_", ".amdhsa_exception_", ".amdhsa_private_segment_fixed_size", ".amdhsa_enable_private_segment" };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (is_word(name, words[i].name)) {
            *words[i].to = value;
            return;
        }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (is_word(name, flags[i].name)) {
            *flags[i].to = value != 0;
            return;
        }
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        if (begins(name, ignored[i]))
            return;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        if (is_word(name, fixed[i].name) && value == fixed[i].value)
            return;
    blame(k, line, text, "a kernel descriptor that the simulator does not model");
}

static int read_line(reader *r, span line, int number)
{
    const span text = strip(line), word = first_word(text);
    if (text.n == 0)
        return 0;
    if (is_word(word, ".text"))
        r->is_elsewhere = 0;
    else if (is_word(word, ".section") || is_word(word, ".amdgpu_metadata"))
        r->is_elsewhere = 1;
    if (begins(text, ".amdgcn_target")) {
        const char *dash = NULL;
        for (size_t i = 0; i + 1 < text.n; i++)
            if (text.at[i] == '-' && text.at[i + 1] == '-')
                dash = text.at + i + 2;
        for (size_t i = 0; dash != NULL && i + 1 < sizeof r->p->arch && isalnum((unsigned char)dash[i]); i++)
            r->p->arch[i] = dash[i];
        return 0;
    }
    if (is_word(word, ".amdhsa_kernel")) {
        const span name = trim((span){ text.at + word.n, text.n - word.n });
        bind_branches(r);
        r->described = find_kernel(r->p, name);
        if (r->described != NULL)
            r->described->is_described = 1;
        return 0;
    }
    if (is_word(word, ".end_amdhsa_kernel")) {
        r->described = NULL;
        return 0;
    }
    if (begins(text, ".amdhsa_") && r->described != NULL) {
        describe(r, word, (uint32_t)strtoul(text.at + word.n, NULL, 0), number, text);
        return 0;
    }
    if (r->is_elsewhere)
        return 0;
    if (text.at[text.n - 1] == ':' && word.n == text.n) {
        const span name = { text.at, text.n - 1 };
        if (text.at[0] != '.')
            return bind_branches(r), begin_kernel(r, name);
        return r->kernel != NULL ? add_label(r->kernel, name) : 0;
    }
    if (text.at[0] == '.' || r->kernel == NULL)
        return 0;
    return add_instruction(r, text, number);
}

/* ---- doors -------------------------------------------------------------------------------------------------------------------------- */

static int keep_lines(sim_program *p)
{
    for (const char *at = p->text; *at != 0; at++)
        p->n_lines += *at == '\n';
    p->lines = calloc(p->n_lines + 2, sizeof *p->lines);
    size_t n = 0;
    for (const char *at = p->text; p->lines != NULL && *at != 0; n++) {
        p->lines[n] = at;
        const char *end = strchr(at, '\n');
        at = end == NULL ? at + strlen(at) : end + 1;
    }
    p->n_lines = n;
    return p->lines == NULL ? -1 : 0;
}

sim_program *sim_parse(const char *text, const char *name, char *why, size_t why_bytes)
{
    sim_program *p = calloc(1, sizeof *p);
    reader r = { .p = p };
    int bad = p == NULL;
    if (!bad) {
        p->name = name;
        p->text = malloc(strlen(text) + 1);
        bad = p->text == NULL;
        if (!bad)
            memcpy(p->text, text, strlen(text) + 1);
        bad = bad || keep_lines(p) != 0;
    }
    for (size_t i = 0; !bad && i < p->n_lines; i++) {
        const char *end = strchr(p->lines[i], '\n');
        bad = read_line(&r, (span){ p->lines[i], end == NULL ? strlen(p->lines[i]) : (size_t)(end - p->lines[i]) }, (int)i + 1) != 0;
    }
    if (!bad)
        bind_branches(&r);
    free(r.pending);
    why[0] = 0;
    if (bad)
        snprintf(why, why_bytes, "no memory, or a name that is too long");
    else if (strcmp(p->arch, "gfx942") != 0 && strcmp(p->arch, "gfx950") != 0)
        snprintf(why, why_bytes, "%s: neither gfx942 nor gfx950, but '%s'", name, p->arch);
    for (size_t i = 0; !bad && i < p->n_kernels; i++) {
        struct sim_kernel *k = p->kernels[i];
        if (!k->is_described)
            blame(k, 0, (span){ k->name, strlen(k->name) }, "no kernel descriptor");
    }
    if (why[0] != 0) {
        sim_drop(p);
        return NULL;
    }
    return p;
}

sim_program *sim_load(const char *path, char *why, size_t why_bytes)
{
    FILE *f = fopen(path, "rb");
    sim_program *p = NULL;
    char *text = NULL;
    long size = 0;
    snprintf(why, why_bytes, "%s cannot be read", path);
    if (f == NULL)
        return NULL;
    if (fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) > 0 && fseek(f, 0, SEEK_SET) == 0 && (text = calloc(1, (size_t)size + 1)) != NULL &&
        fread(text, 1, (size_t)size, f) == (size_t)size) {
        const char *slash = strrchr(path, '/'), *base = slash == NULL ? path : slash + 1;
        char *name = malloc(strlen(base) + 1);
        if (name != NULL) {
            memcpy(name, base, strlen(base) + 1);
            p = sim_parse(text, name, why, why_bytes);
        }
        if (p != NULL)
            p->own_name = name;
        else
            free(name);
    }
    free(text);
    fclose(f);
    return p;
}

void sim_drop(sim_program *program)
{
    if (program == NULL)
        return;
    for (size_t i = 0; i < program->n_kernels; i++) {
        free(program->kernels[i]->code);
        free(program->kernels[i]->labels);
        free(program->kernels[i]);
    }
    free(program->kernels);
    free(program->lines);
    free(program->text);
    free(program->own_name);
    free(program);
}

const sim_kernel *sim_find(const sim_program *program, const char *name) { return find_kernel(program, (span){ name, strlen(name) }); }
const sim_kernel *sim_nth(const sim_program *program, size_t index) { return index < program->n_kernels ? program->kernels[index] : NULL; }
const char *sim_kernel_name(const sim_kernel *kernel) { return kernel->name; }
const char *sim_kernel_error(const sim_kernel *kernel) { return kernel->error; }
size_t sim_kernel_size(const sim_kernel *kernel) { return kernel->n_code; }

void sim_watch(const sim_program *program, const sim_kernel *kernel, unsigned char *reached)
{
    for (size_t i = 0; i < program->n_kernels; i++)
        if (program->kernels[i] == kernel)
            program->kernels[i]->reached = reached;
}

int sim_plant(const sim_program *program, const sim_kernel *kernel, size_t index, int on)
{
    for (size_t i = 0; i < program->n_kernels; i++) {
        struct sim_kernel *k = program->kernels[i];
        if (k == kernel && index < k->n_code && k->code[index].op != NULL && k->code[index].op->run == run_waitcnt) {
            k->code[index].is_planted = on != 0;
            return 0;
        }
    }
    return -1;
}
