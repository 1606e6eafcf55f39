/* Plans, runs and the merge. A plan's mutex is taken with the GIL released, so that Python threads that share a plan take turns and never tear it. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>

#include "kv.h"

namespace octavo_python {

namespace {

struct Plan {
    oct_plan *plan = nullptr;
    ContextPtr context;
    oct_attn_spec spec = {};
    std::mutex turn;
    std::atomic<int64_t> n_rows{ 0 };      /* of the step, on the CPU; a GPU's host does not see it. Changed in a turn, also read outside */
    std::atomic<int64_t> most_rows{ 0 };   /* of one sequence */
    std::vector<std::unique_ptr<Array>> step;   /* a GPU reads the metadata when its kernels run */

    ~Plan() { oct_plan_destroy(plan); }
};

std::string text_of(Plan &p, uint32_t format)
{
    nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> mine(p.turn);
    std::string text(oct_plan_explain(p.plan, format, nullptr, 0), 0);
    oct_plan_explain(p.plan, format, text.data(), text.size() + 1);
    return text;
}

Plan *make_plan(uint32_t heads_q, const Spec &kv, nb::handle q_dtype, nb::handle out_dtype, std::optional<float> sm_scale, float softcap, bool causal, uint32_t window,
                bool sink, bool mask, bool deterministic, uint32_t split_tokens, uint32_t max_threads, const std::optional<std::string> &force,
                const std::optional<std::string> &deny, uint32_t max_sequences, int64_t max_rows, int64_t max_keys, const std::string &products,
                const ContextPtr &context)
{
    auto p = std::make_unique<Plan>();
    p->context = context_or_default(context);
    oct_attn_spec &s = p->spec;
    s.struct_size = sizeof(s);
    s.heads_q = heads_q;
    s.kv = kv.spec;
    s.q_dtype = dtype_of(q_dtype, "q_dtype");
    s.out_dtype = out_dtype.is_none() ? (oct_dtype_size_bytes(s.q_dtype) > 1 ? s.q_dtype : (uint32_t)OCT_DTYPE_BF16) : dtype_of(out_dtype, "out_dtype");
    s.sm_scale = sm_scale.value_or(1.0f / std::sqrt((float)kv.spec.dim_k));
    s.softcap = softcap;
    s.causal = causal;
    s.window_tokens = window;
    s.has_sink = sink;
    s.has_mask = mask;
    s.deterministic = deterministic;
    s.split_tokens = split_tokens;
    s.max_threads = max_threads;
    s.max_sequences = max_sequences;
    s.max_rows = max_rows;
    s.max_keys = max_keys;
    s.products = products == "8bit" ? OCT_PRODUCTS_8BIT : products == "8bit-precise" ? OCT_PRODUCTS_8BIT_PRECISE : OCT_PRODUCTS_16BIT;
    if (s.products == OCT_PRODUCTS_16BIT && products != "16bit") {
        throw nb::value_error("products is one of '16bit', '8bit' and '8bit-precise'");
    }
    s.force_variant = force ? force->c_str() : nullptr;
    s.deny_variant = deny ? deny->c_str() : nullptr;
    oct_error error = OCT_ERROR_INIT;
    check(oct_plan_create(p->context->context, &s, &p->plan, &error), error);
    s.force_variant = s.deny_variant = nullptr;
    return p.release();
}

/* int32 metadata, contiguous. */
const int32_t *metadata(Plan &p, std::vector<std::unique_ptr<Array>> &step, nb::handle given, const char *name, std::initializer_list<int64_t> shape, Stream *stream)
{
    step.push_back(std::make_unique<Array>(given, name, p.context->device, stream));
    const Array &a = *step.back();
    a.want_int(DL_INT, 32);
    a.want_shape(shape);
    a.want_contiguous();
    return (const int32_t *)a.data();
}

