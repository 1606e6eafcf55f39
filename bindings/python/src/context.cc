/* Contexts, and the words of calls that answer with a status only: the library writes them to the context's log, from the thread that calls. */
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "kv.h"

namespace octavo_python {

namespace {

thread_local std::string last_words;

void keep_words(void *, int level, const char *text)
{
    if (level == 0) {
        last_words = text;
    }
}

uint32_t usable_threads()
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

/* All texts are asked for like snprintf's: first how long, then again. */
template <typename Ask> std::string text_of(Ask ask)
{
    std::string text(ask(nullptr, 0), 0);
    ask(text.data(), text.size() + 1);
    return text;
}

}

void forget_log() { last_words.clear(); }

void raise_logged(oct_status status, const char *where)
{
    const std::string prefix = std::string(where) + ": ";
    std::string words = last_words;
    if (words.compare(0, prefix.size(), prefix) == 0) {
        words.erase(0, prefix.size());
    }
    raise(status, words.c_str(), where);
}

Context::Context(const char *device_name, uint32_t threads, const char *machine, const char *device_library)
{
    oct_context_options options = {};
    options.struct_size = sizeof(options);
    options.max_threads = threads > 0 ? threads : usable_threads();
    options.log = keep_words;
    options.device = device_name;
    options.device_library = device_library;
    options.machine = machine;
    oct_error error = OCT_ERROR_INIT;
    check(oct_context_create(&options, &context, &error), error);
    n_threads = options.max_threads;
    const char *colon = device_name != nullptr ? strchr(device_name, ':') : nullptr;
    if (device_name != nullptr && strncmp(device_name, "cuda", 4) == 0) {
        device = { DL_CUDA, colon != nullptr ? atoi(colon + 1) : 0 };
    } else if (device_name != nullptr && strncmp(device_name, "hip", 3) == 0) {
        device = { DL_ROCM, colon != nullptr ? atoi(colon + 1) : 0 };
    }
}

ContextPtr default_context()
{
    /* Never destroyed: its threads sleep until the process ends. A child made by fork has none of them, so it makes its own. */
    static ContextPtr *context = nullptr;
    static pid_t owner = 0;
    if (context == nullptr || owner != getpid()) {
        context = new ContextPtr(std::make_shared<Context>(nullptr, 0, nullptr, nullptr));
        owner = getpid();
    }
    return *context;
}

ContextPtr context_or_default(const ContextPtr &context) { return context != nullptr ? context : default_context(); }

void bind_context(nb::module_ &m);

void bind_context(nb::module_ &m)
{
    nb::class_<Context>(m, "Context",
                        "What computes, with how many threads. Immutable; any number of Python threads may use it at once.\n\n"
                        "device: \"cpu\", \"cuda\", \"cuda:1\", \"hip\", \"hip:0\". threads: of the CPU, 0 for all that the process may use.\n"
                        "machine: the name of a recorded machine (machines()), for plans that are explained and never run.\n"
                        "device_library: path of the driver's library. Contexts do not survive fork(): make them in the child.\n"
                        "Raises InvalidArgument, Unsupported (no such GPU or driver; the text says why), OutOfMemory, DeviceFault.\n"
                        "Source: include/octavo/context.h.")
        .def("__init__", [](Context *self, const std::string &device, uint32_t threads, const std::optional<std::string> &machine,
                            const std::optional<std::string> &library) {
            /* A recorded machine brings its own device. */
            new (self) Context(machine && device == "cpu" ? nullptr : device.c_str(), threads, machine ? machine->c_str() : nullptr, library ? library->c_str() : nullptr);
        }, nb::arg("device") = "cpu", nb::kw_only(), nb::arg("threads") = 0, nb::arg("machine") = nb::none(), nb::arg("device_library") = nb::none())
        .def_prop_ro("threads", [](const Context &c) { return c.n_threads; }, "Threads of a CPU context.")
        .def_prop_ro("device", [](const Context &c) { return c.device.text(); }, "\"cpu\", \"cuda:0\", \"hip:0\".")
        .def("_machine", [](const Context &c, uint32_t format) {
            return text_of([&](char *text, size_t size) { return oct_context_machine(c.context, format, text, size); });
        })
        .def("variants", [](const Context &c) {
            std::vector<std::string> names;
            for (uint32_t i = 0; oct_context_variant_name(c.context, i) != nullptr; i++) {
                names.push_back(oct_context_variant_name(c.context, i));
            }
            return names;
        }, "The names among which plans of this context choose: what force= and deny= take.");
    m.def("default_context", &default_context, "The CPU with all threads that the process may use: what calls without context= take.");
    m.def("machines", [] {
        std::vector<std::string> names;
        for (uint32_t i = 0; oct_machine_name(i) != nullptr; i++) {
            names.push_back(oct_machine_name(i));
        }
        return names;
    }, "The recorded machines that Context(machine=...) takes.");
    m.attr("__version__") = oct_version_string();
}

}
