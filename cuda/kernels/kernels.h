// Every launcher of the CUDA backend.
#pragma once

#include "cuda/kernels/attention_kernels.h"
#include "cuda/kernels/cache_cells.h"
#include "cuda/kernels/expert_kernels.h"
#include "cuda/kernels/int8_rows.h"
#include "cuda/kernels/packed_layout.h"
#include "cuda/kernels/row_kernels.h"
#include "cuda/kernels/top_k_kernels.h"
