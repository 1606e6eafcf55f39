/* Page tables and twins: bookkeeping on the host. The GIL is held through every call, so Python threads take turns. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "kv.h"

namespace octavo_python {

namespace {

struct Table {
    oct_kv_table *table = nullptr;
    ContextPtr context;

    Table() = default;
    Table(const Table &) = delete;
    Table &operator=(const Table &) = delete;
    ~Table() { oct_kv_table_destroy(table); }
};

struct Twin {
    oct_kv_twin *twin = nullptr;
    ContextPtr context;

    Twin() = default;
    Twin(const Twin &) = delete;
    Twin &operator=(const Twin &) = delete;
    ~Twin() { oct_kv_twin_destroy(twin); }
};

/* A table read on its own, or one of a twin. */
struct Tables {
    const oct_kv_table *table;
};

/* `numbers`: what was asked for, put into words only when it failed. */
void done(oct_status status, const char *where, const char *format, std::initializer_list<int64_t> numbers)
{
    if (status == OCT_OK) {
        return;
    }
    std::string text;
    const int64_t *number = numbers.begin();
    for (const char *c = format; *c != 0; c++) {
        text += *c == '#' ? std::to_string(*number++) : std::string(1, *c);
    }
    raise(status, (text + ": " + oct_status_message(status)).c_str(), where);
}

const char of_one[] = "sequence #", of_tokens[] = "sequence #, # tokens", of_two[] = "sequence # to sequence #, # tokens";

/* The C table answers for a sequence that it does not have as for an empty one. */
void want_sequence(const oct_kv_table *table, uint32_t sequence)
{
    if (oct_kv_table_pages_needed(table, sequence, 0) < 0) {
        refuse("sequence", "is %lld; the table has no such sequence", (long long)sequence);
    }
}

nb::object int32_array(int64_t n, int32_t **data)
{
    nb::object array = nb::module_::import_("numpy").attr("empty")(n, "int32");
    const Array view(array, "array", Device(), nullptr);
    *data = (int32_t *)view.data();   /* the array stays where it is */
    return array;
}

nb::list copies_list(const oct_kv_copy *copies, uint32_t n)
{
    nb::list list;
    for (uint32_t i = 0; i < n; i++) {
        list.append(nb::make_tuple(copies[i].from, copies[i].to));
    }
    return list;
}

nb::object pages_of(const oct_kv_table *table, uint32_t sequence)
{
    want_sequence(table, sequence);
    uint32_t n = 0;
    const int32_t *pages = oct_kv_table_pages(table, sequence, &n);
    int32_t *data;
    nb::object array = int32_array(n, &data);
    if (n > 0) {
        memcpy(data, pages, n * sizeof(*data));
    }
    return array;
}

uint32_t length_of(const oct_kv_table *table, uint32_t sequence)
{
    want_sequence(table, sequence);
    return oct_kv_table_length(table, sequence);
}

nb::dict stats_of(const oct_kv_table *table)
{
    oct_kv_table_stats s = {};
    s.struct_size = sizeof(s);
    done(oct_kv_table_stats_get(table, &s), "oct_kv_table_stats_get", "the table's counts", {});
    nb::dict d;
    d["sequences"] = s.n_sequences;
    d["pages"] = s.n_pages;
    d["free"] = s.n_free;
    d["used"] = s.n_used;
    d["shared"] = s.n_shared;
    d["tokens"] = s.n_tokens;
    d["copied"] = s.n_copied;
    return d;
}

/* block_table int32[n, widest] and seq_lens int32[n]; places past a sequence's pages hold -1. */
nb::tuple batch_of(const oct_kv_table *table, const std::vector<uint32_t> &sequences)
{
    uint32_t widest = 1;
    for (uint32_t s : sequences) {
        want_sequence(table, s);
        uint32_t n = 0;
        (void)oct_kv_table_pages(table, s, &n);
        widest = n > widest ? n : widest;
    }
    int32_t *cells, *lengths;
    nb::object flat = int32_array((int64_t)sequences.size() * widest, &cells), lens = int32_array((int64_t)sequences.size(), &lengths);
    for (size_t i = 0; i < sequences.size(); i++) {
        uint32_t n = 0;
        const int32_t *pages = oct_kv_table_pages(table, sequences[i], &n);
        for (uint32_t p = 0; p < widest; p++) {
            cells[i * widest + p] = p < n ? pages[p] : OCT_PAGE_NONE;
        }
        lengths[i] = (int32_t)oct_kv_table_length(table, sequences[i]);
    }
    return nb::make_tuple(flat.attr("reshape")(sequences.size(), widest), lens);
}

}

