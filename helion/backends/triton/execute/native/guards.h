// Checks that the tensors of a call match those that code was generated for, and that the same ones share memory.

#pragma once

#include "tensors.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace {

constexpr int64_t ANY = std::numeric_limits<int64_t>::min();

struct Expected {
  PyTypeObject* type;
  uint64_t keys;
  caffe2::TypeMeta dtype;
  c10::DeviceIndex device;
  bool requires_grad;
  std::vector<int64_t> sizes;  // ANY accepts any number
  std::vector<int64_t> strides;
  bool dynamic;  // there is a table
  bool wide;     // offsets need more than 31 bits
};

struct Guard {
  PyObject_HEAD
  vectorcallfunc call;
  std::vector<Expected>* expected;
  // The class of each number that may be any, in order: equal numbers have equal classes, different ones different
  // classes, in order of first appearance. None is below `symbolic`. Empty where they are not checked.
  std::vector<int64_t>* groups;
  int64_t symbolic;
  int64_t limit;  // of offsets that are not wide
};

bool same_numbers(c10::IntArrayRef actual, const std::vector<int64_t>& expected) {
  if (actual.size() != expected.size()) {
    return false;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] != expected[i] && expected[i] != ANY) {
      return false;
    }
  }
  return true;
}

bool as_expected(PyObject* object, const Expected& expected, const c10::impl::LocalDispatchKeySet& local) {
  if (Py_TYPE(object) != expected.type) {
    return false;
  }
  const c10::TensorImpl* impl = impl_of(object);
  // equal keys imply equal layouts too, and exclude tensors whose sizes are symbols or made up in Python
  return impl != nullptr && effective_keys(impl, local).raw_repr() == expected.keys &&
      impl->dtype() == expected.dtype && impl->device().index() == expected.device &&
      impl->requires_grad() == expected.requires_grad && same_numbers(impl->sizes(), expected.sizes) &&
      same_numbers(impl->strides(), expected.strides);
}

// The numbers in the places that accept any.
void gather(c10::IntArrayRef actual, const std::vector<int64_t>& expected, std::vector<int64_t>* numbers) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == ANY) {
      numbers->push_back(actual[i]);
    }
  }
}

bool wide_offsets(const c10::TensorImpl* impl, int64_t limit) {
  int64_t last = 0;
  for (size_t i = 0; i < impl->sizes().size(); ++i) {
    last += (impl->sizes()[i] - 1) * impl->strides()[i];
  }
  return last >= limit;
}

// Return true if numbers are equal and different as in `groups`, and none is below `symbolic`.
bool grouped(const std::vector<int64_t>& numbers, const std::vector<int64_t>& groups, int64_t symbolic) {
  std::vector<int64_t> seen;
  for (size_t i = 0; i < numbers.size(); ++i) {
    size_t found = 0;
    while (found < seen.size() && seen[found] != numbers[i]) {
      ++found;
    }
    if (found == seen.size()) {
      seen.push_back(numbers[i]);
    }
    if (static_cast<int64_t>(found) != groups[i] || numbers[i] < symbolic) {
      return false;
    }
  }
  return true;
}

bool same_classes(PyObject* const* args, const Guard& guard) {
  const auto& expected = *guard.expected;
  std::vector<int64_t> numbers;
  numbers.reserve(guard.groups->size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const c10::TensorImpl* impl = impl_of(args[i]);
    gather(impl->sizes(), expected[i].sizes, &numbers);
    gather(impl->strides(), expected[i].strides, &numbers);
    if (expected[i].dynamic && wide_offsets(impl, guard.limit) != expected[i].wide) {
      return false;
    }
  }
  return grouped(numbers, *guard.groups, guard.symbolic);
}

PyObject* guard_call(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
  const auto& guard = *reinterpret_cast<Guard*>(self);
  const auto& expected = *guard.expected;
  const size_t count = PyVectorcall_NARGS(flagged);
  if (count != expected.size() || names != nullptr) {
    return answer(false);
  }
  try {
    const auto local = c10::impl::tls_local_dispatch_key_set();
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (args[i] == args[j]) {  // one tensor for two arguments has another signature
          return answer(false);
        }
      }
      if (!as_expected(args[i], expected[i], local)) {
        return answer(false);
      }
    }
    return answer(guard.groups->empty() || same_classes(args, guard));
  } catch (...) {
    return answer(false);
  }
}

