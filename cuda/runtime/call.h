// Runtime calls whose failures become errors of expertree.
#pragma once

#include <cuda_runtime.h>

namespace expertree::cuda {

// Throws kOutOfMemory for memory that is not to be had and kDevice for all else, naming the call.
void check(cudaError_t status, const char* call);

}  // namespace expertree::cuda

#define CUDA_CHECK(call) ::expertree::cuda::check((call), #call)
