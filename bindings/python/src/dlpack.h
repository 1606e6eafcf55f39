/* The structs by which array packages hand each other memory: DLPack's ABI 1.x, and its table of C functions (__dlpack_c_exchange_api__). Laid out
 * by others; see the DLPack documentation. */
#ifndef OCTAVO_PYTHON_DLPACK_H
#define OCTAVO_PYTHON_DLPACK_H

#include <cstdint>

namespace octavo_python {

struct dl_device { int32_t type, id; };
struct dl_type { uint8_t code, bits; uint16_t lanes; };
struct dl_tensor {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_type dtype;
    int64_t *shape, *strides;   /* strides NULL: C order */
    uint64_t byte_offset;
};
struct dl_managed {             /* before 1.0; capsule "dltensor" */
    dl_tensor tensor;
    void *manager;
    void (*deleter)(dl_managed *);
};
struct dl_managed_versioned {   /* capsule "dltensor_versioned" */
    uint32_t major, minor;
    void *manager;
    void (*deleter)(dl_managed_versioned *);
    uint64_t flags;             /* bit 0: read-only */
    dl_tensor tensor;
};

/* Attribute of a type: a capsule "dlpack_exchange_api". No call here synchronises: work goes to the package's current stream. */
struct dl_exchange {
    uint32_t major, minor;
    dl_exchange *previous;
    int (*allocate)(dl_tensor *, dl_managed_versioned **, void *, void (*)(void *, const char *, const char *));
    int (*managed_from_object)(void *, dl_managed_versioned **);
    int (*object_from_managed)(dl_managed_versioned *, void **);
    int (*tensor_from_object)(void *, dl_tensor *);   /* may be NULL */
    int (*current_stream)(int32_t type, int32_t id, void **stream);
};

}
#endif