void guard_dealloc(PyObject* self) {
  delete reinterpret_cast<Guard*>(self)->expected;
  delete reinterpret_cast<Guard*>(self)->groups;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject guard_type = callable<Guard>("helion.runtime.native.Guard", guard_dealloc, nullptr);

// A tuple of integers; None means any.
bool read_numbers(PyObject* object, std::vector<int64_t>* numbers) {
  if (!PyTuple_CheckExact(object)) {
    PyErr_SetString(PyExc_TypeError, "expected a tuple");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
    PyObject* item = PyTuple_GET_ITEM(object, i);
    numbers->push_back(item == Py_None ? ANY : PyLong_AsLongLong(item));
  }
  return PyErr_Occurred() == nullptr;
}

// guard(tensors, sizes, strides, table): a function of as many tensors that compares them with these. `table` is
// None, or the classes of the numbers that may be any, a wide flag for each tensor, and the limits.
PyObject* make_guard(PyObject*, PyObject* args) {
  PyObject *tensors, *sizes, *strides, *table;
  if (!PyArg_ParseTuple(
          args, "O!O!O!O", &PyTuple_Type, &tensors, &PyTuple_Type, &sizes, &PyTuple_Type, &strides, &table)) {
    return nullptr;
  }
  PyObject *classes, *wide = nullptr;
  long long symbolic = 0, limit = 0;
  std::vector<Expected> expected;
  std::vector<int64_t> groups;
  const bool grouped = table != Py_None;
  if (grouped &&
      (!PyArg_ParseTuple(table, "OO!LL", &classes, &PyTuple_Type, &wide, &symbolic, &limit) ||
       !read_numbers(classes, &groups))) {
    return nullptr;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(tensors);
  if (PyTuple_GET_SIZE(sizes) != count || PyTuple_GET_SIZE(strides) != count) {
    PyErr_SetString(PyExc_ValueError, "sizes and strides are not as many as tensors");
    return nullptr;
  }
  if (grouped && PyTuple_GET_SIZE(wide) != count) {
    PyErr_SetString(PyExc_ValueError, "a table for another number of tensors");
    return nullptr;
  }
  size_t dynamic = 0;
  const auto local = c10::impl::tls_local_dispatch_key_set();
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* tensor = PyTuple_GET_ITEM(tensors, i);
    const c10::TensorImpl* impl = impl_of(tensor);
    if (impl == nullptr || any_python_key(effective_keys(impl, local))) {
      PyErr_SetString(PyExc_ValueError, "not a plain tensor, or a mode is on");
      return nullptr;
    }
    Expected each{
        Py_TYPE(tensor), effective_keys(impl, local).raw_repr(), impl->dtype(), impl->device().index(),
        impl->requires_grad(), {}, {}, false, false};
    if (!read_numbers(PyTuple_GET_ITEM(sizes, i), &each.sizes) ||
        !read_numbers(PyTuple_GET_ITEM(strides, i), &each.strides)) {
      return nullptr;
    }
    if (each.sizes.size() != impl->sizes().size() || each.strides.size() != impl->sizes().size()) {
      PyErr_SetString(PyExc_ValueError, "as many sizes and strides as the tensor has dimensions");
      return nullptr;
    }
    if (grouped) {
      const size_t before = dynamic;
      dynamic += std::count(each.sizes.begin(), each.sizes.end(), ANY);
      dynamic += std::count(each.strides.begin(), each.strides.end(), ANY);
      each.dynamic = dynamic > before;
      each.wide = PyObject_IsTrue(PyTuple_GET_ITEM(wide, i)) == 1;
    }
    expected.push_back(std::move(each));
  }
  if (grouped && dynamic != groups.size()) {
    PyErr_SetString(PyExc_ValueError, "a table for another number of sizes and strides");
    return nullptr;
  }
  auto* made = reinterpret_cast<Guard*>(guard_type.tp_alloc(&guard_type, 0));
  if (made != nullptr) {
    made->call = guard_call;
    made->expected = new std::vector<Expected>(std::move(expected));
    made->groups = new std::vector<int64_t>(std::move(groups));
    made->symbolic = symbolic;
    made->limit = limit;
  }
  return reinterpret_cast<PyObject*>(made);
}

// --- which tensors share memory ---------------------------------------------------------------------------------------

struct Sharing {
  PyObject_HEAD
  vectorcallfunc call;
  std::vector<Py_ssize_t>* first;  // for each tensor the first one on the same storage
};

PyObject* sharing_call(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
  const auto& first = *reinterpret_cast<Sharing*>(self)->first;
  const size_t count = PyVectorcall_NARGS(flagged);
  if (count != first.size() || names != nullptr) {
    return answer(false);
  }
  std::vector<const void*> storages(count);
  for (size_t i = 0; i < count; ++i) {
    const c10::TensorImpl* impl = impl_of(args[i]);
    if (impl == nullptr || !impl->has_storage()) {
      return answer(false);
    }
    storages[i] = impl->unsafe_storage().unsafeGetStorageImpl();
    if (!impl->unsafe_storage().unsafeGetStorageImpl()->resizable()) {  // not allocated by torch: may overlap others
      return answer(false);
    }
    size_t found = 0;
    while (storages[found] != storages[i]) {
      ++found;
    }
    if (found != static_cast<size_t>(first[i])) {
      return answer(false);
    }
  }
  return answer(true);
}

void sharing_dealloc(PyObject* self) {
  delete reinterpret_cast<Sharing*>(self)->first;
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject sharing_type = callable<Sharing>("helion.runtime.native.Sharing", sharing_dealloc, nullptr);

// sharing(first): a function of as many tensors, true if exactly these share storages and torch allocated all.
PyObject* make_sharing(PyObject*, PyObject* args) {
  PyObject* given;
  std::vector<int64_t> numbers;
  if (!PyArg_ParseTuple(args, "O", &given) || !read_numbers(given, &numbers)) {
    return nullptr;
  }
  auto* made = reinterpret_cast<Sharing*>(sharing_type.tp_alloc(&sharing_type, 0));
  if (made != nullptr) {
    made->call = sharing_call;
    made->first = new std::vector<Py_ssize_t>(numbers.begin(), numbers.end());
  }
  return reinterpret_cast<PyObject*>(made);
}

}  // namespace
