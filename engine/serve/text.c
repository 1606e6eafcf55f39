/* text.c: see text.h. */
#include "engine/serve/text.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"

bool octe__answer_text_init(octe__answer_text *t, const octe_answer_spec *spec)
{
    *t = (octe__answer_text){.n_logprobs = spec->n_logprobs > OCTE_LOGPROBS_MAX ? OCTE_LOGPROBS_MAX : spec->n_logprobs};
    for (uint32_t i = 0; i < spec->n_stop && i < OCTE_STOPS_MAX; i++) {
        if (spec->stop[i][0] == '\0') {
            continue;   /* would end every answer before it begins */
        }
        t->stop[t->n_stop] = strdup(spec->stop[i]);
        if (t->stop[t->n_stop] == NULL) {
            return false;
        }
        t->n_stop++;
    }
    return true;
}

void octe__answer_text_free(octe__answer_text *t)
{
    for (uint32_t i = 0; i < OCTE_STOPS_MAX; i++) {
        free(t->stop[i]);
    }
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        free(t->tokens[i].top);
    }
    free(t->tokens);
    free(t->text);
    *t = (octe__answer_text){0};
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------- */

/* In lanes, which compilers make vectors of: 64 answers have 3 to 17 million logits a step. -INFINITY: none is finite. */
static float largest(const float *logits, uint32_t n)
{
    enum { LANES = 32 };
    float lane[LANES], most = -INFINITY;
    for (int k = 0; k < LANES; k++) {
        lane[k] = -INFINITY;
    }
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            const float x = logits[i + (uint32_t)k] <= FLT_MAX ? logits[i + (uint32_t)k] : -INFINITY;
            lane[k] = x > lane[k] ? x : lane[k];
        }
    }
    for (; i < n; i++) {
        lane[0] = logits[i] <= FLT_MAX && logits[i] > lane[0] ? logits[i] : lane[0];
    }
    for (int k = 0; k < LANES; k++) {
        most = lane[k] > most ? lane[k] : most;
    }
    return most;
}

oct_status octe__likeliest(const float *logits, uint32_t n, const octe_vocab *never_ending, int32_t *token, oct_error *error)
{
    const float most = largest(logits, n);
    int32_t best = 0;
    while ((uint32_t)best < n && !(logits[best] == most)) {
        best++;
    }
    best = isfinite(most) ? best : -1;
    if (best >= 0 && never_ending != NULL && octe_vocab_is_eog(never_ending, best)) {
        best = -1;
        for (uint32_t i = 0; i < n; i++) {
            if (isfinite(logits[i]) && (best < 0 || logits[i] > logits[best]) && !octe_vocab_is_eog(never_ending, (int32_t)i)) {
                best = (int32_t)i;
            }
        }
    }
    *token = best;
    return best >= 0 ? OCT_OK : octe__report(error, OCT_BAD_DATA, "octe_service_ask", NULL, "none of %u logits is finite", n);
}

static double log_of_sum(const float *logits, uint32_t n)
{
    double most = -INFINITY, sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        most = isfinite(logits[i]) && logits[i] > most ? logits[i] : most;
    }
    for (uint32_t i = 0; i < n; i++) {
        sum += isfinite(logits[i]) ? exp(logits[i] - most) : 0.0;
    }
    return most + log(sum);
}

/* The n likeliest by insertion: n is small, and a token that is none of them costs one comparison. */
static void find_top(const float *logits, uint32_t n_logits, double all, octe_logprob *top, uint32_t n)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < n_logits; i++) {
        if (!isfinite(logits[i]) || (have == n && logits[i] <= top[n - 1].logprob)) {
            continue;
        }
        uint32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < logits[i]; at--) {
            top[at] = top[at - 1];
        }
        top[at] = (octe_logprob){(int32_t)i, logits[i]};
    }
    for (uint32_t i = 0; i < n; i++) {
        top[i] = i < have ? (octe_logprob){top[i].token, (float)(top[i].logprob - all)} : (octe_logprob){-1, 0.0f};
    }
}

static bool add_logprobs(const octe__answer_text *t, octe_answer_token *record, const float *logits, uint32_t n_logits)
{
    if (t->n_logprobs < 0) {
        return true;
    }
    const double all = log_of_sum(logits, n_logits);
    record->logprob = (float)(logits[record->token] - all);
    if (t->n_logprobs == 0) {
        return true;
    }
    record->top = malloc((size_t)t->n_logprobs * sizeof(*record->top));
    if (record->top != NULL) {
        find_top(logits, n_logits, all, record->top, (uint32_t)t->n_logprobs);
    }
    return record->top != NULL;
}

/* ---- text ------------------------------------------------------------------------------------------------------------ */

static bool append(octe__answer_text *t, const char *piece, size_t n)
{
    if (t->n + n + 1 > t->room) {
        const size_t room = (t->n + n + 1) * 2;
        char *larger = realloc(t->text, room);
        if (larger == NULL) {
            return false;
        }
        t->text = larger;
        t->room = room;
    }
    memcpy(t->text + t->n, piece, n);
    t->n += n;
    t->text[t->n] = '\0';
    return true;
}

