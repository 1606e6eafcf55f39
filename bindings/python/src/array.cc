/* How arrays come in and pages go out. What an object offers is looked up once a type; the GIL is held throughout. */
#include "array.h"

#include <cstdio>
#include <cstring>

#include "dlpack.h"
#include "error.h"

namespace octavo_python {

namespace {

const char *device_name(int32_t type)
{
    switch (type) {
    case DL_CPU: return "cpu";
    case DL_CUDA: return "cuda";
    case DL_CUDA_HOST: return "cuda_host";
    case DL_ROCM: return "hip";
    case DL_ROCM_HOST: return "hip_host";
    case DL_CUDA_MANAGED: return "cuda_managed";
    default: return "other device";
    }
}

const char *element_name(uint8_t code, uint8_t bits, char *text, size_t size)
{
    static const char *const names[] = { "int", "uint", "float", "opaque", "bfloat", "complex", "bool" };
    if (code == DL_E4M3FN || code == DL_E4M3FNUZ || code == DL_E5M2) {
        return code == DL_E4M3FN ? "float8_e4m3fn" : code == DL_E4M3FNUZ ? "float8_e4m3fnuz" : "float8_e5m2";
    }
    snprintf(text, size, "%s%d", code < 7 ? names[code] : "unknown", bits);
    return text;
}

struct Code { uint32_t dtype; uint8_t code, bits; };
const Code codes[] = {
    { OCT_DTYPE_F32, DL_FLOAT, 32 },     { OCT_DTYPE_F16, DL_FLOAT, 16 },         { OCT_DTYPE_BF16, DL_BFLOAT, 16 }, { OCT_DTYPE_E4M3FN, DL_E4M3FN, 8 },
    { OCT_DTYPE_E4M3FNUZ, DL_E4M3FNUZ, 8 }, { OCT_DTYPE_E5M2, DL_E5M2, 8 },         { OCT_DTYPE_I8, DL_INT, 8 },
};

Code code_of(uint32_t dtype)
{
    for (const Code &c : codes) {
        if (c.dtype == dtype) {
            return c;
        }
    }
    return { 0, 0, 0 };
}

/* What the objects of a type offer, looked up once: attribute look-ups that fail cost more than a call's whole budget. */
struct Door {
    PyTypeObject *type;
    const dl_exchange *exchange;
    bool buffer;
};

const Door &door_of(PyObject *object)
{
    static Door doors[16];
    static int n_doors = 0;
    static Door other;
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < n_doors; i++) {
        if (doors[i].type == type) {
            return doors[i];
        }
    }
    Door door = { type, nullptr, PyObject_CheckBuffer(object) != 0 };
    if (!door.buffer) {
        PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
        if (capsule != nullptr) {
            door.exchange = (const dl_exchange *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
            Py_DECREF(capsule);
            while (door.exchange != nullptr && door.exchange->major != 1) {
                door.exchange = door.exchange->previous;
            }
        }
        PyErr_Clear();
    }
    if (n_doors < 16) {
        Py_INCREF((PyObject *)type);   /* the address stays this type's */
        doors[n_doors] = door;
        return doors[n_doors++];
    }
    other = door;
    return other;
}

/* str() of an attribute; "" where there is none. */
std::string attribute_text(nb::handle object, const char *name)
{
    nb::object text = nb::steal(PyObject_GetAttrString(object.ptr(), name));
    text = text.is_valid() ? nb::steal(PyObject_Str(text.ptr())) : text;
    const char *words = text.is_valid() ? PyUnicode_AsUTF8AndSize(text.ptr(), nullptr) : nullptr;
    PyErr_Clear();
    return words != nullptr ? words : "";
}

/* Whether an object whose buffer is refused, or holds elements that no buffer can name, lends its memory by DLPack: jax's arrays do. NumPy's own do
 * not for the types that its buffers lack. */
bool other_door(nb::handle object)
{
    static PyObject *const ndarray = nb::object(nb::module_::import_("numpy").attr("ndarray")).release().ptr();   /* for the life of the process */
    return !nb::isinstance(object, nb::handle(ndarray)) && nb::hasattr(object, "__dlpack__");
}

struct Format { char letter; uint8_t code; };
const Format formats[] = {
    { 'f', DL_FLOAT }, { 'e', DL_FLOAT }, { 'd', DL_FLOAT }, { 'b', DL_INT },  { 'B', DL_UINT }, { 'h', DL_INT },  { 'H', DL_UINT },
    { 'i', DL_INT },   { 'I', DL_UINT },  { 'l', DL_INT },   { 'L', DL_UINT }, { 'q', DL_INT },  { 'Q', DL_UINT }, { '?', 6 },
};

}

bool reaches(const Device &from, const Device &memory)
{
    if (memory.type == DL_CUDA_MANAGED) {
        return from.type == DL_CPU || from.type == DL_CUDA;
    }
    if (!from.gpu()) {
        return memory.type == DL_CPU || memory.type == DL_CUDA_HOST || memory.type == DL_ROCM_HOST;
    }
    return memory.type == from.type && memory.id == from.id;
}

std::string Device::text() const
{
    return gpu() ? std::string(device_name(type)) + ":" + std::to_string(id) : device_name(type);
}

Stream stream_of(nb::handle stream, const Device &device)
{
    Stream s;
    if (stream.is_none()) {
        return s;
    }
    if (!device.gpu()) {
        refuse("stream", "a stream is given, but the context computes on the CPU");
    }
    nb::object number;
    if (PyLong_Check(stream.ptr())) {
        number = nb::borrow(stream);
    } else if (nb::hasattr(stream, "cuda_stream")) {
        number = stream.attr("cuda_stream");
    } else if (nb::hasattr(stream, "ptr")) {
        number = stream.attr("ptr");
    } else if (nb::hasattr(stream, "__cuda_stream__")) {
        number = stream.attr("__cuda_stream__")()[1];
    } else {
        throw nb::type_error("stream: must be None, an integer, or a stream of torch or cupy");
    }
    s.handle = PyLong_AsVoidPtr(number.ptr());
    if (PyErr_Occurred()) {
        throw nb::python_error();
    }
    s.given = true;
    return s;
}

Array::Array(nb::handle object, const char *name, const Device &device, Stream *stream) : name_(name)
{
    try {
        const Door &door = door_of(object.ptr());
        if (door.buffer && take_buffer(object)) {
            /* its memory is lent until release() */
        } else if (!(door.exchange != nullptr && (!device.gpu() || stream == nullptr || !stream->given) && take_exchange(object, stream))) {
            take_dlpack(object, device, stream);
        }
        if (!reaches(device, device_)) {
            refuse(name, "lies on %s; the context computes on %s", device_.text().c_str(), device.text().c_str());
        }
    } catch (...) {
        release();   /* no destructor runs for what was never made */
        throw;
    }
}

void Array::release()
{
    if (has_buffer_) {
        PyBuffer_Release(&buffer_);
        has_buffer_ = false;
    }
    if (managed_ != nullptr) {
        if (versioned_) {
            auto *managed = (dl_managed_versioned *)managed_;
            if (managed->deleter != nullptr) {
                managed->deleter(managed);
            }
        } else {
            auto *managed = (dl_managed *)managed_;
            if (managed->deleter != nullptr) {
                managed->deleter(managed);
            }
        }
        managed_ = nullptr;
    }
}

bool Array::take_buffer(nb::handle object)
{
    nb::object bits;
    const char *special = nullptr;
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_RECORDS_RO) != 0) {
        PyErr_Clear();
        if (other_door(object)) {
            return false;
        }
        /* NumPy lends no array of ml_dtypes' types; its bits it does. */
        static const struct { const char *name, *view; uint8_t code, bits; } others[] = {
            { "bfloat16", "uint16", DL_BFLOAT, 16 },
            { "float8_e4m3fn", "uint8", DL_E4M3FN, 8 },
            { "float8_e4m3fnuz", "uint8", DL_E4M3FNUZ, 8 },
            { "float8_e5m2", "uint8", DL_E5M2, 8 },
        };
        const std::string dtype = attribute_text(object, "dtype");
        for (const auto &o : others) {
            if (dtype == o.name) {
                bits = object.attr("view")(o.view);
                special = o.name;
                code_ = o.code;
                bits_ = o.bits;
            }
        }
        if (special == nullptr) {
            PyErr_Format(PyExc_TypeError, "%s: arrays of dtype %s are not taken", name_, dtype.empty() ? "unknown" : dtype.c_str());
            throw nb::python_error();
        }
        if (PyObject_GetBuffer(bits.ptr(), &buffer_, PyBUF_RECORDS_RO) != 0) {
            throw nb::python_error();
        }
    }
    has_buffer_ = true;
    data_ = buffer_.buf;
    ndim_ = buffer_.ndim;
    readonly_ = buffer_.readonly != 0;
    const char *format = buffer_.format != nullptr ? buffer_.format : "B";
    if (*format == '@' || *format == '=' || *format == '<') {
        format++;
    }
    if (special == nullptr) {
        bits_ = (uint8_t)(buffer_.itemsize * 8);
        code_ = 255;
        for (const Format &f : formats) {
            if (f.letter == format[0] && format[1] == 0) {
                code_ = f.code;
            }
        }
    }
    if (code_ == 255 && other_door(object)) {
        release();
        readonly_ = false;
        return false;
    }
    if (code_ == 255 || ndim_ > max_ndim) {
        PyErr_Format(PyExc_TypeError, code_ == 255 ? "%s: elements of format '%s' are not taken" : "%s: more than 8 axes", name_, format);
        throw nb::python_error();
    }
    int64_t step = buffer_.itemsize;
    for (int i = ndim_ - 1; i >= 0; i--) {
        shape_[i] = buffer_.shape[i];
        const int64_t stride = buffer_.strides != nullptr ? buffer_.strides[i] : step;   /* ctypes tells none */
        if (stride % buffer_.itemsize != 0) {
            refuse(name_, "its strides are no multiples of its elements");
        }
        stride_[i] = stride / buffer_.itemsize;
        step *= shape_[i];
    }
    return true;
}

