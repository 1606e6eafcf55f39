/* operand.c: owns the reading of one line: operands, modifiers, and what an op's signature makes of them. Whatever is not known here is an error. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amdsim/arith.h"
#include "amdsim/machine.h"

static int complain(char *why, size_t why_bytes, const char *form, ...) __attribute__((format(printf, 3, 4)));
static int complain(char *why, size_t why_bytes, const char *form, ...)
{
    va_list args;
    va_start(args, form);
    vsnprintf(why, why_bytes, form, args);
    va_end(args);
    return -1;
}

/* ---- one operand ----------------------------------------------------------------------------------------------------------------- */

static const struct { const char *name; uint16_t reg; uint8_t count; } special[] = {
    { "vcc", SGPR_VCC, 2 }, { "vcc_lo", SGPR_VCC, 1 }, { "vcc_hi", SGPR_VCC + 1, 1 }, { "exec", SGPR_EXEC, 2 }, { "exec_lo", SGPR_EXEC, 1 },
    { "exec_hi", SGPR_EXEC + 1, 1 }, { "m0", SGPR_M0, 1 },
};

/* v7, s[4:7], a3, vcc; 0 on success. */
static int read_register(operand *o, const char *text)
{
    unsigned first, last;
    int used = 0;
    char file;
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++)
        if (strcmp(text, special[i].name) == 0) {
            o->kind = OPERAND_SGPR;
            o->reg = special[i].reg;
            o->count = special[i].count;
            return 0;
        }
    if (sscanf(text, "%c[%u:%u]%n", &file, &first, &last, &used) == 3 && text[used] == 0) {
    } else if (sscanf(text, "%c%u%n", &file, &first, &used) == 2 && text[used] == 0 && isdigit((unsigned char)text[1])) {
        last = first;
    } else {
        return -1;
    }
    const unsigned limit = file == 's' ? 102 : file == 'v' || file == 'a' ? 256 : 0;
    if (last < first || last >= limit || last - first >= 32)
        return -1;
    o->kind = file == 's' ? OPERAND_SGPR : OPERAND_VGPR;
    o->reg = (uint16_t)(first + (file == 'a' ? AGPR0 : 0));
    o->count = (uint8_t)(last - first + 1);
    return 0;
}

static int read_number(operand *o, const char *text)
{
    char *end;
    if (!isdigit((unsigned char)(text[0] == '-' ? text[1] : text[0])))
        return -1;
    o->kind = OPERAND_NUMBER;
    o->count = 1;
    o->is_float = strchr(text, '.') != NULL;
    if (o->is_float)
        o->real = strtod(text, &end);
    else if (text[0] == '-')
        o->integer = strtoll(text, &end, 0);
    else
        o->integer = (int64_t)strtoull(text, &end, 0);
    return *end == 0 ? 0 : -1;
}

/* text: one operand, trimmed. */
static int read_operand(operand *o, char *text, label *target)
{
    size_t n = strlen(text);
    memset(o, 0, sizeof *o);
    if (strcmp(text, "off") == 0) {
        o->kind = OPERAND_OFF;
        return 0;
    }
    if (text[0] == '.') {
        o->kind = OPERAND_LABEL;
        if (n >= sizeof target->name)
            return -1;
        memcpy(target->name, text, n + 1);
        return 0;
    }
    if (strncmp(text, "sext(", 5) == 0 && text[n - 1] == ')') {
        o->is_extended = 1;
        text[n - 1] = 0;
        return read_register(o, text + 5);
    }
    if (read_number(o, text) == 0)
        return 0;
    if (text[0] == '-') {
        o->is_negative = 1;
        text++;
        n--;
    }
    if (n > 2 && text[0] == '|' && text[n - 1] == '|') {
        o->is_absolute = 1;
        text[n - 1] = 0;
        text++;
    }
    return read_register(o, text);
}

/* ---- modifiers ------------------------------------------------------------------------------------------------------------------- */

/* [1,0,1] into bits. */
static int read_bits(const char *text, uint8_t *bits)
{
    *bits = 0;
    if (*text++ != '[')
        return -1;
    for (int i = 0; i < 4; i++) {
        if (*text != '0' && *text != '1')
            return -1;
        *bits |= (uint8_t)((*text++ - '0') << i);
        if (*text == ']')
            return text[1] == 0 ? 0 : -1;
        if (*text++ != ',')
            return -1;
    }
    return -1;
}

static int read_select(const char *text, uint8_t *select)
{
    static const char *const names[] = { "BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD" };
    for (uint8_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i]) == 0) {
            *select = i;
            return 0;
        }
    return -1;
}

