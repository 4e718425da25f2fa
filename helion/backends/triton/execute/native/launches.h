// The launch of one binary with arguments of the classes that it was compiled for.

#pragma once

#include "tensors.h"

#include <cuda.h>
#include <dlfcn.h>

#include <limits>
#include <utility>
#include <vector>

namespace {

struct Driver {
  CUresult (*launch)(const CUlaunchConfig*, CUfunction, void**, void**);
  CUresult (*current_context)(CUcontext*);
  CUresult (*error_string)(CUresult, const char**);
};

enum Kind : int { POINTER, I32, I64, U64, FP32, FP64, BOOL, NONE };

// Requirements on a launch's argument for the binary.
struct Parameter {
  Kind kind;
  bool passed;       // false for arguments that are compiled in
  bool specialized;  // integers equal to 1 or divisible by 16 have separate binaries
  bool one;
  bool divisible;  // of a pointer: a multiple of 16
};

struct Launch {
  PyObject_HEAD
  vectorcallfunc call;
  Driver driver;
  CUfunction function;
  unsigned threads, ctas, shared;
  unsigned num_attributes;
  CUlaunchAttribute attributes[4];
  std::vector<Parameter>* parameters;
  PyObject* empty;   // a tuple of dicts and lists that must all be empty
  PyObject* stream;  // called with `device`
  PyObject* device;
  PyObject* record;  // called with the grid instead of the driver, or null
};

bool all_empty(PyObject* containers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(containers); ++i) {
    PyObject* each = PyTuple_GET_ITEM(containers, i);
    if ((PyDict_CheckExact(each) ? PyDict_Size(each) : PyList_GET_SIZE(each)) != 0) {
      return false;
    }
  }
  return true;
}

bool read_count(PyObject* object, unsigned* count) {
  if (!PyLong_CheckExact(object)) {
    return false;
  }
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  *count = static_cast<unsigned>(value);
  return overflow == 0 && 0 < value && value <= std::numeric_limits<int32_t>::max();
}

bool read_integer(PyObject* object, const Parameter& parameter, uint64_t* slot) {
  if (!PyLong_CheckExact(object)) {
    return false;
  }
  int overflow;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  *slot = static_cast<uint64_t>(value);
  Kind kind = value == static_cast<int32_t>(value) ? I32 : I64;
  if (overflow != 0) {
    *slot = overflow < 0 ? 0 : PyLong_AsUnsignedLongLong(object);
    if (overflow < 0 || PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return false;
    }
    kind = U64;
  }
  return kind == parameter.kind &&
      (!parameter.specialized || ((*slot == 1) == parameter.one && ((*slot & 15) == 0) == parameter.divisible));
}

// The bytes of an argument, or false if the binary does not match. Integers shorter than a slot are in its
// first bytes.
bool read_argument(PyObject* object, const Parameter& parameter, uint64_t* slot) {
  switch (parameter.kind) {
    case POINTER: {
      c10::TensorImpl* impl = impl_of(object);
      if (impl == nullptr) {
        return false;
      }
      *slot = reinterpret_cast<uint64_t>(impl->mutable_data());
      return ((*slot & 15) == 0) == parameter.divisible;
    }
    case FP32:
    case FP64: {
      if (!PyFloat_CheckExact(object)) {
        return false;
      }
      const double wide = PyFloat_AS_DOUBLE(object);
      const float narrow = static_cast<float>(wide);
      *slot = 0;
      if (parameter.kind == FP32) {
        std::memcpy(slot, &narrow, sizeof(narrow));
      } else {
        std::memcpy(slot, &wide, sizeof(wide));
      }
      return true;
    }
    case BOOL:
      *slot = object == Py_True;
      return PyBool_Check(object);
    case NONE:
      return object == Py_None;
    default:
      return read_integer(object, parameter, slot);
  }
}

bool raise_if_failed(const Driver& driver, CUresult result) {
  if (result == CUDA_SUCCESS) {
    return false;
  }
  const char* text = nullptr;
  driver.error_string(result, &text);
  PyErr_Format(PyExc_RuntimeError, "Triton Error [CUDA]: %s", text == nullptr ? "unknown error" : text);
  return true;
}