static void take_tensor(const dl_tensor &t, void **data, int64_t *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int i = t.ndim - 1; i >= 0; i--) {
        shape[i] = t.shape[i];
        stride[i] = t.strides != nullptr ? t.strides[i] : step;
        step *= shape[i];
    }
    *data = (char *)t.data + t.byte_offset;
}

bool Array::take_exchange(nb::handle object, Stream *stream)
{
    const dl_exchange *api = door_of(object.ptr()).exchange;
    dl_tensor tensor = {};
    if (api->tensor_from_object == nullptr) {
        return false;
    }
    if (api->tensor_from_object(object.ptr(), &tensor) != 0) {
        throw nb::python_error();
    }
    if (tensor.ndim > max_ndim || tensor.dtype.lanes != 1) {
        throw nb::type_error("an array of more than 8 axes, or of vectors, is not taken");
    }
    take_tensor(tensor, &data_, shape_, stride_);
    ndim_ = tensor.ndim;
    code_ = tensor.dtype.code;
    bits_ = tensor.dtype.bits;
    device_ = { tensor.device.type, tensor.device.id };
    keep_ = nb::borrow(object);
    if (device_.gpu() && stream != nullptr && !stream->given && api->current_stream(device_.type, device_.id, &stream->handle) != 0) {
        throw nb::python_error();
    }
    return true;
}