/* The step as C takes it; `step` holds its arrays. Returns the most rows of one sequence, 0 on a GPU. */
int64_t take_batch(Plan &p, oct_attn_batch &b, std::vector<std::unique_ptr<Array>> &step, nb::handle qo_indptr, nb::handle block_table, nb::handle seq_lens,
                   nb::handle kv_indptr, nb::handle kv_indices, nb::handle kv_last_page_len, int64_t n_pages, nb::handle stream_given)
{
    const char *where = "AttentionPlan.update";
    const bool gpu = p.context->device.gpu();
    Stream stream = stream_of(stream_given, p.context->device);
    b.struct_size = sizeof(b);
    b.qo_indptr = metadata(p, step, qo_indptr, "qo_indptr", { -1 }, &stream);
    const int64_t n = step.back()->shape(0) - 1;
    if (n < 0) {
        refuse(where, "qo_indptr is empty; must hold sequences + 1 numbers");
    }
    b.n_sequences = (uint32_t)n;
    const bool padded = !block_table.is_none();
    if (padded == !kv_indptr.is_none() || seq_lens.is_none() == padded || kv_indices.is_none() != padded || kv_last_page_len.is_none() != padded) {
        refuse(where, "keys come as block_table and seq_lens, or as kv_indptr, kv_indices and kv_last_page_len");
    }
    if (padded) {
        b.block_table = metadata(p, step, block_table, "block_table", { n, -1 }, &stream);
        b.max_pages = step.back()->shape(1);
        b.seq_lens = metadata(p, step, seq_lens, "seq_lens", { n }, &stream);
    } else {
        b.kv_indptr = metadata(p, step, kv_indptr, "kv_indptr", { n + 1 }, &stream);
        b.kv_indices = metadata(p, step, kv_indices, "kv_indices", { -1 }, &stream);
        if (!gpu && step.back()->shape(0) < b.kv_indptr[n]) {
            refuse(where, "kv_indices holds %lld pages; kv_indptr ends at %d", (long long)step.back()->shape(0), (int)b.kv_indptr[n]);
        }
        b.kv_last_page_len = metadata(p, step, kv_last_page_len, "kv_last_page_len", { n }, &stream);
    }
    b.n_pages = n_pages;
    b.stream = stream.handle;
    int64_t most = 0;
    for (int64_t i = 0; !gpu && i < n; i++) {
        const int64_t rows = (int64_t)b.qo_indptr[i + 1] - b.qo_indptr[i];
        most = rows > most ? rows : most;
    }
    return most;
}

/* C empties a plan whose update it refuses; what is refused here must leave it as empty. */
void empty(Plan &p)
{
    nb::gil_scoped_release unlocked;
    const std::lock_guard<std::mutex> mine(p.turn);
    (void)oct_plan_update(p.plan, nullptr, nullptr);
    p.n_rows = p.most_rows = 0;
}

void update(Plan &p, nb::handle qo_indptr, nb::handle block_table, nb::handle seq_lens, nb::handle kv_indptr, nb::handle kv_indices, nb::handle kv_last_page_len,
            int64_t n_pages, nb::handle stream)
{
    const bool gpu = p.context->device.gpu();
    std::vector<std::unique_ptr<Array>> step;
    oct_attn_batch b = {};
    int64_t most;
    try {
        most = take_batch(p, b, step, qo_indptr, block_table, seq_lens, kv_indptr, kv_indices, kv_last_page_len, n_pages, stream);
    } catch (...) {
        empty(p);
        throw;
    }
    oct_error error = OCT_ERROR_INIT;
    oct_status status;
    {
        nb::gil_scoped_release unlocked;
        const std::lock_guard<std::mutex> mine(p.turn);
        status = oct_plan_update(p.plan, &b, &error);
        p.n_rows = status == OCT_OK && !gpu ? b.qo_indptr[b.n_sequences] : 0;
        p.most_rows = status == OCT_OK ? most : 0;
        if (gpu) {
            p.step.swap(step);   /* the step before is done with where the new one was enqueued after it; its memory is its package's to reuse in order */
        }
    }
    check(status, error);
}