static int read_dpp(instruction *in, const char *word, const char *value)
{
    static const struct { const char *name; uint8_t kind; } names[] = {
        { "row_shl", DPP_ROW_SHL }, { "row_shr", DPP_ROW_SHR }, { "row_ror", DPP_ROW_ROR }, { "wave_shl", DPP_WAVE_SHL }, { "wave_shr", DPP_WAVE_SHR },
        { "wave_rol", DPP_WAVE_ROL }, { "wave_ror", DPP_WAVE_ROR }, { "row_mirror", DPP_ROW_MIRROR }, { "row_half_mirror", DPP_ROW_HALF_MIRROR },
        { "row_bcast", DPP_ROW_BCAST }, { "row_newbcast", DPP_ROW_NEWBCAST },
    };
    unsigned a[4];
    if (strcmp(word, "quad_perm") == 0) {
        if (sscanf(value, "[%u,%u,%u,%u]", &a[0], &a[1], &a[2], &a[3]) != 4)
            return -1;
        in->dpp = DPP_QUAD_PERM;
        for (int i = 0; i < 4; i++)
            in->dpp_arg[i] = (uint8_t)(a[i] & 3);
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(word, names[i].name) == 0) {
            in->dpp = names[i].kind;
            in->dpp_arg[0] = (uint8_t)strtoul(value, NULL, 10);
            return 0;
        }
    return -1;
}

static int read_wait(instruction *in, const char *word)
{
    int n;
    if (sscanf(word, "vmcnt(%d)", &n) == 1)
        in->vmcnt = (int16_t)n;
    else if (sscanf(word, "lgkmcnt(%d)", &n) == 1)
        in->lgkmcnt = (int16_t)n;
    else if (sscanf(word, "expcnt(%d)", &n) == 1)
        in->expcnt = (int16_t)n;
    else
        return -1;
    return 0;
}

/* One modifier, without blanks; 0 when it is one. */
static int read_modifier(instruction *in, char *word)
{
    if (in->op->run == run_waitcnt)
        return read_wait(in, word);
    char *value = strchr(word, ':');
    if (value == NULL) {
        if (strcmp(word, "sc0") == 0 && in->op->run == run_global_atomic)
            in->returns = 1;
        else if (strcmp(word, "clamp") == 0)
            in->is_clamped = 1;
        else if (strcmp(word, "row_mirror") == 0 || strcmp(word, "row_half_mirror") == 0)
            return read_dpp(in, word, "");
        else
            return strcmp(word, "sc0") == 0 || strcmp(word, "sc1") == 0 || strcmp(word, "nt") == 0 ? 0 : -1;   /* caches */
        return 0;
    }
    *value++ = 0;
    const int64_t n = strtoll(value, NULL, 0);
    if (strcmp(word, "offset") == 0)
        in->offset = (int32_t)n;
    else if (strcmp(word, "offset0") == 0)
        in->offset0 = (int32_t)n;
    else if (strcmp(word, "offset1") == 0)
        in->offset1 = (int32_t)n;
    else if (strcmp(word, "op_sel") == 0)
        return read_bits(value, &in->op_sel);
    else if (strcmp(word, "op_sel_hi") == 0)
        return read_bits(value, &in->op_sel_hi);
    else if (strcmp(word, "neg_lo") == 0)
        return read_bits(value, &in->neg_lo);
    else if (strcmp(word, "neg_hi") == 0)
        return read_bits(value, &in->neg_hi);
    else if (strcmp(word, "bitop3") == 0)
        in->bitop3 = (uint8_t)n;
    else if (strcmp(word, "mul") == 0 && (n == 2 || n == 4))
        in->omod = (int8_t)(n / 2);
    else if (strcmp(word, "div") == 0 && n == 2)
        in->omod = -1;
    else if (strcmp(word, "dst_sel") == 0)
        return read_select(value, &in->dst_sel);
    else if (strcmp(word, "src0_sel") == 0)
        return read_select(value, &in->src_sel[0]);
    else if (strcmp(word, "src1_sel") == 0)
        return read_select(value, &in->src_sel[1]);
    else if (strcmp(word, "dst_unused") == 0)
        in->dst_unused = strcmp(value, "UNUSED_PRESERVE") == 0 ? UNUSED_PRESERVE : strcmp(value, "UNUSED_SEXT") == 0 ? UNUSED_SEXT : UNUSED_PAD;
    else if (strcmp(word, "row_mask") == 0)
        in->row_mask = (uint8_t)n;
    else if (strcmp(word, "bank_mask") == 0)
        in->bank_mask = (uint8_t)n;
    else if (strcmp(word, "bound_ctrl") == 0)
        in->is_bound_zero = 1;
    else
        return read_dpp(in, word, value);
    return 0;
}

/* ---- the line -------------------------------------------------------------------------------------------------------------------- */