/* U+0000 goes out as U+FFFD: bodies with it are refused, and an answer must be good for the next turn of its talk. */
static bool append_piece(octe__answer_text *t, const char *piece, size_t n)
{
    bool fine;
    do {
        const size_t m = strnlen(piece, n), n_zero = m < n ? 1 : 0;
        fine = append(t, piece, m) && append(t, "\xEF\xBF\xBD", 3 * n_zero);
        piece += m + n_zero;
        n -= m + n_zero;
    } while (fine && n > 0);
    return fine;
}

/* Where the first stop text begins that ends behind `from`; SIZE_MAX: none is there. */
static size_t find_stop(const octe__answer_text *t, size_t from)
{
    size_t first = SIZE_MAX;
    for (uint32_t i = 0; i < t->n_stop; i++) {
        const size_t n = strlen(t->stop[i]), begin = from >= n ? from - n + 1 : 0;
        const char *at = begin < t->n ? strstr(t->text + begin, t->stop[i]) : NULL;
        if (at != NULL && (size_t)(at - t->text) < first) {
            first = (size_t)(at - t->text);
        }
    }
    return first;
}

/* The longest end of the text that may be a stop text's beginning. */
static size_t might_stop(const octe__answer_text *t)
{
    size_t most = 0;
    for (uint32_t i = 0; i < t->n_stop; i++) {
        const size_t n = strlen(t->stop[i]);
        for (size_t k = n - 1 < t->n ? n - 1 : t->n; k > most; k--) {
            if (memcmp(t->text + t->n - k, t->stop[i], k) == 0) {
                most = k;
                break;
            }
        }
    }
    return most;
}

static void cut(octe__answer_text *t, size_t n)
{
    t->n = n;
    t->text[n] = '\0';
    t->stream = (octe_stream){0};
    while (t->n_tokens > 0 && t->tokens[t->n_tokens - 1].begin >= n) {
        free(t->tokens[--t->n_tokens].top);
    }
    if (t->n_tokens > 0 && t->tokens[t->n_tokens - 1].end > n) {
        t->tokens[t->n_tokens - 1].end = n;
    }
}

oct_status octe__answer_text_add(octe__answer_text *t, const octe_vocab *vocab, int32_t token, const float *logits, uint32_t n_logits, bool *stopped, oct_error *error)
{
    static const char where[] = "octe_service_ask";
    *stopped = false;
    if (t->n_tokens == t->tokens_room) {
        const uint32_t room = t->tokens_room * 2 + 32;
        octe_answer_token *larger = realloc(t->tokens, room * sizeof(*larger));
        if (larger == NULL) {
            return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for %u tokens of an answer", room);
        }
        t->tokens = larger;
        t->tokens_room = room;
    }
    octe_answer_token *record = &t->tokens[t->n_tokens];
    *record = (octe_answer_token){.token = token, .begin = t->n, .begin_characters = t->n_characters};
    char *piece = NULL;
    size_t n_piece = 0;
    oct_status status = octe_stream_add(&t->stream, vocab, token, false, &piece, &n_piece, error);
    if (status == OCT_OK && (!append_piece(t, piece, n_piece) || !add_logprobs(t, record, logits, n_logits))) {
        status = octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for an answer of %zu bytes", t->n);
    }
    free(piece);
    if (status != OCT_OK) {
        return status;
    }
    record->end = t->n;
    for (size_t i = record->begin; i < t->n; i++) {
        t->n_characters += ((unsigned char)t->text[i] & 0xC0) != 0x80;
    }
    t->n_tokens++;
    const size_t at = find_stop(t, record->begin);
    if (at != SIZE_MAX) {
        cut(t, at);
        *stopped = true;
    }
    t->n_given = *stopped ? t->n : t->n - might_stop(t);
    return OCT_OK;
}

void octe__answer_text_finish(octe__answer_text *t)
{
    char rest[4];
    octe_stream_finish(&t->stream, rest);
    t->stream = (octe_stream){0};
    if (append(t, rest, strlen(rest)) && t->n_tokens > 0) {
        t->tokens[t->n_tokens - 1].end = t->n;
    }
    t->n_given = t->n;
    t->finished = true;
}

void octe__answer_text_look(const octe__answer_text *t, octe_answer_view *view)
{
    view->text = t->text != NULL ? t->text : "";
    view->n_text = t->n_given;
    view->tokens = t->tokens;
    view->n_tokens = t->n_tokens;
    /* One without text yet (the first bytes of a character) would go with a stop text that begins where it stands. */
    while (view->n_tokens > 0 && (t->tokens[view->n_tokens - 1].end > t->n_given || (!t->finished && t->tokens[view->n_tokens - 1].begin >= t->n_given))) {
        view->n_tokens--;
    }
}
