// A layer from its attention on as a device is told of it.
#pragma once

#include "cpp/backend/device.h"
#include "cpp/model/cache_types.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

// The layer's matrices on the device: the first of each part; -1: it is not there. Parts lie there in the order of
// dense_parts().
struct BlockMatrices {
  int32_t attention;
  int32_t feed_forward = -1;
  int32_t shared = -1;  // experts
  int32_t router = -1;
};

DeviceBlock device_block(const HyperParameters& h, const LayerWeights& w, int64_t layer, const BlockMatrices& first,
                         CacheTypes types);

// Whether the device can choose the layer's experts behind its attention.
bool can_route(const Device& device, const HyperParameters& h, const LayerWeights& w);
DeviceMatrix router_matrix(const MoeWeights& w);

}  // namespace expertree
