#include "cpp/backend/device_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr size_t kWhyBytes = 512;

std::string library_name(const std::string& backend) {
  if (backend == "cuda") return "libexpertree_cuda.so";
  if (backend == "emulated") return "libexpertree_cuda_emulated.so";
  throw Error(ErrorCode::kInvalidRequest,
              "device backend '" + backend.substr(0, 32) + "' is not known; there are cuda and emulated");
}

// Where this code lies.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&open_device), &info) == 0 || info.dli_fname == nullptr) return ".";
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::absolute(info.dli_fname, ignored);
  return path.parent_path();
}

}  // namespace

OpenedDevice open_device(const std::string& backend) {
  const std::filesystem::path path = own_folder() / library_name(backend);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return {nullptr, "built without CUDA (no " + path.filename().string() + ")"};
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return {nullptr, path.string() + " does not load: " + (error != nullptr ? error : "no reason given")};
  }
  const auto entry = reinterpret_cast<DeviceEntry>(dlsym(library, kDeviceEntryName));
  if (entry == nullptr) return {nullptr, path.string() + " is no device library of expertree"};
  char why[kWhyBytes] = "no reason given";
  std::shared_ptr<Device> device(entry(kDeviceAbi, why, sizeof why));
  if (device != nullptr) return {std::move(device), ""};
  why[kWhyBytes - 1] = '\0';
  return {nullptr, why};
}

std::shared_ptr<Device> require_device(const std::string& backend) {
  OpenedDevice opened = open_device(backend);
  if (opened.device != nullptr) return opened.device;
  throw Error(ErrorCode::kDevice, "no GPU to keep experts on: " + opened.why_not +
                                      "; leave --vram out or give 0 or auto, and expertree runs on the CPU");
}

}  // namespace expertree
