/* Makes the exception classes and raises them. The GIL is held. */
#include "error.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace nb = nanobind;

namespace octavo_python {

namespace {

struct ErrorClass {
    const char *name;
    const char *doc;
    PyObject *builtin;   /* the second base, so that callers who know Python's own classes catch it too */
    PyObject *type;
};

/* By status. Kept for the life of the process, as Python's own exception classes are. */
ErrorClass classes[] = {
    { "OctavoError", nullptr, nullptr, nullptr },
    { "InvalidArgument", "An argument is wrong whatever the machine. Also a ValueError.", nullptr, nullptr },
    { "Unsupported", "Legal, but no variant on this machine can do it; the text names the gate. Also a NotImplementedError.", nullptr, nullptr },
    { "OutOfMemory", "Memory could not be allocated. Also a MemoryError.", nullptr, nullptr },
    { "OutOfPages", "The pool has too few free pages; nothing was taken.", nullptr, nullptr },
    { "DeviceFault", "The device or its driver reported a fault.", nullptr, nullptr },
    { "IoError", "A file could not be read or written. Also an OSError.", nullptr, nullptr },
    { "BadData", "A file or buffer does not hold what it should. Also a ValueError.", nullptr, nullptr },
    { "Cancelled", "The caller asked to stop.", nullptr, nullptr },
};
constexpr size_t n_classes = sizeof(classes) / sizeof(classes[0]);

const char base_doc[] =
    "What the library answers when a call fails.\n\n"
    "status: the number of the outcome (oct_status); name: \"invalid_argument\", \"unsupported\", \"out_of_memory\", \"out_of_pages\",\n"
    "\"device_fault\", ...; text: the argument, what it is and what it must be; where: the function that found it.";

/* A text that was cut to fit may end inside a character. */
nb::object words_of(const char *words)
{
    nb::object text = nb::steal(PyUnicode_DecodeUTF8(words, (Py_ssize_t)strlen(words), "replace"));
    if (!text.is_valid()) {
        throw nb::python_error();
    }
    return text;
}

}

void raise(oct_status status, const char *text, const char *where)
{
    const size_t index = (size_t)status < n_classes ? (size_t)status : 0;
    PyObject *type = classes[index].type;
    const char *words = text != nullptr && text[0] != 0 ? text : oct_status_message(status);
    const nb::object text_given = words_of(words), place = words_of(where != nullptr ? where : "");
    nb::object message = where != nullptr && where[0] != 0 ? nb::steal(PyUnicode_FromFormat("%U: %U", place.ptr(), text_given.ptr())) : text_given;
    nb::object error = nb::steal(PyObject_CallFunctionObjArgs(type, message.ptr(), nullptr));
    if (!error.is_valid()) {
        throw nb::python_error();
    }
    error.attr("status") = (int)status;
    error.attr("name") = oct_status_name(status);
    error.attr("text") = text_given;
    error.attr("where") = place;
    PyErr_SetObject(type, error.ptr());
    throw nb::python_error();
}

void refuse(const char *where, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    raise(OCT_INVALID_ARGUMENT, text, where);
}

void bind_errors(nb::module_ &m)
{
    classes[1].builtin = PyExc_ValueError;
    classes[2].builtin = PyExc_NotImplementedError;
    classes[3].builtin = PyExc_MemoryError;
    classes[6].builtin = PyExc_OSError;
    classes[7].builtin = PyExc_ValueError;
    for (size_t i = 0; i < n_classes; i++) {
        ErrorClass &c = classes[i];
        nb::object bases;
        if (i == 0) {
            bases = nb::borrow(PyExc_Exception);
        } else if (c.builtin == nullptr) {
            bases = nb::borrow(classes[0].type);
        } else {
            bases = nb::make_tuple(nb::handle(classes[0].type), nb::handle(c.builtin));
        }
        const std::string full = std::string("octavo._octavo.") + c.name;
        c.type = PyErr_NewExceptionWithDoc(full.c_str(), i == 0 ? base_doc : c.doc, bases.ptr(), nullptr);
        if (c.type == nullptr) {
            throw nb::python_error();
        }
        m.attr(c.name) = nb::handle(c.type);
    }
}

}