void Array::take_dlpack(nb::handle object, const Device &device, const Stream *stream)
{
    if (!nb::hasattr(object, "__dlpack__")) {
        PyErr_Format(PyExc_TypeError, "%s: must be an array (NumPy, or with __dlpack__), not %s", name_, nb::type_name(object.type()).c_str());
        throw nb::python_error();
    }
    nb::dict arguments;
    if (device.gpu() && nb::cast<int>(object.attr("__dlpack_device__")()[0]) != DL_CPU) {
        /* The producer makes this stream wait for what it has enqueued. 1 is CUDA's default stream, 0 HIP's. */
        void *handle = stream != nullptr ? stream->handle : nullptr;
        arguments["stream"] = handle != nullptr ? nb::steal(PyLong_FromVoidPtr(handle)) : nb::object(nb::int_(device.type == DL_CUDA ? 1 : 0));
    }
    nb::object capsule;
    arguments["max_version"] = nb::make_tuple(1, 1);
    try {
        capsule = object.attr("__dlpack__")(**arguments);
    } catch (nb::python_error &error) {
        if (!error.matches(PyExc_TypeError)) {
            throw;
        }
        nb::del(arguments["max_version"]);   /* a producer from before 1.0 */
        capsule = object.attr("__dlpack__")(**arguments);
    }
    versioned_ = PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0;
    void *managed = PyCapsule_GetPointer(capsule.ptr(), versioned_ ? "dltensor_versioned" : "dltensor");
    if (managed == nullptr) {
        throw nb::python_error();
    }
    const dl_tensor &tensor = versioned_ ? ((dl_managed_versioned *)managed)->tensor : ((dl_managed *)managed)->tensor;
    if (tensor.ndim > max_ndim || tensor.dtype.lanes != 1 || (versioned_ && ((dl_managed_versioned *)managed)->major != 1)) {
        throw nb::type_error("an array of more than 8 axes, of vectors, or of a newer DLPack is not taken");
    }
    if (PyCapsule_SetName(capsule.ptr(), versioned_ ? "used_dltensor_versioned" : "used_dltensor") != 0) {
        throw nb::python_error();
    }
    managed_ = managed;
    readonly_ = versioned_ && (((dl_managed_versioned *)managed)->flags & 1) != 0;
    take_tensor(tensor, &data_, shape_, stride_);
    ndim_ = tensor.ndim;
    code_ = tensor.dtype.code;
    bits_ = tensor.dtype.bits;
    device_ = { tensor.device.type, tensor.device.id };
}

