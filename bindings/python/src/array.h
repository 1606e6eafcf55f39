/* Arrays of other packages seen without a copy: NumPy by the buffer protocol, all others by DLPack, CPU and GPU. An Array holds its export until it is
 * destroyed, with the GIL held. */
#ifndef OCTAVO_PYTHON_ARRAY_H
#define OCTAVO_PYTHON_ARRAY_H

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace octavo_python {

namespace nb = nanobind;

/* DLPack's numbers (dlpack.h, ABI 1): element codes and device types. */
enum : uint8_t { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_E4M3FN = 10, DL_E4M3FNUZ = 11, DL_E5M2 = 12 };
enum : int32_t { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_ROCM = 10, DL_ROCM_HOST = 11, DL_CUDA_MANAGED = 13 };

struct Device {
    int32_t type = DL_CPU;
    int32_t id = 0;
    bool gpu() const { return type != DL_CPU; }
    std::string text() const;
};

/* Whether what computes on one device takes memory that lies on another: pinned and managed memory is reached from the CPU too. */
bool reaches(const Device &from, const Device &memory);

/* Where a call's work is enqueued. `given`: the caller named a stream; else the stream that the arrays' own package works on is taken. */
struct Stream {
    void *handle = nullptr;
    bool given = false;
};

/* The argument stream=: None, an integer, or an object with cuda_stream (torch) or ptr (cupy). */
Stream stream_of(nb::handle stream, const Device &device);

class Array {
public:
    static constexpr int max_ndim = 8;

    /* `name` is how texts of errors call it. Raises TypeError when the object is no array; InvalidArgument when it lies on another device.
     * With `stream` not given, a GPU array sets its handle to the current stream of its package, where that tells. */
    Array(nb::handle object, const char *name, const Device &device, Stream *stream);
    ~Array() { release(); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;

    int ndim() const { return ndim_; }
    int64_t shape(int axis) const { return shape_[axis]; }
    int64_t stride(int axis) const { return stride_[axis]; }   /* elements */
    void *data() const { return data_; }
    const Device &device() const { return device_; }
    const char *name() const { return name_; }
    std::string text() const;                                  /* "float16[3, 4]" */

    /* Each raises InvalidArgument with words. A shape of -1 fits any. `dtype` is oct_dtype; unsigned integers of its size are taken as its bits. */
    void want_shape(std::initializer_list<int64_t> shape) const;
    void want_dtype(uint32_t dtype) const;
    void want_int(uint8_t code, uint8_t bits) const;
    void want_contiguous(int from_axis = 0) const;             /* the axes from this one on lie as C's do */
    void want_writable() const;
    uint32_t float_dtype() const;                              /* F32, F16 or BF16 by the array's own type; 0 for others */

private:
    void release();
    bool take_buffer(nb::handle object);   /* false: the object is to be asked by DLPack */
    bool take_exchange(nb::handle object, Stream *stream);
    void take_dlpack(nb::handle object, const Device &device, const Stream *stream);

    const char *name_;
    void *data_ = nullptr;
    int64_t shape_[max_ndim] = {};
    int64_t stride_[max_ndim] = {};
    int ndim_ = 0;
    uint8_t code_ = 0, bits_ = 0;
    Device device_;
    bool readonly_ = false;
    Py_buffer buffer_ = {};
    void *managed_ = nullptr;
    bool versioned_ = false;
    bool has_buffer_ = false;
    nb::object keep_;
};

/* Memory of a pool as others see it: DLPack, or a NumPy array over it. Keeps `owner` alive. */
class PoolArray {
public:
    void *data;
    std::vector<int64_t> shape, strides;
    uint32_t dtype;       /* oct_dtype; with `raw`, its bits as unsigned integers */
    bool raw;
    Device device;
    nb::object owner;

    nb::object dlpack(nb::handle max_version, nb::handle dl_device, nb::handle copy) const;
    nb::dict interface() const;
};

void bind_array(nb::module_ &m);

/* An empty array of the package that `like` is of: NumPy's or torch's. Raises InvalidArgument for others on a GPU, where NumPy has no memory. */
nb::object empty_like(nb::handle like, std::initializer_list<int64_t> shape, uint32_t dtype, const Device &device);

}
#endif
