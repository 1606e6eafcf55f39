/* The extension module octavo._octavo. */
#include "kv.h"

namespace octavo_python {
void bind_context(nb::module_ &m);
}

NB_MODULE(_octavo, m)
{
    m.doc() = "The C library under the octavo package. Import octavo, which shows all of it.";
    octavo_python::bind_errors(m);
    octavo_python::bind_array(m);
    octavo_python::bind_context(m);
    octavo_python::bind_kv(m);
    octavo_python::bind_page(m);
    octavo_python::bind_attn(m);
}