std::string Array::text() const
{
    char element[24];
    std::string s = element_name(code_, bits_, element, sizeof(element));
    s += "[";
    for (int i = 0; i < ndim_; i++) {
        s += (i > 0 ? ", " : "") + std::to_string(shape_[i]);
    }
    return s + "]";
}

void Array::want_shape(std::initializer_list<int64_t> shape) const
{
    bool fits = (int)shape.size() == ndim_;
    int axis = 0;
    std::string wanted;
    for (int64_t n : shape) {
        fits = fits && (n < 0 || n == shape_[axis]);
        wanted += (axis++ > 0 ? ", " : "") + (n < 0 ? std::string("any") : std::to_string(n));
    }
    if (!fits) {
        refuse(name_, "is %s; its shape must be [%s]", text().c_str(), wanted.c_str());
    }
}

void Array::want_dtype(uint32_t dtype) const
{
    const Code wanted = code_of(dtype);
    const bool same = code_ == wanted.code && bits_ == wanted.bits;
    if (!same && !(code_ == DL_UINT && bits_ == wanted.bits && wanted.bits < 32)) {
        refuse(name_, "is %s; its elements must be %s%s", text().c_str(), oct_dtype_name(dtype),
               wanted.bits == 8 ? " (or their bits as uint8)" : wanted.bits == 16 ? " (or their bits as uint16)" : "");
    }
}

