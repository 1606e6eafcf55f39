/* Formats, pools, layers over memory of others, and the write. */
#include "kv.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>

namespace octavo_python {

namespace {

const char *const scale_modes[] = { "none", "tensor", "layer", "layer_head", "token_head", "channel" };
const char *const layouts[] = { "NHD", "HND", "V5D" };

uint32_t word_of(const std::string &name, const char *const *words, uint32_t n, const char *argument)
{
    std::string all;
    for (uint32_t i = 0; i < n; i++) {
        if (name == words[i]) {
            return i;
        }
        all += (i > 0 ? ", " : "") + std::string(words[i]);
    }
    refuse(argument, "is \"%s\"; must be one of %s", name.c_str(), all.c_str());
}

oct_kv_format format_of(nb::handle given, const char *argument)
{
    Format *format;
    if (nb::try_cast<Format *>(given, format) && format != nullptr) {
        return format->format;
    }
    return { dtype_of(given, argument), OCT_SCALE_NONE, 0, 0 };
}

/* x of V5D: 16 bytes of elements. */
int64_t group_of(uint32_t dtype) { return 16 / (int64_t)oct_dtype_size_bytes(dtype); }

/* V in v4 goes in and out as bytes, [..., dim / 32 * 18]. */
bool is_blocks(const oct_kv_spec &s, bool is_v) { return is_v && s.v.dtype == OCT_DTYPE_V4; }

/* The shape of K or V of a layer, and its strides from those of the library's view. */
void pages_shape(const oct_kv_layer &layer, bool is_v, std::vector<int64_t> &shape, std::vector<int64_t> &strides)
{
    const oct_kv_spec &s = layer.spec;
    const int64_t heads = s.heads, page = s.page_size, dim = is_v ? s.dim_v : s.dim_k;
    const int64_t by_page = is_v ? layer.v_page_stride : layer.k_page_stride, by_token = is_v ? layer.v_token_stride : layer.k_token_stride,
                  by_head = is_v ? layer.v_head_stride : layer.k_head_stride;
    if (s.layout == OCT_LAYOUT_NHD) {
        shape = { layer.n_pages, page, heads, dim };
        strides = { by_page, by_token, by_head, 1 };
    } else if (s.layout == OCT_LAYOUT_HND) {
        shape = { layer.n_pages, heads, page, dim };
        strides = { by_page, by_head, by_token, 1 };
    } else if (!is_v) {
        const int64_t x = group_of(s.k.dtype);
        shape = { layer.n_pages, heads, dim / x, page, x };
        strides = { by_page, by_head, page * x, x, 1 };
    } else {
        const int64_t x = group_of(s.v.dtype);
        shape = { layer.n_pages, heads, page / x, dim, x };
        strides = { by_page, by_head, dim * x, x, 1 };
    }
    for (size_t i = 0; is_blocks(s, is_v) && i + 1 < shape.size(); i++) {
        strides[i] = strides[i] / 32 * 18;
    }
    shape.back() = is_blocks(s, is_v) ? dim / 32 * 18 : shape.back();
}

PoolArray pages_of(const std::shared_ptr<Layer> &self, bool is_v)
{
    const oct_kv_layer &layer = self->layer;
    PoolArray a;
    a.data = is_v ? layer.v : layer.k;
    pages_shape(layer, is_v, a.shape, a.strides);
    a.raw = is_blocks(layer.spec, is_v);
    a.dtype = a.raw ? (uint32_t)OCT_DTYPE_I8 : is_v ? layer.spec.v.dtype : layer.spec.k.dtype;
    a.device = self->context->device;
    a.owner = nb::cast(self);
    return a;
}

nb::object token_scales_of(const std::shared_ptr<Layer> &self, bool is_v)
{
    const oct_kv_layer &layer = self->layer;
    void *data = is_v ? layer.v_token_scale : layer.k_token_scale;
    if (data == nullptr) {
        return nb::none();
    }
    PoolArray a;
    a.data = data;
    a.shape = { layer.n_pages, layer.spec.page_size, layer.spec.heads };
    a.strides = { is_v ? layer.v_scale_page_stride : layer.k_scale_page_stride, layer.spec.heads, 1 };
    a.dtype = is_v ? layer.spec.v.scale_dtype : layer.spec.k.scale_dtype;
    a.raw = false;
    a.device = self->context->device;
    a.owner = nb::cast(self);
    return nb::cast(a);
}

/* How many numbers a static scale has, and the shapes it may come in. */
int64_t scale_count(const oct_kv_format &f, const oct_kv_spec &s, bool is_v)
{
    switch (f.scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER: return 1;
    case OCT_SCALE_LAYER_HEAD: return s.heads;
    case OCT_SCALE_CHANNEL: return (int64_t)s.heads * (is_v ? s.dim_v : s.dim_k);
    default: return 0;
    }
}

void want_scale_shape(const Array &a, int64_t n)
{
    int64_t size = 1;
    for (int i = 0; i < a.ndim(); i++) {
        size *= a.shape(i);
    }
    if (size != n) {
        refuse(a.name(), "is %s; must hold %lld numbers", a.text().c_str(), (long long)n);
    }
    a.want_int(DL_FLOAT, 32);
    a.want_contiguous();
}

bool is_number(nb::handle h) { return PyFloat_Check(h.ptr()) || PyLong_Check(h.ptr()); }

void set_scale(Pool &pool, uint32_t layer, nb::handle given, uint32_t which)
{
    if (given.is_none()) {
        return;
    }
    oct_error error = OCT_ERROR_INIT;
    if (is_number(given)) {
        const float one = (float)nb::cast<double>(given);
        check(oct_kv_pool_set_scale(pool.pool, layer, which, &one, 1, &error), error);
        return;
    }
    const Array a(given, which ? "v" : "k", Device(), nullptr);
    const int64_t n = scale_count(which ? pool.spec.v : pool.spec.k, pool.spec, which != 0);
    if (n > 0) {
        want_scale_shape(a, n);
    }
    check(oct_kv_pool_set_scale(pool.pool, layer, which, (const float *)a.data(), (size_t)n, &error), error);
}

/* One operand of a layer made by hand. */
void take_pages(Layer &l, nb::handle given, bool is_v)
{
    auto a = std::make_unique<Array>(given, is_v ? "v" : "k", l.context->device, nullptr);
    oct_kv_layer &layer = l.layer;
    const oct_kv_spec &s = layer.spec;
    std::vector<int64_t> shape, strides;
    if (!is_v) {
        layer.n_pages = a->ndim() > 0 ? a->shape(0) : 0;
    }
    pages_shape(layer, is_v, shape, strides);
    a->want_dtype(is_blocks(s, is_v) ? (uint32_t)OCT_DTYPE_I8 : is_v ? s.v.dtype : s.k.dtype);
    a->want_writable();
    if (s.layout == OCT_LAYOUT_V5D) {
        a->want_shape({ shape[0], shape[1], shape[2], shape[3], shape[4] });
        a->want_contiguous(2);
    } else {
        a->want_shape({ shape[0], shape[1], shape[2], shape[3] });
        a->want_contiguous(3);
    }
    const int token = s.layout == OCT_LAYOUT_NHD ? 1 : 2, head = s.layout == OCT_LAYOUT_NHD ? 2 : 1;
    (is_v ? layer.v : layer.k) = a->data();
    const auto elements = [&](int axis) -> int64_t {
        const int64_t stride = a->stride(axis);
        if (is_blocks(s, is_v) && stride % 18 != 0) {
            refuse("v", "has a stride of %lld bytes; must be of whole blocks of v4, 18 bytes", (long long)stride);
        }
        return is_blocks(s, is_v) ? stride / 18 * 32 : stride;
    };
    (is_v ? layer.v_page_stride : layer.k_page_stride) = elements(0);
    (is_v ? layer.v_head_stride : layer.k_head_stride) = elements(head);
    if (s.layout != OCT_LAYOUT_V5D) {
        (is_v ? layer.v_token_stride : layer.k_token_stride) = elements(token);
    }
    l.arrays.push_back(std::move(a));
}

void take_scales(Layer &l, nb::handle scale, nb::handle token_scale, bool is_v)
{
    oct_kv_layer &layer = l.layer;
    const oct_kv_format &f = is_v ? layer.spec.v : layer.spec.k;
    const char *name = is_v ? "v_scale" : "k_scale", *token_name = is_v ? "v_token_scale" : "k_token_scale";
    const int64_t n = scale_count(f, layer.spec, is_v);
    if (scale.is_none() != (n == 0)) {
        refuse(name, "scale mode \"%s\" takes %s", scale_modes[f.scale_mode], n == 0 ? "none: a number that nobody reads" : "one");
    }
    if (!scale.is_none() && is_number(scale) && !l.context->device.gpu()) {
        std::vector<float> &own = is_v ? l.v_scale : l.k_scale;
        own.assign((size_t)n, (float)nb::cast<double>(scale));
        (is_v ? layer.v_scale : layer.k_scale) = own.data();
    } else if (!scale.is_none()) {
        auto a = std::make_unique<Array>(scale, name, l.context->device, nullptr);
        want_scale_shape(*a, n);
        (is_v ? layer.v_scale : layer.k_scale) = (const float *)a->data();
        l.arrays.push_back(std::move(a));
    }
    const bool dynamic = f.scale_mode == OCT_SCALE_TOKEN_HEAD;
    if (token_scale.is_none() == dynamic) {
        refuse(token_name, "scale mode \"%s\" takes %s", scale_modes[f.scale_mode], dynamic ? "one" : "none");
    }
    if (dynamic) {
        auto a = std::make_unique<Array>(token_scale, token_name, l.context->device, nullptr);
        a->want_dtype(f.scale_dtype);
        a->want_shape({ layer.n_pages, (int64_t)layer.spec.page_size, (int64_t)layer.spec.heads });
        a->want_contiguous(1);
        a->want_writable();
        (is_v ? layer.v_token_scale : layer.k_token_scale) = a->data();
        (is_v ? layer.v_scale_page_stride : layer.k_scale_page_stride) = a->stride(0);
        l.arrays.push_back(std::move(a));
    }
}

struct Rope {
    oct_rope rope = {};
    std::unique_ptr<Array> factors;
    ContextPtr context;
};

nb::dict counts_of(const std::vector<oct_kv_counts> &all)
{
    oct_kv_counts sum = {};
    for (const oct_kv_counts &c : all) {
        sum.n_values += c.n_values;
        sum.n_saturated += c.n_saturated;
        sum.n_nan += c.n_nan;
        sum.amax = c.amax > sum.amax ? c.amax : sum.amax;
    }
    nb::dict d;
    d["values"] = sum.n_values;
    d["saturated"] = sum.n_saturated;
    d["nan"] = sum.n_nan;
    d["amax"] = sum.amax;
    return d;
}

nb::object kv_write(const Layer &kv, nb::handle k, nb::handle v, nb::handle slots, const Layer *window, nb::handle slots_window, const Rope *rope,
                    nb::handle positions, std::optional<bool> checked, bool counts, nb::handle refused, nb::handle stream_given)
{
    const char *where = "kv_write";
    const Device &device = kv.context->device;
    const oct_kv_spec &spec = kv.layer.spec;
    Stream stream = stream_of(stream_given, device);
    const Array ak(k, "k", device, &stream), av(v, "v", device, &stream), as(slots, "slots", device, &stream);
    std::optional<Array> aw, ap, ar;
    as.want_int(DL_INT, 32);
    as.want_shape({ -1 });
    as.want_contiguous();
    const int64_t n = as.shape(0);
    ak.want_shape({ -1, (int64_t)spec.heads, (int64_t)spec.dim_k });
    av.want_shape({ -1, (int64_t)spec.heads, (int64_t)spec.dim_v });
    ak.want_contiguous(2);
    av.want_contiguous(2);
    if (ak.shape(0) < n || av.shape(0) < n) {
        refuse(where, "slots has %lld entries, k %lld and v %lld rows; each slot needs a row", (long long)n, (long long)ak.shape(0), (long long)av.shape(0));
    }
    oct_kv_write_args args = {};
    args.struct_size = sizeof(args);
    args.src_dtype = ak.float_dtype();
    if (args.src_dtype == 0 || args.src_dtype != av.float_dtype()) {
        refuse(where, "k is %s, v is %s; must be of one type: float32, float16 or bfloat16", ak.text().c_str(), av.text().c_str());
    }
    if (window != nullptr) {
        if (window->context != kv.context) {
            refuse(where, "kv and kv_window belong to two contexts");
        }
        aw.emplace(slots_window, "slots_window", device, &stream);
        aw->want_int(DL_INT, 32);
        aw->want_shape({ n });
        aw->want_contiguous();
        args.layer_window = &window->layer;
        args.slots_window = (const int32_t *)aw->data();
    } else if (!slots_window.is_none()) {
        refuse(where, "slots_window is given without kv_window");
    }
    if ((rope != nullptr) == positions.is_none()) {
        refuse(where, "rope and positions go together");
    }
    if (rope != nullptr) {
        const Device there = rope->factors != nullptr ? rope->factors->device() : device;
        if (!reaches(device, there)) {
            refuse(where, "rope's factors lie on %s; kv is on %s", there.text().c_str(), device.text().c_str());
        }
        ap.emplace(positions, "positions", device, &stream);
        ap->want_int(DL_INT, 32);
        ap->want_shape({ n });
        ap->want_contiguous();
        args.rope = &rope->rope;
        args.positions = (const int32_t *)ap->data();
    }
    if (!refused.is_none()) {
        ar.emplace(refused, "refused", device, &stream);
        ar->want_int(DL_UINT, 32);
        ar->want_shape({ 1 });
        ar->want_writable();
        args.refused = (uint32_t *)ar->data();
    }
    std::vector<oct_kv_counts> k_counts, v_counts;
    if (counts) {
        if (device.gpu()) {
            raise(OCT_UNSUPPORTED, "counts of a GPU's write lie in its memory; they are not read from Python", where);
        }
        k_counts.resize(kv.context->n_threads);
        v_counts.resize(kv.context->n_threads);
        args.k_counts = k_counts.data();
        args.v_counts = v_counts.data();
        args.n_counts = kv.context->n_threads;
    }
    args.checked = checked.value_or(device.gpu() ? args.refused != nullptr : true);
    args.layer = &kv.layer;
    args.slots = (const int32_t *)as.data();
    args.n_tokens = n;
    args.k = ak.data();
    args.v = av.data();
    args.k_token_stride = ak.stride(0);
    args.k_head_stride = ak.stride(1);
    args.v_token_stride = av.stride(0);
    args.v_head_stride = av.stride(1);
    args.stream = stream.handle;
    forget_log();
    oct_status status;
    {
        nb::gil_scoped_release unlocked;
        status = oct_kv_write(kv.context->context, &args);
    }
    if (status != OCT_OK) {
        raise_logged(status, "oct_kv_write");
    }
    if (!counts) {
        return nb::none();
    }
    nb::dict both;
    both["k"] = counts_of(k_counts);
    both["v"] = counts_of(v_counts);
    return both;
}

std::string write_explain(const Spec &spec, nb::handle src_dtype, uint32_t format, const ContextPtr &given)
{
    const ContextPtr context = context_or_default(given);
    const uint32_t dtype = dtype_of(src_dtype, "src_dtype");
    std::string text(oct_kv_write_explain(context->context, &spec.spec, dtype, format, nullptr, 0), 0);
    oct_kv_write_explain(context->context, &spec.spec, dtype, format, text.data(), text.size() + 1);
    return text;
}

/* Both structs are of uint32_t alone: no bytes between them that nobody sets. */
static_assert(sizeof(oct_kv_format) == 4 * sizeof(uint32_t) && sizeof(oct_kv_spec) == 6 * sizeof(uint32_t) + 2 * sizeof(oct_kv_format), "padding is compared");

template <typename Whole, typename Part> bool same(const Part &a, nb::handle given, Part Whole::*part)
{
    Whole *b;
    return nb::try_cast<Whole *>(given, b) && b != nullptr && memcmp(&a, &(b->*part), sizeof(a)) == 0;
}

template <typename Part> Py_hash_t hash_of(const Part &part) { return nb::hash(nb::bytes((const char *)&part, sizeof(part))); }

std::string format_text(const oct_kv_format &f)
{
    std::string s = std::string("KVFormat(\"") + oct_dtype_name(f.dtype) + "\", \"" + scale_modes[f.scale_mode] + "\"";
    s += f.scale_dtype != 0 ? std::string(", scale_dtype=\"") + oct_dtype_name(f.scale_dtype) + "\"" : "";
    return s + (f.rotated ? ", rotated=True)" : ")");
}

}

uint32_t dtype_of(nb::handle given, const char *argument)
{
    static const struct { const char *name; uint32_t dtype; } names[] = {
        { "float32", OCT_DTYPE_F32 }, { "float16", OCT_DTYPE_F16 }, { "bfloat16", OCT_DTYPE_BF16 }, { "int8", OCT_DTYPE_I8 },
        { "float8_e4m3fn", OCT_DTYPE_E4M3FN }, { "float8_e4m3fnuz", OCT_DTYPE_E4M3FNUZ }, { "float8_e5m2", OCT_DTYPE_E5M2 },
        { "e4m3", OCT_DTYPE_E4M3FN }, { "fp8", OCT_DTYPE_E4M3FN }, { "fp8_e4m3", OCT_DTYPE_E4M3FN }, { "fp8_e5m2", OCT_DTYPE_E5M2 },
    };
    std::string name;
    if (PyType_Check(given.ptr()) && nb::hasattr(given, "__name__")) {
        name = nb::cast<std::string>(given.attr("__name__"));   /* numpy.float32, ml_dtypes.bfloat16 */
    } else {
        name = nb::cast<std::string>(nb::str(given));
    }
    const size_t dot = name.rfind('.');
    name = dot == std::string::npos ? name : name.substr(dot + 1);   /* torch.float8_e4m3fn */
    uint32_t dtype = oct_dtype_from_name(name.c_str());
    for (const auto &n : names) {
        dtype = name == n.name ? n.dtype : dtype;
    }
    if (dtype == 0) {
        refuse(argument, "is \"%s\"; must be f32, f16, bf16, e4m3fn, e4m3fnuz, e5m2, i8 or v4", name.c_str());
    }
    return dtype;
}

Pool::Pool(const Spec &given, uint32_t layers, int64_t pages, const ContextPtr &on) : context(context_or_default(on)), spec(given.spec), n_pages(pages), n_layers(layers)
{
    oct_kv_pool_options options = {};
    options.struct_size = sizeof(options);
    options.n_layers = layers;
    options.n_pages = pages;
    options.spec = spec;
    oct_error error = OCT_ERROR_INIT;
    check(oct_kv_pool_create(context->context, &options, &pool, &error), error);
}

void bind_kv(nb::module_ &m)
{
    nb::class_<Format>(m, "KVFormat",
                       "How K or V is kept: element type, where its scales come from, whether it is kept rotated.\n\n"
                       "dtype: \"f32\", \"f16\", \"bf16\", \"e4m3fn\", \"e4m3fnuz\", \"e5m2\", \"i8\" (also NumPy's, torch's and vLLM's names), \"v4\" (V only).\n"
                       "scale: \"none\", \"tensor\", \"layer\", \"layer_head\", \"token_head\" (computed by the write), \"channel\".\n"
                       "scale_dtype: of token_head scales, \"f16\" or \"f32\". rotated: by the Hadamard transform over the head dim.\n"
                       "real value = byte * scale. Source: include/octavo/kv.h, doc/NUMERICS.md.")
        .def("__init__", [](Format *self, nb::handle dtype, const std::string &scale, nb::handle scale_dtype, bool rotated) {
            const uint32_t mode = word_of(scale, scale_modes, 6, "scale");
            const uint32_t kept = mode != OCT_SCALE_TOKEN_HEAD && scale_dtype.is_none() ? 0 : scale_dtype.is_none() ? (uint32_t)OCT_DTYPE_F16 : dtype_of(scale_dtype, "scale_dtype");
            new (self) Format{ { dtype_of(dtype, "dtype"), mode, kept, rotated ? 1u : 0u } };
        }, nb::arg("dtype"), nb::arg("scale") = "none", nb::kw_only(), nb::arg("scale_dtype") = nb::none(), nb::arg("rotated") = false,
           nb::sig("def __init__(self, dtype: object, scale: str = \"none\", *, scale_dtype: object = None, rotated: bool = False) -> None"))
        .def_prop_ro("dtype", [](const Format &f) { return oct_dtype_name(f.format.dtype); })
        .def_prop_ro("scale", [](const Format &f) { return scale_modes[f.format.scale_mode]; })
        .def_prop_ro("rotated", [](const Format &f) { return f.format.rotated != 0; })
        .def("__eq__", [](const Format &a, nb::handle b) { return same(a.format, b, &Format::format); }, nb::arg("other").none())
        .def("__hash__", [](const Format &f) { return hash_of(f.format); })
        .def("__repr__", [](const Format &f) { return format_text(f.format); });

    nb::class_<Spec>(m, "KVSpec",
                     "What a pool and everything that reads it agree on.\n\n"
                     "heads: of KV. dim: of K, a multiple of 8 from 16 to 512; dim_v: of V, if it differs. page_size: tokens, 1 to 1024.\n"
                     "k, v: a KVFormat or the name of a dtype; v is like k if not given. layout: \"NHD\", \"HND\" or \"V5D\".\n"
                     "Raises InvalidArgument. Source: include/octavo/kv.h.")
        .def("__init__", [](Spec *self, uint32_t heads, uint32_t dim, std::optional<uint32_t> dim_v, uint32_t page_size, nb::handle k, nb::handle v,
                            const std::string &layout) {
            oct_kv_spec s = {};
            s.struct_size = sizeof(s);
            s.layout = word_of(layout, layouts, 3, "layout");
            s.heads = heads;
            s.dim_k = dim;
            s.dim_v = dim_v.value_or(dim);
            s.page_size = page_size;
            s.k = format_of(k, "k");
            s.v = v.is_none() ? s.k : format_of(v, "v");
            oct_error error = OCT_ERROR_INIT;
            check(oct_kv_spec_check(&s, &error), error);
            new (self) Spec{ s };
        }, nb::arg("heads"), nb::arg("dim"), nb::kw_only(), nb::arg("dim_v") = nb::none(), nb::arg("page_size") = 16, nb::arg("k") = "bf16", nb::arg("v") = nb::none(),
           nb::arg("layout") = "NHD",
           nb::sig("def __init__(self, heads: int, dim: int, *, dim_v: int | None = None, page_size: int = 16, k: object = \"bf16\", v: object = None, layout: str = \"NHD\") -> None"))
        .def_prop_ro("heads", [](const Spec &s) { return s.spec.heads; })
        .def_prop_ro("dim", [](const Spec &s) { return s.spec.dim_k; }, "Head dim of K.")
        .def_prop_ro("dim_v", [](const Spec &s) { return s.spec.dim_v; })
        .def_prop_ro("page_size", [](const Spec &s) { return s.spec.page_size; }, "Tokens.")
        .def_prop_ro("k", [](const Spec &s) { return Format{ s.spec.k }; })
        .def_prop_ro("v", [](const Spec &s) { return Format{ s.spec.v }; })
        .def_prop_ro("layout", [](const Spec &s) { return layouts[s.spec.layout]; })
        .def_prop_ro("page_bytes", [](const Spec &s) { return oct_kv_page_bytes(&s.spec); }, "Of one page of one layer: K, V and dynamic scales.")
        .def("__eq__", [](const Spec &a, nb::handle b) { return same(a.spec, b, &Spec::spec); }, nb::arg("other").none())
        .def("__hash__", [](const Spec &s) { return hash_of(s.spec); })
        .def("__repr__", [](const Spec &s) {
            return "KVSpec(heads=" + std::to_string(s.spec.heads) + ", dim=" + std::to_string(s.spec.dim_k) + ", dim_v=" + std::to_string(s.spec.dim_v) + ", page_size=" +
                std::to_string(s.spec.page_size) + ", k=" + format_text(s.spec.k) + ", v=" + format_text(s.spec.v) + ", layout=\"" + layouts[s.spec.layout] + "\")";
        });

    nb::class_<Layer>(m, "KVLayer",
                      "Where the pages of one layer lie: of a pool (KVPool.layer), or made here over arrays of yours, which it keeps alive.\n\n"
                      "k, v: writable, [pages, page_size, heads, dim] for NHD, [pages, heads, page_size, dim] for HND, for V5D K\n"
                      "[pages, heads, dim / x, page_size, x] and V [pages, heads, page_size / x, dim, x], x = 16 bytes of elements; outer strides are\n"
                      "free. 8-bit floats also as uint8, bf16 as uint16. k_scale, v_scale: by the scale mode, float32 of 1, heads or heads * dim\n"
                      "numbers on the context's device (a Python number on the CPU); read when a kernel runs. k_token_scale, v_token_scale: for\n"
                      "token_head, [pages, page_size, heads] of the scale's dtype. Raises InvalidArgument. Source: oct_kv_layer, include/octavo/kv.h.")
        .def(nb::new_([](const Spec &spec, nb::handle k, nb::handle v, nb::handle k_scale, nb::handle v_scale, nb::handle k_token_scale, nb::handle v_token_scale,
                         const ContextPtr &context) {
            auto l = std::make_shared<Layer>();
            l->context = context_or_default(context);
            oct_error error = OCT_ERROR_INIT;
            l->layer.struct_size = sizeof(l->layer);
            check(oct_kv_layer_init(&l->layer, &spec.spec, 1, &error), error);
            take_pages(*l, k, false);
            take_pages(*l, v, true);
            take_scales(*l, k_scale, k_token_scale, false);
            take_scales(*l, v_scale, v_token_scale, true);
            return l;
        }), nb::arg("spec"), nb::arg("k"), nb::arg("v"), nb::kw_only(), nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(),
             nb::arg("k_token_scale") = nb::none(), nb::arg("v_token_scale") = nb::none(), nb::arg("context") = nb::none())
        .def_prop_ro("spec", [](const Layer &l) { return Spec{ l.layer.spec }; })
        .def_prop_ro("n_pages", [](const Layer &l) { return l.layer.n_pages; })
        .def_prop_ro("k", [](const std::shared_ptr<Layer> &l) { return pages_of(l, false); }, "K's pages as a PoolArray, by layout as above.")
        .def_prop_ro("v", [](const std::shared_ptr<Layer> &l) { return pages_of(l, true); }, "V's pages as a PoolArray.")
        .def_prop_ro("k_token_scale", [](const std::shared_ptr<Layer> &l) { return token_scales_of(l, false); }, "[pages, page_size, heads], or None.")
        .def_prop_ro("v_token_scale", [](const std::shared_ptr<Layer> &l) { return token_scales_of(l, true); }, "[pages, page_size, heads], or None.");

    nb::class_<Pool>(m, "KVPool",
                     "Memory of the pages of all layers, zero-filled, on the context's device.\n\n"
                     "spec: a KVSpec. n_layers; n_pages: per layer. One writer at a time. Static scales start unset and must be set before layer().\n"
                     "Raises InvalidArgument, OutOfMemory. Source: include/octavo/kv.h.")
        .def(nb::new_([](const Spec &spec, uint32_t n_layers, int64_t n_pages, const ContextPtr &context) {
            return std::make_shared<Pool>(spec, n_layers, n_pages, context);
        }), nb::arg("spec"), nb::arg("n_layers"), nb::arg("n_pages"), nb::kw_only(), nb::arg("context") = nb::none())
        .def("set_scale", [](Pool &p, uint32_t layer, nb::handle k, nb::handle v) {
            set_scale(p, layer, k, 0);
            set_scale(p, layer, v, 1);
        }, nb::arg("layer"), nb::kw_only(), nb::arg("k") = nb::none(), nb::arg("v") = nb::none(),
             nb::sig("def set_scale(self, layer: int, *, k: object = None, v: object = None) -> None"),
             "Sets static scales of a layer: a number, or float32 of heads or [heads, dim] numbers, by the mode; each finite and > 0. Host memory. Mode\n"
             "\"tensor\": layer must be 0 and serves all. Raises InvalidArgument, which names layer, head and value.")
        .def("layer", [](const std::shared_ptr<Pool> &p, uint32_t layer) {
            auto l = std::make_shared<Layer>();
            l->context = p->context;
            l->pool = p;
            l->layer.struct_size = sizeof(l->layer);
            oct_error error = OCT_ERROR_INIT;
            check(oct_kv_pool_layer(p->pool, layer, &l->layer, &error), error);
            return l;
        }, nb::arg("layer"), "The view of one layer, which keeps the pool alive. Raises InvalidArgument where a static scale was never set.")
        .def("copy_page", [](Pool &p, int32_t source, int32_t target) {
            oct_status status;
            {
                nb::gil_scoped_release unlocked;
                status = oct_kv_pool_copy_page(p.pool, source, target);
            }
            if (status != OCT_OK) {
                raise(status, ("pages " + std::to_string(source) + " to " + std::to_string(target) + " of a pool of " + std::to_string(p.n_pages)).c_str(), "oct_kv_pool_copy_page");
            }
        }, nb::arg("source"), nb::arg("target"), "Copies one page in every layer, scales included (copy-on-write).")
        .def_prop_ro("spec", [](const Pool &p) { return Spec{ p.spec }; })
        .def_prop_ro("n_layers", [](const Pool &p) { return p.n_layers; })
        .def_prop_ro("n_pages", [](const Pool &p) { return p.n_pages; })
        .def_prop_ro("nbytes", [](const Pool &p) { return oct_kv_pool_bytes(p.pool); }, "Pages and scales of all layers.");

    nb::class_<Rope>(m, "Rope",
                     "RoPE that the write applies to K: theta_i = position * position_scale * base ** (-2 i / n_dims) / factors[i].\n\n"
                     "n_dims: rotated dims from the front, even. style: \"neox\" pairs (i, i + n / 2), \"normal\" pairs (2 i, 2 i + 1).\n"
                     "factors: float32[n_dims / 2] on the context's device, or None. Source: include/octavo/kv.h.")
        .def("__init__", [](Rope *self, uint32_t n_dims, float base, const std::string &style, float position_scale, nb::handle factors, const ContextPtr &context) {
            static const char *const styles[] = { "neox", "normal" };
            auto r = std::make_unique<Rope>();
            r->rope.struct_size = sizeof(oct_rope);
            r->rope.style = word_of(style, styles, 2, "style");
            r->rope.n_dims = n_dims;
            r->rope.base = base;
            r->rope.position_scale = position_scale;
            r->context = context;
            if (!factors.is_none()) {
                r->factors = std::make_unique<Array>(factors, "factors", context != nullptr ? context->device : Device(), nullptr);
                r->factors->want_int(DL_FLOAT, 32);
                r->factors->want_shape({ n_dims / 2 });
                r->factors->want_contiguous();
                r->rope.factors = (const float *)r->factors->data();
            }
            new (self) Rope(std::move(*r));
        }, nb::arg("n_dims"), nb::arg("base") = 10000.0f, nb::kw_only(), nb::arg("style") = "neox", nb::arg("position_scale") = 1.0f, nb::arg("factors") = nb::none(),
             nb::arg("context") = nb::none());

    m.def("kv_write", &kv_write, nb::arg("kv"), nb::arg("k"), nb::arg("v"), nb::arg("slots"), nb::kw_only(), nb::arg("kv_window") = nb::none(),
          nb::arg("slots_window") = nb::none(), nb::arg("rope") = nb::none(), nb::arg("positions") = nb::none(), nb::arg("checked") = nb::none(),
          nb::arg("counts") = false, nb::arg("refused") = nb::none(), nb::arg("stream") = nb::none(),
          nb::sig("def kv_write(kv: KVLayer, k: object, v: object, slots: object, *, kv_window: KVLayer | None = None, slots_window: object = None, "
                  "rope: Rope | None = None, positions: object = None, checked: bool | None = None, counts: bool = False, refused: object = None, "
                  "stream: object = None) -> dict[str, dict[str, float]] | None"),
          "Quantises K and V and stores them by slot, in one pass. On a GPU it enqueues.\n\n"
          "k: [>= tokens, heads, dim], v: [>= tokens, heads, dim_v], float32, float16 or bfloat16, last axis contiguous. slots: int32[tokens],\n"
          "page * page_size + offset; a negative one is skipped and its row not read. kv_window, slots_window: the second pool of a twin.\n"
          "rope, positions (int32[tokens]): RoPE on K before it is stored. checked: a slot beyond the pool raises and nothing is written (the\n"
          "CPU's default); otherwise it is skipped. On a GPU checked goes with refused, uint32[1] there. counts: returns for \"k\" and \"v\" how many\n"
          "\"values\", \"saturated\" and \"nan\" there were and their \"amax\" (CPU). stream: where a GPU's work goes; None: the arrays' own current one.\n"
          "Raises InvalidArgument, Unsupported, DeviceFault. Source: oct_kv_write, include/octavo/kv.h.");
    m.def("_write_explain", &write_explain, nb::arg("spec"), nb::arg("src_dtype"), nb::arg("format"), nb::arg("context") = nb::none());
}

}