// Called with the three counts of the grid, then the arguments that are not constants of the kernel.
PyObject* launch_call(PyObject* self, PyObject* const* args, size_t flagged, PyObject* names) {
  auto& launch = *reinterpret_cast<Launch*>(self);
  const auto& parameters = *launch.parameters;
  const size_t count = parameters.size();
  CUlaunchConfig config;
  if (static_cast<size_t>(PyVectorcall_NARGS(flagged)) != count + 3 || names != nullptr || !all_empty(launch.empty) ||
      !read_count(args[0], &config.gridDimX) || !read_count(args[1], &config.gridDimY) ||
      !read_count(args[2], &config.gridDimZ)) {
    return answer(false);
  }
  auto* slots = static_cast<uint64_t*>(alloca((count + 2) * sizeof(uint64_t)));
  auto** pointers = static_cast<void**>(alloca((count + 2) * sizeof(void*)));
  size_t passed = 0;
  try {
    for (size_t i = 0; i < count; ++i) {
      if (!read_argument(args[i + 3], parameters[i], &slots[i])) {
        return answer(false);
      }
      if (parameters[i].passed) {
        pointers[passed++] = &slots[i];
      }
    }
  } catch (...) {
    return answer(false);
  }
  for (size_t i = count; i < count + 2; ++i) {  // scratch memory, global and of the profiler, unused by the binary
    slots[i] = 0;
    pointers[passed++] = &slots[i];
  }
  PyObject* stream = PyObject_Vectorcall(launch.stream, &launch.device, 1, nullptr);
  if (stream == nullptr) {
    return nullptr;
  }
  config.hStream = static_cast<CUstream>(PyLong_AsVoidPtr(stream));
  Py_DECREF(stream);
  if (PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  config.gridDimX *= launch.ctas;
  config.blockDimX = launch.threads;
  config.blockDimY = 1;
  config.blockDimZ = 1;
  config.sharedMemBytes = launch.shared;
  config.attrs = launch.attributes;
  config.numAttrs = launch.num_attributes;
  if (launch.record != nullptr) {
    PyObject* noted = PyObject_Vectorcall(launch.record, args, 3, nullptr);
    Py_XDECREF(noted);
    return noted == nullptr ? nullptr : answer(true);
  }
  CUcontext context = nullptr;
  if (launch.driver.current_context(&context) != CUDA_SUCCESS || context == nullptr) {
    return answer(false);  // this thread's first use of the GPU
  }
  CUresult result;
  Py_BEGIN_ALLOW_THREADS;
  result = launch.driver.launch(&config, launch.function, pointers, nullptr);
  Py_END_ALLOW_THREADS;
  return raise_if_failed(launch.driver, result) ? nullptr : answer(true);
}

int launch_traverse(PyObject* self, visitproc visit, void* arg) {
  auto& launch = *reinterpret_cast<Launch*>(self);
  Py_VISIT(launch.empty);
  Py_VISIT(launch.stream);
  Py_VISIT(launch.device);
  Py_VISIT(launch.record);
  return 0;
}

void launch_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  auto& launch = *reinterpret_cast<Launch*>(self);
  delete launch.parameters;
  Py_XDECREF(launch.empty);
  Py_XDECREF(launch.stream);
  Py_XDECREF(launch.device);
  Py_XDECREF(launch.record);
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject launch_type = callable<Launch>("helion.runtime.native.Launch", launch_dealloc, launch_traverse);

bool load_driver(const char* path, Driver* driver) {
  void* library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) {
    PyErr_Format(PyExc_OSError, "%s", dlerror());
    return false;
  }
  driver->launch = reinterpret_cast<decltype(driver->launch)>(dlsym(library, "cuLaunchKernelEx"));
  driver->current_context = reinterpret_cast<decltype(driver->current_context)>(dlsym(library, "cuCtxGetCurrent"));
  driver->error_string = reinterpret_cast<decltype(driver->error_string)>(dlsym(library, "cuGetErrorString"));
  if (driver->launch == nullptr || driver->current_context == nullptr || driver->error_string == nullptr) {
    PyErr_Format(PyExc_OSError, "%s lacks functions of the driver", path);
    return false;
  }
  return true;
}