void Array::want_int(uint8_t code, uint8_t bits) const
{
    if (code_ != code || bits_ != bits) {
        char element[24];
        refuse(name_, "is %s; its elements must be %s", text().c_str(), element_name(code, bits, element, sizeof(element)));
    }
}

void Array::want_contiguous(int from_axis) const
{
    int64_t step = 1;
    for (int i = ndim_ - 1; i >= from_axis; i--) {
        if (shape_[i] != 1 && stride_[i] != step) {
            refuse(name_, "is %s with a stride of %lld in axis %d; must be %lld (contiguous)", text().c_str(), (long long)stride_[i], i, (long long)step);
        }
        step *= shape_[i];
    }
}

void Array::want_writable() const
{
    if (readonly_) {
        refuse(name_, "is read-only; it is written");
    }
}

uint32_t Array::float_dtype() const
{
    if (code_ == DL_FLOAT && (bits_ == 32 || bits_ == 16)) {
        return bits_ == 32 ? OCT_DTYPE_F32 : OCT_DTYPE_F16;
    }
    return code_ == DL_BFLOAT && bits_ == 16 ? OCT_DTYPE_BF16 : 0;
}

/* ---- pages as others see them ---- */

namespace {

struct Export {
    union {
        dl_managed plain;
        dl_managed_versioned versioned;
    } managed;
    std::vector<int64_t> shape, strides;
    nb::object owner;
};

void give_back(Export *e)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    delete e;
    PyGILState_Release(state);
}

void capsule_dies(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        auto *managed = (dl_managed_versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
        managed->deleter(managed);
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        auto *managed = (dl_managed *)PyCapsule_GetPointer(capsule, "dltensor");
        managed->deleter(managed);
    }
}

}

nb::object PoolArray::dlpack(nb::handle max_version, nb::handle dl_device, nb::handle copy) const
{
    const bool copied = !copy.is_none() && nb::cast<bool>(nb::bool_(copy));
    if (copied || (!dl_device.is_none() && (nb::cast<int32_t>(dl_device[0]) != device.type || nb::cast<int32_t>(dl_device[1]) != device.id))) {
        throw nb::buffer_error("pages are lent where they lie; copy the array that you get");
    }
    const Code c = code_of(dtype);
    const bool versioned = !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1;
    auto *e = new Export{ {}, shape, strides, owner };
    dl_tensor tensor = { data, { device.type, device.id }, (int32_t)shape.size(), { raw ? (uint8_t)DL_UINT : c.code, c.bits, 1 }, e->shape.data(), e->strides.data(), 0 };
    PyObject *capsule;
    if (versioned) {
        e->managed.versioned = { 1, 1, e, [](dl_managed_versioned *m) { give_back((Export *)m->manager); }, 0, tensor };
        capsule = PyCapsule_New(&e->managed.versioned, "dltensor_versioned", capsule_dies);
    } else {
        e->managed.plain = { tensor, e, [](dl_managed *m) { give_back((Export *)m->manager); } };
        capsule = PyCapsule_New(&e->managed.plain, "dltensor", capsule_dies);
    }
    if (capsule == nullptr) {
        delete e;
        throw nb::python_error();
    }
    return nb::steal(capsule);
}

nb::dict PoolArray::interface() const
{
    if (device.gpu()) {
        PyErr_SetString(PyExc_AttributeError, "memory of a GPU has no __array_interface__; take it by __dlpack__");
        throw nb::python_error();
    }
    const Code c = code_of(dtype);
    const uint32_t size = oct_dtype_size_bytes(dtype);
    const bool number = !raw && (c.code == DL_FLOAT || c.code == DL_INT);
    const std::string type = std::string(size == 1 ? "|" : "<") + (number ? c.code == DL_FLOAT ? "f" : "i" : "u") + std::to_string(size);
    nb::list dims, steps;
    for (size_t i = 0; i < shape.size(); i++) {
        dims.append(shape[i]);
        steps.append(strides[i] * size);
    }
    nb::dict d;
    d["shape"] = nb::tuple(dims);
    d["strides"] = nb::tuple(steps);
    d["typestr"] = type;
    d["data"] = nb::make_tuple(nb::steal(PyLong_FromVoidPtr(data)), false);
    d["version"] = 3;
    return d;
}

