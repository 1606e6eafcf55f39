/* The extension module octavo._octavo. */
#include "kv.h"

#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace octavo_python {
void bind_context(nb::module_ &m);
}

NB_MODULE(_octavo, m)
{
    nb::set_leak_warnings(false);   /* the library never prints; a compiled function of torch or a daemon thread may hold objects to the end */
    m.doc() = "The C library under the octavo package. Import octavo, which shows all of it.";
    octavo_python::bind_errors(m);
    m.def("_refuse", [](const std::string &where, const std::string &text) { octavo_python::raise(OCT_INVALID_ARGUMENT, text.c_str(), where.c_str()); });
    octavo_python::bind_array(m);
    octavo_python::bind_context(m);
    octavo_python::bind_kv(m);
    octavo_python::bind_page(m);
    octavo_python::bind_attn(m);
}
