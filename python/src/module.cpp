// The compiled module: expertree::Error becomes the classes of expertree.errors; everything else is in bind_*.cpp.
#include <nanobind/nanobind.h>

#include <new>

#include "cpp/base/error.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace {

const char* class_name(expertree::ErrorCode code) {
  using expertree::ErrorCode;
  switch (code) {
    case ErrorCode::kModelFormat: return "ModelFormatError";
    case ErrorCode::kUnsupported: return "UnsupportedError";
    case ErrorCode::kOutOfMemory: return "OutOfMemoryError";
    case ErrorCode::kDevice: return "DeviceError";
    case ErrorCode::kInvalidRequest: return "InvalidRequestError";
    case ErrorCode::kCancelled: return "Cancelled";
    case ErrorCode::kInternal: return "Error";
  }
  return "Error";
}

void raise(expertree::ErrorCode code, const char* message) {
  const nb::object type = nb::module_::import_("expertree.errors").attr(class_name(code));
  // Messages may quote bytes of a damaged file.
  PyObject* text = PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(strlen(message)), "backslashreplace");
  if (text == nullptr) return;
  PyErr_SetObject(type.ptr(), text);
  Py_DECREF(text);
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "The compiled core of expertree. Use the package's own classes.";
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const expertree::Error& error) {
      raise(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      raise(expertree::ErrorCode::kOutOfMemory,
            "the machine has not enough memory for this request; close other programs, or use a smaller model, "
            "context or batch");
    }
  });
  expertree::bind_gguf(m);
  expertree::bind_pager(m);
  expertree::bind_replay(m);
  expertree::bind_expert_pager(m);
  expertree::bind_device(m);
  expertree::bind_profile(m);
  expertree::bind_engine(m);
  expertree::bind_speculation(m);
  expertree::bind_joint_step(m);
  expertree::bind_merge_experts(m);
#if defined(EXPERTREE_TESTING)
  nb::module_ testing = m.def_submodule("_testing", "Parts of the core, exposed for tests; not a public interface.");
  expertree::bind_testing_dense(testing);
  expertree::bind_testing_device(testing);
  expertree::bind_testing_drafters(testing);
  expertree::bind_testing_io(testing);
  expertree::bind_testing_kernels(testing);
  expertree::bind_testing_pager(testing);
  expertree::bind_testing_recurrent(testing);
  expertree::bind_testing_sample(testing);
  expertree::bind_testing_spec(testing);
  expertree::bind_testing_spec_prices(testing);
  expertree::bind_testing_tensor(testing);
  expertree::bind_testing_threads(testing);
#endif
}