// The attributes in Triton's order.
void set_attributes(Launch* launch, bool cooperative, bool pdl) {
  auto add = [launch](CUlaunchAttributeID id) -> CUlaunchAttributeValue& {
    CUlaunchAttribute& attribute = launch->attributes[launch->num_attributes++];
    std::memset(&attribute, 0, sizeof(attribute));
    attribute.id = id;
    return attribute.value;
  };
  launch->num_attributes = 0;
  if (pdl) {
    add(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION).programmaticStreamSerializationAllowed = 1;
  }
  if (cooperative) {
    add(CU_LAUNCH_ATTRIBUTE_COOPERATIVE).cooperative = 1;
  }
  if (launch->ctas != 1) {
    auto& cluster = add(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
    cluster.clusterDim.x = launch->ctas;
    cluster.clusterDim.y = 1;
    cluster.clusterDim.z = 1;
    add(CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE).clusterSchedulingPolicyPreference =
        CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
  }
}

bool read_parameters(PyObject* given, std::vector<Parameter>* parameters) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i) {
    int kind, passed, specialized, one, divisible;
    PyObject* item = PyTuple_GET_ITEM(given, i);
    if (!PyTuple_CheckExact(item)) {
      PyErr_SetString(PyExc_TypeError, "expected a tuple for each parameter");
      return false;
    }
    if (!PyArg_ParseTuple(item, "ipppp", &kind, &passed, &specialized, &one, &divisible)) {
      return false;
    }
    parameters->push_back({static_cast<Kind>(kind), passed != 0, specialized != 0, one != 0, divisible != 0});
  }
  return true;
}

// launch(driver, function, num_warps, num_ctas, shared, cooperative, pdl, parameters, empty, stream, device, record):
// a function of three counts and the arguments that launches the kernel and returns true, or returns false.
PyObject* make_launch(PyObject*, PyObject* args) {
  const char* path;
  unsigned long long function;
  int warps, ctas, shared, cooperative, pdl;
  PyObject *given, *empty, *stream, *device, *record;
  if (!PyArg_ParseTuple(
          args, "zKiiippO!O!OOO", &path, &function, &warps, &ctas, &shared, &cooperative, &pdl, &PyTuple_Type, &given,
          &PyTuple_Type, &empty, &stream, &device, &record)) {
    return nullptr;
  }
  // 16 blocks in a cluster need an attribute of the function, and large shared memory one of the launch
  if (ctas < 1 || ctas >= 16 || warps < 1 || shared < 0 || shared > 228 * 1024) {
    PyErr_SetString(PyExc_ValueError, "a launch with attributes that are not known here");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(empty); ++i) {
    PyObject* each = PyTuple_GET_ITEM(empty, i);
    if (!PyDict_CheckExact(each) && !PyList_CheckExact(each)) {
      PyErr_SetString(PyExc_TypeError, "expected dicts and lists");
      return nullptr;
    }
  }
  std::vector<Parameter> parameters;
  Driver driver{};
  if (!read_parameters(given, &parameters) || (path != nullptr && !load_driver(path, &driver))) {
    return nullptr;
  }
  if (path == nullptr && record == Py_None) {
    PyErr_SetString(PyExc_ValueError, "neither a driver nor something in its place");
    return nullptr;
  }
  auto* made = reinterpret_cast<Launch*>(launch_type.tp_alloc(&launch_type, 0));
  if (made == nullptr) {
    return nullptr;
  }
  made->call = launch_call;
  made->driver = driver;
  made->function = reinterpret_cast<CUfunction>(function);
  made->threads = 32 * static_cast<unsigned>(warps);
  made->ctas = static_cast<unsigned>(ctas);
  made->shared = static_cast<unsigned>(shared);
  set_attributes(made, cooperative != 0, pdl != 0);
  made->parameters = new std::vector<Parameter>(std::move(parameters));
  made->empty = Py_NewRef(empty);
  made->stream = Py_NewRef(stream);
  made->device = Py_NewRef(device);
  made->record = record == Py_None ? nullptr : Py_NewRef(record);
  return reinterpret_cast<PyObject*>(made);
}

}  // namespace
