// Access to the tensors of Python objects, and checks of it.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>

namespace {

PyTypeObject* tensor_type = nullptr;
PyTypeObject* parameter_type = nullptr;
// The offset of the TensorImpl in a tensor object, and a flag for a preceding mark of borrowed ones.
size_t impl_at = 0;
bool impl_after_flag = false;

bool known_type(PyTypeObject* type) { return type == tensor_type || type == parameter_type; }

// The tensor of an object of exactly the two known types; null for anything else.
c10::TensorImpl* impl_of(PyObject* object) {
  if (!known_type(Py_TYPE(object)) || impl_at == 0) {
    return nullptr;
  }
  const char* at = reinterpret_cast<const char*>(object) + impl_at;
  if (impl_after_flag && at[-static_cast<ptrdiff_t>(sizeof(void*))] != 0) {
    return nullptr;
  }
  c10::TensorImpl* impl;
  std::memcpy(&impl, at, sizeof(impl));
  return impl;
}

// The dispatch keys that an operation on the tensor uses in this thread now, including modes and transforms.
c10::DispatchKeySet effective_keys(const c10::TensorImpl* impl, const c10::impl::LocalDispatchKeySet& local) {
  return (impl->key_set() | local.included_) - local.excluded_;
}

bool any_python_key(c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::Python) || keys.has(c10::DispatchKey::PythonTLSSnapshot) ||
      keys.has(c10::DispatchKey::PythonDispatcher);
}

PyObject* answer(bool value) {
  PyObject* result = value ? Py_True : Py_False;
  Py_INCREF(result);
  return result;
}

template <typename Object>
PyTypeObject callable(const char* name, destructor dealloc, traverseproc traverse) {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = name;
  type.tp_basicsize = sizeof(Object);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | (traverse == nullptr ? 0 : Py_TPFLAGS_HAVE_GC);
  type.tp_vectorcall_offset = offsetof(Object, call);
  type.tp_call = PyVectorcall_Call;
  type.tp_dealloc = dealloc;
  type.tp_traverse = traverse;
  return type;
}

// --- checks of the access ---------------------------------------------------------------------------------------------

// set_up(Tensor, Parameter, tensor, address): find the address of its TensorImpl in a tensor object.
PyObject* set_up(PyObject*, PyObject* args) {
  PyTypeObject *tensor, *parameter;
  PyObject* sample;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "O!O!OK", &PyType_Type, &tensor, &PyType_Type, &parameter, &sample, &address)) {
    return nullptr;
  }
  for (const bool after_flag : {false, true}) {
    const size_t at = sizeof(PyObject) + (after_flag ? sizeof(void*) : 0);
    uint64_t found = 0;
    if (static_cast<size_t>(Py_TYPE(sample)->tp_basicsize) >= at + sizeof(found)) {
      std::memcpy(&found, reinterpret_cast<const char*>(sample) + at, sizeof(found));
    }
    if (found == address) {
      tensor_type = tensor;
      parameter_type = parameter;
      Py_INCREF(tensor);
      Py_INCREF(parameter);
      impl_at = at;
      impl_after_flag = after_flag;
      Py_RETURN_NONE;
    }
  }
  PyErr_SetString(PyExc_ValueError, "tensor objects are laid out in an unknown way");
  return nullptr;
}

PyObject* tuple_of(c10::IntArrayRef numbers) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(numbers.size()));
  for (size_t i = 0; tuple != nullptr && i < numbers.size(); ++i) {
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), PyLong_FromLongLong(numbers[i]));
  }
  return tuple;
}

// read(tensor): address, data, sizes, strides, bytes per element, device type and index, requires_grad, keys, storage.
PyObject* read(PyObject*, PyObject* tensor) {
  c10::TensorImpl* impl = impl_of(tensor);
  if (impl == nullptr) {
    PyErr_SetString(PyExc_TypeError, "expected a tensor");
    return nullptr;
  }
  try {
    return Py_BuildValue(
        "KKNNniiOKK", reinterpret_cast<unsigned long long>(impl),
        reinterpret_cast<unsigned long long>(impl->mutable_data()), tuple_of(impl->sizes()), tuple_of(impl->strides()),
        static_cast<Py_ssize_t>(impl->dtype().itemsize()), static_cast<int>(impl->device().type()),
        static_cast<int>(impl->device().index()), impl->requires_grad() ? Py_True : Py_False,
        static_cast<unsigned long long>(impl->key_set().raw_repr()),
        reinterpret_cast<unsigned long long>(impl->unsafe_storage().unsafeGetStorageImpl()));
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// local(): dispatch keys that this thread includes and excludes.
PyObject* local(PyObject*, PyObject*) {
  const auto keys = c10::impl::tls_local_dispatch_key_set();
  return Py_BuildValue(
      "KK", static_cast<unsigned long long>(keys.included_.raw_repr()),
      static_cast<unsigned long long>(keys.excluded_.raw_repr()));
}

}  // namespace
