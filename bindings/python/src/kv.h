/* What Python holds of the library: contexts, specs, pools, layers. Each object keeps alive what it was made from. */
#ifndef OCTAVO_PYTHON_KV_H
#define OCTAVO_PYTHON_KV_H

#include <memory>
#include <vector>

#include "array.h"
#include "error.h"

namespace octavo_python {

struct Context {
    oct_context *context = nullptr;
    Device device;
    uint32_t n_threads = 1;

    Context(const char *device, uint32_t threads, const char *machine, const char *device_library);
    ~Context() { oct_context_destroy(context); }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
};
using ContextPtr = std::shared_ptr<Context>;

/* The CPU with all threads that the process may use: made when first needed. */
ContextPtr default_context();
ContextPtr context_or_default(const ContextPtr &context);

/* The words of the last failed call of this thread on a context, from its log; for calls that fill no oct_error. */
[[noreturn]] void raise_logged(oct_status status, const char *where);
void forget_log();

uint32_t dtype_of(nb::handle name, const char *argument);   /* "e4m3fn", "float8_e4m3fn", "fp8_e4m3", or a dtype of NumPy, torch, ml_dtypes */

struct Format {
    oct_kv_format format;
};

struct Spec {
    oct_kv_spec spec;
};

struct Pool {
    oct_kv_pool *pool = nullptr;
    ContextPtr context;
    oct_kv_spec spec;
    int64_t n_pages;
    uint32_t n_layers;

    Pool(const Spec &spec, uint32_t n_layers, int64_t n_pages, const ContextPtr &context);
    ~Pool() { oct_kv_pool_destroy(pool); }
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;
};

struct Layer {
    oct_kv_layer layer = {};
    ContextPtr context;
    std::shared_ptr<Pool> pool;                     /* a pool's layer */
    std::vector<std::unique_ptr<Array>> arrays;     /* or arrays of others */
    std::vector<float> k_scale, v_scale;            /* scales that were given as Python numbers */

    Layer() = default;
    Layer(const Layer &) = delete;
    Layer &operator=(const Layer &) = delete;
};

void bind_kv(nb::module_ &m);
void bind_page(nb::module_ &m);
void bind_attn(nb::module_ &m);

}
#endif
