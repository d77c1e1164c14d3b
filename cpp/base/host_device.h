// Marks functions that CUDA kernels call, too. A file with none of CUDA's names in it stays plain C++.
#pragma once

#if defined(__CUDACC__)
#define EXPERTREE_HOST_DEVICE __host__ __device__
#else
#define EXPERTREE_HOST_DEVICE
#endif
