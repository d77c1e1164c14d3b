#include "cuda/gpu/gpu.h"