/* `calls` above 1, and `seconds`: the same call many times, timed here, for octavo.bench. */
nb::object run_timed(Plan &p, nb::handle q, const Layer &kv, nb::handle out_given, nb::handle lse_given, bool return_lse, nb::handle q_scale, nb::handle out_scale,
                     nb::handle sink, nb::handle mask, nb::handle stream_given, int64_t calls, double *seconds)
{
    const Device &device = p.context->device;
    const oct_attn_spec &spec = p.spec;
    Stream stream = stream_of(stream_given, device);
    const int64_t heads = spec.heads_q;
    if (kv.context->device.type != device.type || kv.context->device.id != device.id) {
        refuse("kv", "is a layer on %s; the plan computes on %s", kv.context->device.text().c_str(), device.text().c_str());
    }
    oct_attn_args args = {};
    args.struct_size = sizeof(args);
    args.layer = &kv.layer;

    const Array aq(q, "q", device, &stream);
    const int64_t rows = device.gpu() && aq.ndim() > 0 ? aq.shape(0) : p.n_rows.load();
    aq.want_shape({ rows, heads, (int64_t)spec.kv.dim_k });
    aq.want_dtype(spec.q_dtype);
    aq.want_contiguous(2);
    args.q = aq.data();
    args.q_row_stride = aq.stride(0);
    args.q_head_stride = aq.stride(1);

    nb::object out = out_given.is_none() ? empty_like(q, { rows, heads, (int64_t)spec.kv.dim_v }, spec.out_dtype, device) : nb::borrow(out_given);
    const Array ao(out, "out", device, &stream);
    ao.want_shape({ rows, heads, (int64_t)spec.kv.dim_v });
    ao.want_dtype(spec.out_dtype);
    ao.want_contiguous(2);
    ao.want_writable();
    args.out = ao.data();
    args.out_row_stride = ao.stride(0);
    args.out_head_stride = ao.stride(1);

    nb::object lse;
    std::optional<Array> al, aqs, aos, ak, am;
    if (!lse_given.is_none() || return_lse) {
        lse = lse_given.is_none() ? empty_like(q, { rows, heads }, OCT_DTYPE_F32, device) : nb::borrow(lse_given);
        al.emplace(lse, "lse", device, &stream);
        al->want_shape({ rows, heads });
        al->want_dtype(OCT_DTYPE_F32);
        al->want_writable();
        args.lse = (float *)al->data();
        args.lse_row_stride = al->stride(0);
        args.lse_head_stride = al->stride(1);
    }
    float own_q_scale, own_out_scale;
    const auto one_scale = [&](nb::handle given, const char *name, float &own, std::optional<Array> &array) -> const float * {
        if (given.is_none()) {
            return nullptr;
        }
        if (!device.gpu() && (PyFloat_Check(given.ptr()) || PyLong_Check(given.ptr()))) {
            own = (float)nb::cast<double>(given);
            return &own;
        }
        array.emplace(given, name, device, &stream);
        array->want_dtype(OCT_DTYPE_F32);
        array->want_shape({ 1 });
        return (const float *)array->data();
    };
    args.q_scale = one_scale(q_scale, "q_scale", own_q_scale, aqs);
    args.out_scale = one_scale(out_scale, "out_scale", own_out_scale, aos);
    if (!sink.is_none()) {
        ak.emplace(sink, "sink", device, &stream);
        ak->want_dtype(OCT_DTYPE_F32);
        ak->want_shape({ heads });
        ak->want_contiguous();
        args.sink = (const float *)ak->data();
    }
    if (!mask.is_none()) {
        am.emplace(mask, "mask", device, &stream);
        am->want_int(DL_UINT, 32);
        am->want_shape({ rows, -1 });
        am->want_contiguous(1);
        if (am->shape(1) * 32 < p.most_rows) {
            refuse("mask", "is %s; a sequence of the step has %lld rows, and a row of the mask needs a bit for each", am->text().c_str(), (long long)p.most_rows.load());
        }
        args.mask = (const uint32_t *)am->data();
        args.mask_row_stride = am->stride(0);
    }
    args.stream = stream.handle;

    oct_error error = OCT_ERROR_INIT;
    oct_status status = OCT_OK;
    bool between;   /* what was looked at above is another step's by now */
    int64_t rows_now, most_now;
    {
        nb::gil_scoped_release unlocked;
        const std::lock_guard<std::mutex> mine(p.turn);
        rows_now = p.n_rows;
        most_now = p.most_rows;
        between = !device.gpu() && (rows != rows_now || (am && am->shape(1) * 32 < most_now));
        if (between) {
            /* nothing is run */
        } else if (seconds == nullptr) {
            status = oct_attn_run(p.plan, &args);
        } else {
            const auto begin = std::chrono::steady_clock::now();
            for (int64_t i = 0; i < calls && status == OCT_OK; i++) {
                status = oct_attn_run(p.plan, &args);
            }
            *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        }
        if (status != OCT_OK) {
            (void)oct_attn_check(p.plan, &args, &error);
        }
    }
    if (between) {
        refuse("AttentionPlan.run", "another thread's update came between: q has %lld rows, the plan's step %lld now, with sequences of up to %lld", (long long)rows,
               (long long)rows_now, (long long)most_now);
    }
    if (status != OCT_OK) {
        raise(status, error.text, "oct_attn_run");
    }
    return lse.is_valid() ? nb::object(nb::make_tuple(out, lse)) : out;
}

