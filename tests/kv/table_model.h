/* table_model.h: a page table's behaviour said the slow way, with a pool's contents: every token that a sequence holds is a
 * stamp, stored where the table said. What the real table gives is checked against it after each step, in full. */
#ifndef OCT_TESTS_KV_TABLE_MODEL_H
#define OCT_TESTS_KV_TABLE_MODEL_H

#include "kv_test.h"

enum { MODEL_SEQUENCES = 16, MODEL_PAGES_MAX = 96, MODEL_LENGTH_MAX = 4096 };

typedef struct model_sequence {
    uint32_t length;
    uint64_t stamps[MODEL_LENGTH_MAX];
    bool gone[MODEL_LENGTH_MAX];       /* by page index: given back */
    int32_t pages[MODEL_LENGTH_MAX];   /* as last seen */
} model_sequence;

typedef struct model {
    const oct_kv_table *table;
    uint32_t page_size, window_tokens, n_pages;
    int64_t n_copied;
    uint32_t refs[MODEL_PAGES_MAX];
    uint64_t content[MODEL_PAGES_MAX * 64];
    model_sequence s[MODEL_SEQUENCES];
} model;

static inline model *model_create(const oct_kv_table *table, uint32_t page_size, uint32_t n_pages, uint32_t window_tokens)
{
    model *m = calloc(1, sizeof(*m));
    assert_non_null(m);
    assert_true(n_pages <= MODEL_PAGES_MAX && page_size <= 64);
    m->table = table;
    m->page_size = page_size;
    m->n_pages = n_pages;
    m->window_tokens = window_tokens;
    return m;
}

static inline uint32_t model_pages(const model *m, uint32_t n_tokens)
{
    uint32_t n = 0;
    while (n * m->page_size < n_tokens) {
        n++;
    }
    return n;
}

static inline uint32_t model_free_pages(const model *m)
{
    uint32_t n = 0;
    for (uint32_t page = 0; page < m->n_pages; page++) {
        n += m->refs[page] == 0;
    }
    return n;
}

/* Whether a query at position p sees key j < p: doc/NUMERICS.md, causal. */
static inline bool model_sees(const model *m, uint32_t p, uint32_t j)
{
    return m->window_tokens == 0 || p - j < m->window_tokens;
}

/* Whether the sequence cut to n tokens has all that its next token sees, and the page that the token goes to. */
static inline bool model_may_cut(const model *m, uint32_t sequence, uint32_t n)
{
    const model_sequence *s = &m->s[sequence];
    if (n > s->length) {
        return false;
    }
    for (uint32_t j = 0; j < n; j++) {
        if (model_sees(m, n, j) && s->gone[j / m->page_size]) {
            return false;
        }
    }
    return n % m->page_size == 0 || !s->gone[n / m->page_size];
}

static inline uint32_t model_copies(const model *m, uint32_t sequence, uint32_t n)
{
    const model_sequence *s = &m->s[sequence];
    return n > 0 && s->length % m->page_size != 0 && m->refs[s->pages[s->length / m->page_size]] > 1;
}

static inline uint32_t model_pages_needed(const model *m, uint32_t sequence, uint32_t n)
{
    const uint32_t length = m->s[sequence].length;
    return model_pages(m, length + n) - model_pages(m, length) + model_copies(m, sequence, n);
}

/* After a successful append: what it gave is right, and the tokens are stored as the caller of a real pool would. */
static inline void model_append(model *m, uint32_t sequence, uint32_t n, uint64_t first_stamp, const int32_t *slots, const oct_kv_copy *copy,
                                uint32_t n_copies)
{
    model_sequence *s = &m->s[sequence];
    const uint32_t before = model_pages(m, s->length), after = model_pages(m, s->length + n);
    uint32_t n_listed;
    const int32_t *pages = oct_kv_table_pages(m->table, sequence, &n_listed);
    assert_int_equal(n_listed, after);
    assert_int_equal(n_copies, model_copies(m, sequence, n));
    if (n_copies == 1) {
        assert_int_equal(copy->from, s->pages[before - 1]);
        assert_int_equal(copy->to, pages[before - 1]);
        assert_true(copy->to >= 0 && (uint32_t)copy->to < m->n_pages);
        assert_int_equal(m->refs[copy->to], 0);
        memcpy(m->content + copy->to * (int64_t)m->page_size, m->content + copy->from * (int64_t)m->page_size,
               m->page_size * sizeof(uint64_t));
        m->refs[copy->from]--;
        m->refs[copy->to]++;
        s->pages[before - 1] = copy->to;
        m->n_copied++;
    }
    for (uint32_t i = before; i < after; i++) {
        assert_true(pages[i] >= 0 && (uint32_t)pages[i] < m->n_pages);
        assert_int_equal(m->refs[pages[i]], 0); /* never one that somebody holds */
        m->refs[pages[i]] = 1;
        s->pages[i] = pages[i];
        s->gone[i] = false;
    }
    for (uint32_t i = 0; i < n; i++, s->length++) {
        assert_int_equal(slots[i], s->pages[s->length / m->page_size] * (int32_t)m->page_size + (int32_t)(s->length % m->page_size));
        s->stamps[s->length] = first_stamp + i;
        m->content[slots[i]] = first_stamp + i;
    }
}

