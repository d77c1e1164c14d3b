#include "cuda/kernels/product_quantised.cuh"

template cudaError_t expertree::cuda::run_product<expertree::DType::kIQ4_XS>(const ProductRun& run,
                                                                             cudaStream_t stream);
