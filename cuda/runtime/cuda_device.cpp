// The device that this library gives to the core.
#include <cuda_runtime.h>

#include <cstdio>
#include <exception>

#include "cpp/backend/device.h"
#include "cuda/kernels/packed_layout.h"
#include "cuda/runtime/call.h"
#include "cuda/runtime/cuda_dense.h"
#include "cuda/runtime/cuda_experts.h"

namespace expertree::cuda {
namespace {

constexpr int kLeastCapability = 75;  // 10 * major + minor
constexpr int kDevice = 0;            // CUDA_VISIBLE_DEVICES chooses another one

#if defined(EXPERTREE_CUDA_EMULATED)
constexpr const char* kBackend = "cuda, emulated";
#else
constexpr const char* kBackend = "cuda";
#endif

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int n_devices) : n_devices_(n_devices) {}

  DeviceInfo info() const override {
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, kDevice));
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return {properties.name, kBackend, n_devices_, kDevice, total_bytes, free_bytes};
  }

  uint64_t slot_bytes(const DeviceExpertLayer& layer) const override {
    uint64_t bytes = 0;
    for (const DeviceExpertLayer::Matrix& w : layer.matrices) {
      if (!is_packable(w.dtype)) return 0;
      bytes += static_cast<uint64_t>(packed_layout(w.dtype, w.rows, w.k).bytes);
    }
    return (bytes + 255) / 256 * 256;
  }

  uint64_t fixed_bytes(const DeviceExpertsPlan& plan) const override {
    DeviceExpertsPlan none = plan;
    none.n_slots.assign(plan.n_slots.size(), 0);
    return CudaExperts::device_bytes(none);
  }

  std::unique_ptr<DeviceExperts> make_experts(const DeviceExpertsPlan& plan) override {
    return std::make_unique<CudaExperts>(plan);
  }

  uint64_t matrix_bytes(const DeviceMatrix& w) const override {
    if (!is_packable(w.dtype)) return 0;
    return (static_cast<uint64_t>(packed_layout(w.dtype, w.rows, w.k).bytes) + 255) / 256 * 256;
  }

  uint64_t dense_bytes(const DeviceDensePlan& plan) const override { return CudaDense::device_bytes(plan); }

  std::unique_ptr<DeviceDense> make_dense(const DeviceDensePlan& plan) override {
    return std::make_unique<CudaDense>(plan);
  }

 private:
  int n_devices_;
};

Device* refuse(char* why, size_t why_size, const std::string& reason) {
  std::snprintf(why, why_size, "%s", reason.c_str());
  static_cast<void>(cudaGetLastError());
  return nullptr;
}

Device* open(uint32_t abi, char* why, size_t why_size) {
  if (abi != kDeviceAbi) {
    return refuse(why, why_size, "the CUDA library is of another version of expertree; install both from one build");
  }
  int n_devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&n_devices);
  if (status == cudaErrorInsufficientDriver) {
    int version = 0;
    static_cast<void>(cudaDriverGetVersion(&version));
    return refuse(why, why_size,
                  version == 0 ? "this machine has no NVIDIA driver" : "the NVIDIA driver is too old for this build");
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && n_devices == 0)) {
    return refuse(why, why_size, "the NVIDIA driver finds no GPU");
  }
  if (status != cudaSuccess) return refuse(why, why_size, cudaGetErrorString(status));
  cudaDeviceProp properties{};
  if (const cudaError_t failed = cudaGetDeviceProperties(&properties, kDevice); failed != cudaSuccess) {
    return refuse(why, why_size, cudaGetErrorString(failed));
  }
  if (10 * properties.major + properties.minor < kLeastCapability) {
    return refuse(why, why_size,
                  std::string(properties.name) + " is too old: compute capability " + std::to_string(properties.major) +
                      "." + std::to_string(properties.minor) + ", and 7.5 is the least that works");
  }
  return new CudaDevice(n_devices);
}

}  // namespace
}  // namespace expertree::cuda

extern "C" __attribute__((visibility("default"))) expertree::Device* expertree_open_device(uint32_t abi, char* why,
                                                                                           size_t why_size) {
  try {
    return expertree::cuda::open(abi, why, why_size);
  } catch (const std::exception& error) {
    return expertree::cuda::refuse(why, why_size, error.what());
  }
}
