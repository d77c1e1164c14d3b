// Events, pinned memory and asynchronous copies for Python: what tools/gpu_check measures with.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

#define ENTRY extern "C" __attribute__((visibility("default")))

ENTRY int et_event(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, cudaEventDefault); }
ENTRY int et_end_event(cudaEvent_t event) { return cudaEventDestroy(event); }
ENTRY int et_record(cudaEvent_t event, cudaStream_t stream) { return cudaEventRecord(event, stream); }
ENTRY int et_elapsed_ms(cudaEvent_t start, cudaEvent_t end, float* out) {
  return cudaEventElapsedTime(out, start, end);
}
ENTRY int et_pinned(int64_t size_bytes, void** out) { return cudaMallocHost(out, static_cast<size_t>(size_bytes)); }
ENTRY int et_end_pinned(void* p) { return cudaFreeHost(p); }
ENTRY int et_copy(void* to, const void* from, int64_t size_bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDefault, stream);
}
// name: 256 bytes; numbers: compute capability x 10, multiprocessors, bytes of memory, of L2, runtime's and driver's version.
ENTRY int et_device_facts(char* name, int64_t* numbers) {
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, 0)) return error;
  std::snprintf(name, 256, "%s", properties.name);
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  numbers[0] = 10 * properties.major + properties.minor;
  numbers[1] = properties.multiProcessorCount;
  numbers[2] = static_cast<int64_t>(properties.totalGlobalMem);
  numbers[3] = properties.l2CacheSize;
  numbers[4] = runtime;
  numbers[5] = driver;
  return cudaSuccess;
}
