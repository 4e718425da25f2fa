// Guards and launches of kernels in C++: tensors are read in place, without intermediate Python objects.
//
// A guard that fails and an unusual launch answer False, and Python code handles the call.
// `build.py` compiles this file against the headers of the installed torch and Triton,
// and compares its view of tensors with torch's before the first use.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "guards.h"
#include "launches.h"
#include "tensors.h"

namespace {

PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, nullptr},
    {"read", read, METH_O, nullptr},
    {"local", local, METH_NOARGS, nullptr},
    {"guard", make_guard, METH_VARARGS, nullptr},
    {"sharing", make_sharing, METH_VARARGS, nullptr},
    {"launch", make_launch, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "helion_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_helion_native() {
  if (PyType_Ready(&guard_type) < 0 || PyType_Ready(&sharing_type) < 0 || PyType_Ready(&launch_type) < 0) {
    return nullptr;
  }
  return PyModule_Create(&definition);
}
