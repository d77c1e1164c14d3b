// Makes every kind of call of the CUDA runtime and prints the error of each. Where there is no driver all of them are
// 35, cudaErrorInsufficientDriver, and nothing ends the process: that is what lets one build serve every machine.
#include <cuda_runtime.h>

#include <cstdio>

#include "tests/cuda/planted_bugs.h"

int main() {
  int n_different = 0;
  cudaError_t expected = cudaSuccess;
  const auto say = [&](const char* call, cudaError_t error) {
    if (n_different == 0 && expected == cudaSuccess) expected = error;
    n_different += error != expected;
    std::printf("%-28s %d\n", call, static_cast<int>(error));
  };
  int n = 0;
  size_t free_bytes = 0, total_bytes = 0;
  void* p = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaDeviceProp properties{};
  say("cudaGetDeviceCount", cudaGetDeviceCount(&n));
  say("cudaSetDevice", cudaSetDevice(0));
  say("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, 0));
  say("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
  say("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
  say("cudaMalloc", cudaMalloc(&p, 16));
  say("cudaMallocHost", cudaMallocHost(&p, 16));
  say("cudaHostRegister", cudaHostRegister(&n, sizeof n, cudaHostRegisterDefault));
  say("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  say("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  say("cudaMemcpyAsync", cudaMemcpyAsync(&n, &n, sizeof n, cudaMemcpyHostToHost, nullptr));
  say("cudaMemsetAsync", cudaMemsetAsync(&n, 0, sizeof n, nullptr));
  say("cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
  say("cudaDeviceSynchronize", cudaDeviceSynchronize());
  say("launch", launch_nothing(0, nullptr));
  say("cudaGetLastError", cudaGetLastError());
  int version = -1;
  const cudaError_t asked = cudaDriverGetVersion(&version);
  std::printf("driver %d (%d)\n", version, static_cast<int>(asked));
  return n_different == 0 && expected != cudaSuccess ? 0 : 1;
}