void bind_array(nb::module_ &m)
{
    nb::class_<PoolArray>(m, "PoolArray",
                          "Memory of a pool, seen without a copy: numpy.asarray(a), torch.from_dlpack(a). It keeps the pool alive.\n\n"
                          "NumPy, which has no 8-bit floats and no bf16, sees their bits as uint8 and uint16; DLPack gives 8-bit floats by their codes of\n"
                          "DLPack 1.1 unless the array is bits(). On a GPU the reader orders himself after whoever writes. __dlpack__ with copy=True or another\n"
                          "dl_device= raises BufferError: copy the array that you get.")
        .def("__dlpack__", [](const PoolArray &a, nb::handle, nb::handle max_version, nb::handle dl_device, nb::handle copy) { return a.dlpack(max_version, dl_device, copy); },
             nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
        .def("__dlpack_device__", [](const PoolArray &a) { return nb::make_tuple(a.device.type, a.device.id); })
        .def_prop_ro("__array_interface__", &PoolArray::interface)
        .def_prop_ro("shape", [](const PoolArray &a) {
            nb::list dims;
            for (int64_t n : a.shape) {
                dims.append(n);
            }
            return nb::tuple(dims);
        }, nb::sig("def shape(self) -> tuple[int, ...]"))
        .def_prop_ro("dtype", [](const PoolArray &a) { return a.raw ? (oct_dtype_size_bytes(a.dtype) == 1 ? "uint8" : "uint16") : oct_dtype_name(a.dtype); },
                     "\"f32\", \"f16\", \"bf16\", \"e4m3fn\", \"e4m3fnuz\", \"e5m2\", \"i8\", or \"uint8\", \"uint16\" for bits")
        .def("bits", [](const PoolArray &a) {
            PoolArray b = a;
            b.raw = oct_dtype_size_bytes(a.dtype) < 4;
            return b;
        }, "The same memory as unsigned integers: uint8, or uint16 for f16 and bf16. f32 stays f32.");
}

nb::object empty_like(nb::handle like, std::initializer_list<int64_t> shape, uint32_t dtype, const Device &device)
{
    nb::list list;
    for (int64_t n : shape) {
        list.append(n);
    }
    nb::tuple dims(list);
    if (nb::hasattr(like, "new_empty")) {
        const char *name = dtype == OCT_DTYPE_F32 ? "float32" : dtype == OCT_DTYPE_F16 ? "float16" : dtype == OCT_DTYPE_BF16 ? "bfloat16" :
            dtype == OCT_DTYPE_E4M3FN ? "float8_e4m3fn" : dtype == OCT_DTYPE_E4M3FNUZ ? "float8_e4m3fnuz" : "float8_e5m2";
        nb::object torch = nb::module_::import_("torch");
        return like.attr("new_empty")(dims, nb::arg("dtype") = torch.attr(name));
    }
    if (device.gpu()) {
        refuse("out", "octavo makes arrays of NumPy and torch only; give out (and lse)");
    }
    const char *name = dtype == OCT_DTYPE_F32 ? "float32" : dtype == OCT_DTYPE_F16 ? "float16" : dtype == OCT_DTYPE_BF16 ? "uint16" : "uint8";
    nb::object type = nb::str(name);
    if (dtype == OCT_DTYPE_BF16 && attribute_text(like, "dtype") == "bfloat16") {
        type = like.attr("dtype");   /* ml_dtypes' */
    }
    static PyObject *const empty = nb::object(nb::module_::import_("numpy").attr("empty")).release().ptr();   /* for the life of the process */
    return nb::handle(empty)(dims, type);
}

}