static inline void model_share(model *m, uint32_t from, uint32_t to, uint32_t n)
{
    model_sequence *t = &m->s[to];
    *t = m->s[from];
    t->length = n;
    for (uint32_t i = 0; i < model_pages(m, n); i++) {
        if (!t->gone[i]) {
            m->refs[t->pages[i]]++;
        }
    }
}

static inline void model_cut(model *m, uint32_t sequence, uint32_t n)
{
    model_sequence *s = &m->s[sequence];
    for (uint32_t i = model_pages(m, n); i < model_pages(m, s->length); i++) {
        if (!s->gone[i]) {
            m->refs[s->pages[i]]--;
        }
    }
    s->length = n;
}

/* A page goes when each of its slots is filled and unseen by the next token. */
static inline void model_slide(model *m, uint32_t sequence)
{
    model_sequence *s = &m->s[sequence];
    for (uint32_t i = 0; i < model_pages(m, s->length); i++) {
        bool needed = false;
        for (uint32_t j = i * m->page_size; j < (i + 1) * m->page_size; j++) {
            needed = needed || j >= s->length || model_sees(m, s->length, j);
        }
        if (!needed && !s->gone[i]) {
            s->gone[i] = true;
            m->refs[s->pages[i]]--;
        }
    }
}

/* The table against the model, whole: lists, counts, contents; fault H4's invariant. */
static inline void model_check(const model *m)
{
    uint32_t refs[MODEL_PAGES_MAX] = {0};
    uint32_t n_sequences = 0, n_shared = 0;
    int64_t n_tokens = 0;
    for (uint32_t id = 0; id < MODEL_SEQUENCES; id++) {
        const model_sequence *s = &m->s[id];
        uint32_t n_listed;
        const int32_t *pages = oct_kv_table_pages(m->table, id, &n_listed);
        assert_int_equal(n_listed, model_pages(m, s->length));
        assert_int_equal(oct_kv_table_length(m->table, id), s->length);
        for (uint32_t i = 0; i < n_listed; i++) {
            if (s->gone[i]) {
                assert_int_equal(pages[i], OCT_PAGE_NONE);
                continue;
            }
            assert_int_equal(pages[i], s->pages[i]);
            refs[pages[i]]++;
            for (uint32_t j = i * m->page_size; j < (i + 1) * m->page_size && j < s->length; j++) {
                if (m->content[pages[i] * (int64_t)m->page_size + j % m->page_size] != s->stamps[j]) {
                    fail_msg("sequence %u, token %u: foreign contents on page %d", id, j, pages[i]);
                }
            }
        }
        n_sequences += s->length > 0;
        n_tokens += s->length;
    }
    for (uint32_t page = 0; page < m->n_pages; page++) {
        assert_int_equal(refs[page], m->refs[page]);
        assert_int_equal(oct_kv_table_refcount(m->table, (int32_t)page), refs[page]);
        n_shared += refs[page] > 1;
    }
    const oct_kv_table_stats stats = stats_of(m->table);
    assert_int_equal(stats.n_pages, m->n_pages);
    assert_int_equal(stats.n_free, model_free_pages(m));
    assert_int_equal(stats.n_used + stats.n_free, stats.n_pages);
    assert_int_equal(stats.n_shared, n_shared);
    assert_int_equal(stats.n_tokens, n_tokens);
    assert_int_equal(stats.n_sequences, n_sequences);
    assert_int_equal(stats.n_copied, m->n_copied);
}

/* A length of 0..3 pages, mostly one token: decode steps, and now and then a prompt. */
static inline uint32_t model_random_n(random_state *r, uint32_t page_size)
{
    return random_below(r, 3) > 0 ? 1 : random_below(r, 3 * page_size + 1);
}

/* Where a share goes: mostly an empty sequence, if there is one. */
static inline uint32_t model_random_target(const model *m, random_state *r)
{
    const uint32_t first = random_below(r, MODEL_SEQUENCES);
    for (uint32_t i = 0; i < MODEL_SEQUENCES && random_below(r, 16) > 0; i++) {
        if (m->s[(first + i) % MODEL_SEQUENCES].length == 0) {
            return (first + i) % MODEL_SEQUENCES;
        }
    }
    return first;
}

#endif