void bind_page(nb::module_ &m)
{
    nb::class_<Tables>(m, "PageTableView", "One of a twin's two tables, to be read.")
        .def("pages", [](const Tables &t, uint32_t sequence) { return pages_of(t.table, sequence); }, nb::arg("sequence"), "int32[pages], from key 0 on.")
        .def("length", [](const Tables &t, uint32_t sequence) { return length_of(t.table, sequence); }, nb::arg("sequence"))
        .def("refcount", [](const Tables &t, int32_t page) { return oct_kv_table_refcount(t.table, page); }, nb::arg("page"))
        .def("batch", [](const Tables &t, const std::vector<uint32_t> &s) { return batch_of(t.table, s); }, nb::arg("sequences"),
             "(block_table, seq_lens) of some sequences, for AttentionPlan.update.")
        .def("stats", [](const Tables &t) { return stats_of(t.table); });

    nb::class_<Table>(m, "PageTable",
                      "Hands out the pages of a pool to sequences, with reference counts. Sequences are 0 .. max_sequences - 1.\n\n"
                      "page_size: tokens. window: 0, or the attention window, the token itself included: pages that no later query can see are given\n"
                      "back by slide(). Raises InvalidArgument, OutOfMemory. Source: include/octavo/page.h.")
        .def(nb::new_([](uint32_t page_size, int64_t n_pages, uint32_t max_sequences, uint32_t window, const ContextPtr &context) {
            auto t = std::make_unique<Table>();
            t->context = context_or_default(context);
            oct_kv_table_options o = {};
            o.struct_size = sizeof(o);
            o.page_size = page_size;
            o.n_pages = n_pages;
            o.max_sequences = max_sequences;
            o.window_tokens = window;
            oct_error error = OCT_ERROR_INIT;
            check(oct_kv_table_create(t->context->context, &o, &t->table, &error), error);
            return t.release();
        }), nb::arg("page_size"), nb::arg("n_pages"), nb::arg("max_sequences"), nb::kw_only(), nb::arg("window") = 0, nb::arg("context") = nb::none())
        .def("append", [](Table &t, uint32_t sequence, uint32_t n_tokens) {
            oct_kv_copy copy;
            uint32_t n_copies = 0;
            int32_t *slots;
            nb::object array = int32_array(n_tokens, &slots);
            done(oct_kv_table_append(t.table, sequence, n_tokens, slots, &copy, &n_copies), "oct_kv_table_append", of_tokens, { sequence, n_tokens });
            return nb::make_tuple(array, copies_list(&copy, n_copies));
        }, nb::arg("sequence"), nb::arg("n_tokens"),
             "Makes room for n_tokens more. Returns (slots int32[n_tokens], copies): copies is a list of (source, target) pages for KVPool.copy_page,\n"
             "before the write. All or nothing. Raises OutOfPages, OutOfMemory, InvalidArgument.")
        .def("pages_needed", [](const Table &t, uint32_t sequence, uint32_t n_tokens) { return oct_kv_table_pages_needed(t.table, sequence, n_tokens); },
             nb::arg("sequence"), nb::arg("n_tokens"), "Pages that an append would take now; -1 for an unknown sequence.")
        .def("share", [](Table &t, uint32_t source, uint32_t target, uint32_t n) { done(oct_kv_table_share(t.table, source, target, n), "oct_kv_table_share", of_two, { source, target, n }); },
             nb::arg("source"), nb::arg("target"), nb::arg("n_tokens"), "The empty sequence `target` becomes a copy of the first n_tokens of `source`, sharing its pages.")
        .def("truncate", [](Table &t, uint32_t s, uint32_t n) { done(oct_kv_table_truncate(t.table, s, n), "oct_kv_table_truncate", of_tokens, { s, n }); }, nb::arg("sequence"), nb::arg("n_tokens"),
             "Cuts the sequence to n_tokens and frees the pages past it.")
        .def("free", [](Table &t, uint32_t s) { done(oct_kv_table_free(t.table, s), "oct_kv_table_free", of_one, { s }); }, nb::arg("sequence"))
        .def("slide", [](Table &t, uint32_t s) { done(oct_kv_table_slide(t.table, s), "oct_kv_table_slide", of_one, { s }); }, nb::arg("sequence"),
             "With a window: gives back the pages that no query at position >= length can see.")
        .def("pages", [](const Table &t, uint32_t s) { return pages_of(t.table, s); }, nb::arg("sequence"), "int32[pages], from key 0 on; -1 where given back.")
        .def("length", [](const Table &t, uint32_t s) { return length_of(t.table, s); }, nb::arg("sequence"), "Tokens.")
        .def("refcount", [](const Table &t, int32_t page) { return oct_kv_table_refcount(t.table, page); }, nb::arg("page"))
        .def("batch", [](const Table &t, const std::vector<uint32_t> &s) { return batch_of(t.table, s); }, nb::arg("sequences"),
             "(block_table int32[n, widest], seq_lens int32[n]) of some sequences, for AttentionPlan.update. Raises InvalidArgument for one that the table does not have.")
        .def("stats", [](const Table &t) { return stats_of(t.table); }, "Counts: sequences, pages, free, used, shared, tokens, copied.");

    nb::class_<Twin>(m, "TwinPageTable",
                     "Two tables for one set of sequences: `full` keeps every token, `window` (a pool of its own) only what the window sees.\n\n"
                     "Each call acts on both or on neither. Raises InvalidArgument, OutOfPages, OutOfMemory. Source: include/octavo/page.h.")
        .def(nb::new_([](uint32_t page_size, int64_t n_pages_full, int64_t n_pages_window, uint32_t max_sequences, uint32_t window, const ContextPtr &context) {
            auto t = std::make_unique<Twin>();
            t->context = context_or_default(context);
            oct_kv_twin_options o = {};
            o.struct_size = sizeof(o);
            o.page_size = page_size;
            o.n_pages_full = n_pages_full;
            o.n_pages_window = n_pages_window;
            o.max_sequences = max_sequences;
            o.window_tokens = window;
            oct_error error = OCT_ERROR_INIT;
            check(oct_kv_twin_create(t->context->context, &o, &t->twin, &error), error);
            return t.release();
        }), nb::arg("page_size"), nb::arg("n_pages_full"), nb::arg("n_pages_window"), nb::arg("max_sequences"), nb::arg("window"), nb::kw_only(),
             nb::arg("context") = nb::none())
        .def("append", [](Twin &t, uint32_t sequence, uint32_t n_tokens) {
            oct_kv_copy copies[2];
            uint32_t n_copies[2] = { 0, 0 };
            int32_t *full, *window;
            nb::object slots = int32_array(n_tokens, &full), slots_window = int32_array(n_tokens, &window);
            done(oct_kv_twin_append(t.twin, sequence, n_tokens, full, window, copies, n_copies), "oct_kv_twin_append", of_tokens, { sequence, n_tokens });
            return nb::make_tuple(slots, slots_window, copies_list(&copies[0], n_copies[0]), copies_list(&copies[1], n_copies[1]));
        }, nb::arg("sequence"), nb::arg("n_tokens"), "Returns (slots, slots_window, copies, copies_window), as PageTable.append.")
        .def("share", [](Twin &t, uint32_t source, uint32_t target, uint32_t n) { done(oct_kv_twin_share(t.twin, source, target, n), "oct_kv_twin_share", of_two, { source, target, n }); },
             nb::arg("source"), nb::arg("target"), nb::arg("n_tokens"))
        .def("truncate", [](Twin &t, uint32_t s, uint32_t n) { done(oct_kv_twin_truncate(t.twin, s, n), "oct_kv_twin_truncate", of_tokens, { s, n }); }, nb::arg("sequence"), nb::arg("n_tokens"))
        .def("free", [](Twin &t, uint32_t s) { done(oct_kv_twin_free(t.twin, s), "oct_kv_twin_free", of_one, { s }); }, nb::arg("sequence"))
        .def("slide", [](Twin &t, uint32_t s) { done(oct_kv_twin_slide(t.twin, s), "oct_kv_twin_slide", of_one, { s }); }, nb::arg("sequence"))
        .def("map", [](const Twin &t, nb::handle slots) {
            const Array given(slots, "slots", Device(), nullptr);
            given.want_int(DL_INT, 32);
            given.want_shape({ -1 });
            given.want_contiguous();
            int32_t *mapped;
            nb::object array = int32_array(given.shape(0), &mapped);
            done(oct_kv_twin_map(t.twin, (const int32_t *)given.data(), given.shape(0), mapped), "oct_kv_twin_map", "# slots", { given.shape(0) });
            return array;
        }, nb::arg("slots"), "int32[n]: the window pool's slot of each full-pool slot; -1 where the window has let it go.")
        .def_prop_ro("full", [](const Twin &t) { return Tables{ oct_kv_twin_full(t.twin) }; }, nb::keep_alive<0, 1>())
        .def_prop_ro("window", [](const Twin &t) { return Tables{ oct_kv_twin_window(t.twin) }; }, nb::keep_alive<0, 1>());
}

}