nb::object run(Plan &p, nb::handle q, const Layer &kv, nb::handle out, nb::handle lse, bool return_lse, nb::handle q_scale, nb::handle out_scale, nb::handle sink,
               nb::handle mask, nb::handle stream)
{
    return run_timed(p, q, kv, out, lse, return_lse, q_scale, out_scale, sink, mask, stream, 1, nullptr);
}

nb::dict info_of(Plan &p)
{
    oct_plan_info i = {};
    i.struct_size = sizeof(i);
    oct_status status;
    {
        nb::gil_scoped_release unlocked;
        const std::lock_guard<std::mutex> mine(p.turn);
        status = oct_plan_info_get(p.plan, &i);
    }
    if (status != OCT_OK) {
        raise(status, nullptr, "oct_plan_info_get");
    }
    nb::dict d;
    d["sequences"] = i.n_sequences;
    d["rows"] = i.n_rows;
    d["items"] = i.n_items;
    d["items_split"] = i.n_items_split;
    d["keys"] = i.n_keys;
    d["workspace_bytes"] = i.workspace_bytes;
    d["predicted_seconds"] = i.predicted_seconds;
    d["decode_variant"] = i.decode_variant;
    d["extend_variant"] = i.extend_variant;
    return d;
}

nb::tuple merge_states(nb::handle v, nb::handle s, nb::handle out_given, nb::handle lse_given, const ContextPtr &given, nb::handle stream_given)
{
    const ContextPtr context = context_or_default(given);
    Stream stream = stream_of(stream_given, context->device);
    const Array av(v, "v", context->device, &stream), as(s, "s", context->device, &stream);
    av.want_shape({ -1, -1, -1, -1 });
    av.want_dtype(OCT_DTYPE_F32);
    av.want_contiguous(3);
    as.want_shape({ av.shape(0), av.shape(1), av.shape(2) });
    as.want_dtype(OCT_DTYPE_F32);
    const int64_t rows = av.shape(0), heads = av.shape(2), dim = av.shape(3);
    nb::object out = out_given.is_none() ? empty_like(v, { rows, heads, dim }, OCT_DTYPE_F32, context->device) : nb::borrow(out_given);
    nb::object lse = lse_given.is_none() ? empty_like(v, { rows, heads }, OCT_DTYPE_F32, context->device) : nb::borrow(lse_given);
    const Array ao(out, "out", context->device, &stream), al(lse, "lse", context->device, &stream);
    ao.want_shape({ rows, heads, dim });
    ao.want_dtype(OCT_DTYPE_F32);
    ao.want_contiguous(2);
    ao.want_writable();
    al.want_shape({ rows, heads });
    al.want_dtype(OCT_DTYPE_F32);
    al.want_writable();
    oct_attn_merge_args args = {};
    args.struct_size = sizeof(args);
    args.n_parts = (uint32_t)av.shape(1);
    args.rows = rows;
    args.heads = (uint32_t)heads;
    args.dim = (uint32_t)dim;
    args.out = (const float *)av.data();
    args.out_part_stride = av.stride(1);
    args.out_row_stride = av.stride(0);
    args.out_head_stride = av.stride(2);
    args.lse = (const float *)as.data();
    args.lse_part_stride = as.stride(1);
    args.lse_row_stride = as.stride(0);
    args.lse_head_stride = as.stride(2);
    args.merged = (float *)ao.data();
    args.merged_row_stride = ao.stride(0);
    args.merged_head_stride = ao.stride(1);
    args.lse_merged = (float *)al.data();
    args.lse_merged_row_stride = al.stride(0);
    args.lse_merged_head_stride = al.stride(1);
    args.stream = stream.handle;
    forget_log();
    oct_status status;
    {
        nb::gil_scoped_release unlocked;
        status = oct_attn_merge(context->context, &args);
    }
    if (status != OCT_OK) {
        raise_logged(status, "oct_attn_merge");
    }
    return nb::make_tuple(out, lse);
}

}