int instruction_read(instruction *in, const char *text, size_t length, label *target, char *why, size_t why_bytes)
{
    char line[512];
    if (length >= sizeof line)
        return complain(why, why_bytes, "a line of %zu characters", length);
    memcpy(line, text, length);
    line[length] = 0;
    in->vmcnt = in->lgkmcnt = in->expcnt = -1;
    in->op_sel_hi = 0xFF;
    in->row_mask = in->bank_mask = 0xF;
    in->dst_sel = in->src_sel[0] = in->src_sel[1] = SELECT_DWORD;
    target->name[0] = 0;
    /* Operands are parted by commas outside of brackets; after the last one stand modifiers, parted by blanks. */
    char *at = line;
    int expects_operand = in->op->run != run_waitcnt && in->op->signature[1] != 0;
    while (*at != 0) {
        while (isspace((unsigned char)*at))
            at++;
        if (*at == 0)
            break;
        char *end = at;
        int depth = 0;
        while (*end != 0 && (depth > 0 || (*end != ',' && !isspace((unsigned char)*end)))) {
            depth += (*end == '[' || *end == '(') - (*end == ']' || *end == ')');
            end++;
        }
        char *next = end;
        while (isspace((unsigned char)*next))
            next++;
        const int has_comma = *next == ',';
        next += has_comma;
        *end = 0;
        if (expects_operand) {
            if (in->n_operands == OPERANDS_MAX || read_operand(&in->operands[in->n_operands++], at, target) != 0)
                return complain(why, why_bytes, "unknown operand '%s'", at);
            expects_operand = has_comma;
        } else {
            char word[64];
            snprintf(word, sizeof word, "%.60s", at);
            if (read_modifier(in, at) != 0)
                return complain(why, why_bytes, "unknown modifier '%s'", word);
        }
        at = next;
    }
    return instruction_bind(in, why, why_bytes);
}

/* ---- types ------------------------------------------------------------------------------------------------------------------------ */

/* A 32-bit literal of a 64-bit operand is zero-extended, sign-extended where the type is signed, and the upper half of an f64. */
uint64_t number_bits(const operand *o, char type)
{
    if (o->is_float) {
        switch (type) {
        case 'q': case 'i': case 'd':
            return B64(o->real);
        case 'h': case 'k':
            return f16_of_f32(B((float)o->real));
        default:
            return B((float)o->real);
        }
    }
    const int is_inline = o->integer >= -16 && o->integer <= 64;
    switch (type) {
    case 'q':
        return is_inline ? (uint64_t)o->integer : (uint64_t)o->integer & UINT32_MAX;
    case 'i':
        return is_inline ? (uint64_t)o->integer : (uint64_t)(int64_t)(int32_t)o->integer;
    case 'd':
        return is_inline ? (uint64_t)o->integer : (uint64_t)o->integer << 32;
    case 'n':
        return (uint64_t)(int64_t)(int16_t)o->integer & UINT32_MAX;
    case 'u':
        return (uint16_t)o->integer;
    default:
        return (uint64_t)o->integer & UINT32_MAX;
    }
}

/* How many registers an operand of the type takes; 0: any number. */
static unsigned registers_of(char type)
{
    return strchr("xoLA", type) != NULL ? 0 : strchr("qQidmVp", type) != NULL ? 2 : 1;
}

static int check_operand(const operand *o, char type)
{
    const int is_register = o->kind == OPERAND_VGPR || o->kind == OPERAND_SGPR;
    if (is_register && registers_of(type) != 0 && o->count != registers_of(type))
        return -1;
    if ((type == 'm' || type == 's') && o->kind != OPERAND_SGPR)
        return -1;
    return (type == 'n' || type == 'u') && o->kind != OPERAND_NUMBER ? -1 : (type == 'L') == (o->kind == OPERAND_LABEL) ? 0 : -1;
}

int instruction_bind(instruction *in, char *why, size_t why_bytes)
{
    const char *s = in->op->signature;
    int at = 0;
    for (; *s != '='; s++) {
        if (*s == 'A' && !in->returns)
            continue;
        if (at == in->n_operands || check_operand(&in->operands[at], *s) != 0)
            return complain(why, why_bytes, "operand %d is not what %s writes", at + 1, in->op->name);
        in->target_types[in->n_targets] = *s;
        in->targets[in->n_targets++] = in->operands[at++];
    }
    for (s++; *s != 0; s++) {
        operand *o = &in->sources[in->n_sources];
        if (*s == 'S' || *s == 's') {
            in->reads_scc |= *s == 'S';
            in->writes_scc |= *s == 's';
            continue;
        }
        if (*s == 'V') {
            *o = (operand){ .kind = OPERAND_SGPR, .count = 2, .reg = SGPR_VCC };
        } else if (*s == '+') {
            *o = in->targets[0];
        } else if (at == in->n_operands || check_operand(&in->operands[at], *s) != 0) {
            return complain(why, why_bytes, "operand %d is not what %s reads", at + 1, in->op->name);
        } else {
            *o = in->operands[at++];
        }
        in->source_types[in->n_sources++] = *s == '+' ? in->target_types[0] : *s == 'V' ? 'm' : *s;
        if (o->kind == OPERAND_NUMBER)
            o->bits = number_bits(o, *s == '+' ? 'w' : *s);
    }
    if (at != in->n_operands)
        return complain(why, why_bytes, "%s has %d operands too many", in->op->name, in->n_operands - at);
    return 0;
}
