// A layer's attention as a device is told of it.
#pragma once

#include <string>

#include "cpp/backend/device_attention.h"
#include "cpp/model/cache_types.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

// Why a device cannot run a layer's attention as a whole; "": it can.
std::string why_not_attention(const HyperParameters& h, int64_t layer);

// first: of the layer's matrices on the device, which lie there in the order of dense_parts().
DeviceAttentionLayer device_attention(const HyperParameters& h, const LayerWeights& w, int64_t layer, int32_t first,
                                      CacheTypes types);

}  // namespace expertree
