#include "cuda/kernels/product_quantised.cuh"

template cudaError_t expertree::cuda::run_product<expertree::DType::kQ4_1>(const ProductRun& run, cudaStream_t stream);