void bind_attn(nb::module_ &m)
{
    nb::class_<Plan>(m, "AttentionPlan",
                     "Attention of a model's layers over pages: made once, updated with every step's batch, run over every layer.\n\n"
                     "heads_q: a multiple of kv.heads. kv: the KVSpec of the layers. q_dtype: f32, f16, bf16 or an 8-bit float (then run takes q_scale);\n"
                     "out_dtype: likewise, with out_scale; like q if not given (bf16 for an 8-bit q). sm_scale: 1 / sqrt(dim) if not given.\n"
                     "softcap: 0 for none. causal: the last query row stands at the last key. window: visible keys, the token itself included; 0 for none.\n"
                     "sink, mask: run takes one. deterministic: a row's bits do not depend on its batch mates. split_tokens: keys a split, 0: the plan\n"
                     "chooses. force, deny: names of variants, \"attn_decode.avx2,attn_extend.scalar\". max_sequences, max_rows, max_keys: of the largest\n"
                     "step, on a GPU, where the plan's memory is taken once. products: \"8bit\" and \"8bit-precise\" permit a GPU's kernels that round q and\n"
                     "weights to 8 bits (doc/NUMERICS.md). Raises InvalidArgument, Unsupported (the text names the gate), OutOfMemory,\n"
                     "DeviceFault. Threads that share a plan take turns. Source: include/octavo/plan.h, doc/PLAN.md.")
        .def(nb::new_(&make_plan), nb::arg("heads_q"), nb::arg("kv"), nb::kw_only(), nb::arg("q_dtype") = "bf16", nb::arg("out_dtype") = nb::none(),
             nb::arg("sm_scale") = nb::none(), nb::arg("softcap") = 0.0f, nb::arg("causal") = true, nb::arg("window") = 0, nb::arg("sink") = false, nb::arg("mask") = false,
             nb::arg("deterministic") = false, nb::arg("split_tokens") = 0, nb::arg("max_threads") = 0, nb::arg("force") = nb::none(), nb::arg("deny") = nb::none(),
             nb::arg("max_sequences") = 0, nb::arg("max_rows") = 0, nb::arg("max_keys") = 0, nb::arg("products") = "16bit",
             nb::arg("context") = nb::none())
        .def("update", &update, nb::arg("qo_indptr"), nb::arg("block_table") = nb::none(), nb::arg("seq_lens") = nb::none(), nb::kw_only(),
             nb::arg("kv_indptr") = nb::none(), nb::arg("kv_indices") = nb::none(), nb::arg("kv_last_page_len") = nb::none(), nb::arg("n_pages"),
             nb::arg("stream") = nb::none(),
             nb::sig("def update(self, qo_indptr: object, block_table: object = None, seq_lens: object = None, *, kv_indptr: object = None, "
                     "kv_indices: object = None, kv_last_page_len: object = None, n_pages: int, stream: object = None) -> None"),
             "Takes over a step's batch. All int32 and contiguous; lengths include the step's own keys.\n\n"
             "qo_indptr: [sequences + 1]; query rows of sequence b are qo_indptr[b] .. qo_indptr[b + 1] - 1. Keys as block_table [sequences, pages]\n"
             "and seq_lens [sequences], or as kv_indptr [sequences + 1], kv_indices and kv_last_page_len [sequences] (0 where there is no page).\n"
             "n_pages: of the pool. On a GPU the arrays are the device's; they are kept until the next update, and may change before a graph that\n"
             "was captured is replayed. stream: None takes the arrays' own current one.\n"
             "Raises InvalidArgument (names the sequence and the value), OutOfMemory, DeviceFault; the plan then holds an empty batch.")
        .def("run", &run, nb::arg("q"), nb::arg("kv"), nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(), nb::arg("return_lse") = false,
             nb::arg("q_scale") = nb::none(), nb::arg("out_scale") = nb::none(), nb::arg("sink") = nb::none(), nb::arg("mask") = nb::none(), nb::arg("stream") = nb::none(),
             nb::sig("def run(self, q: object, kv: KVLayer, *, out: object = None, lse: object = None, return_lse: bool = False, q_scale: object = None, "
                     "out_scale: object = None, sink: object = None, mask: object = None, stream: object = None) -> object"),
             "Attention of the step's rows over one layer. Returns out, or (out, lse) with lse= or return_lse.\n\n"
             "q: [rows, heads_q, dim] of q_dtype, last axis contiguous. out: [rows, heads_q, dim_v] of out_dtype, made if not given (of NumPy\n"
             "or torch, as q is; NumPy's are uint16/uint8 for bf16 and 8-bit floats unless q is ml_dtypes.bfloat16 and out is bf16). Rows that see no\n"
             "key: out 0, lse -inf. lse: float32[rows, heads_q], natural logarithm, sink included. q_scale, out_scale: float32[1] (a number on the CPU), for 8-bit q and out. sink:\n"
             "float32[heads_q], -inf: as without. mask: uint32[rows, words]: bit t of a row's words says whether it sees key kv_len - n + t of its\n"
             "sequence, n being the sequence's own query rows. stream: as in update. The GIL is released. On a GPU it enqueues.\n"
             "Raises InvalidArgument, DeviceFault. Source: oct_attn_run, include/octavo/attn.h.")
        .def("_time_runs", [](Plan &p, nb::handle q, const Layer &kv, nb::handle out, int64_t calls) {
            double seconds = 0;
            run_timed(p, q, kv, out, nb::none(), false, nb::none(), nb::none(), nb::none(), nb::none(), nb::none(), calls, &seconds);
            return seconds;
        })
        .def("_explain", &text_of)
        .def_prop_ro("info", &info_of, "sequences, rows, items, items_split, keys, workspace_bytes, predicted_seconds, decode_variant, extend_variant.")
        .def("status", [](Plan &p, nb::handle stream_given) {
            Stream stream = stream_of(stream_given, p.context->device);
            oct_error error = OCT_ERROR_INIT;
            oct_status status;
            {
                nb::gil_scoped_release unlocked;
                const std::lock_guard<std::mutex> mine(p.turn);
                status = oct_plan_status(p.plan, stream.handle, &error);
            }
            check(status, error);
        }, nb::arg("stream") = nb::none(), "On a GPU: waits for the stream of the last update and raises InvalidArgument where its step was larger than the plan's limits.");

    m.def("merge_states", &merge_states, nb::arg("v"), nb::arg("s"), nb::kw_only(), nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(), nb::arg("context") = nb::none(),
          nb::arg("stream") = nb::none(),
          nb::sig("def merge_states(v: object, s: object, *, out: object = None, lse: object = None, context: Context | None = None, stream: object = None) -> tuple[object, object]"),
          "Merges partial results of the same rows by their lse. Returns (out [rows, heads, dim], lse [rows, heads]).\n\n"
          "v: float32[rows, parts, heads, dim]; s: float32[rows, parts, heads], NATURAL logarithms (FlashInfer's are of base 2: times ln 2). Any\n"
          "strides, dim contiguous. A part with lse -inf is neutral whatever its v holds; +inf and NaN count as empty. A sink must have gone into\n"
          "one part only. Raises InvalidArgument. Source: oct_attn_merge, include/octavo/attn.h.");
}

}
