#include "cpp/model/attention_plan.h"

#include <cmath>

namespace expertree {
namespace {

constexpr int64_t kMostHeadDim = 1024;
constexpr int64_t kValuePiece = 4;  // elements that are copied at a time

DeviceHeadNorm norm_of(const HyperParameters& h, const LayerParameters& p, const FloatVector& weight) {
  switch (h.qk_norm) {
    case QkNorm::kNone: return DeviceHeadNorm::kNone;
    case QkNorm::kPerHeadPlain: return p.has_rope ? DeviceHeadNorm::kPerHead : DeviceHeadNorm::kNone;
    case QkNorm::kPerHead: return weight.empty() ? DeviceHeadNorm::kNone : DeviceHeadNorm::kPerHead;
    case QkNorm::kWholeProjection: return weight.empty() ? DeviceHeadNorm::kNone : DeviceHeadNorm::kWhole;
  }
  return DeviceHeadNorm::kNone;
}

}  // namespace

std::string why_not_attention(const HyperParameters& h, int64_t layer) {
  const LayerParameters& p = h.layer(layer);
  if (h.is_latent()) return "latent attention runs on the CPU";
  if (p.head_dim_k > kMostHeadDim || p.head_dim_v > kMostHeadDim || p.head_dim_v % kValuePiece != 0) {
    return "heads of " + std::to_string(p.head_dim_v) + " elements have no kernels";
  }
  return "";
}

DeviceAttentionLayer device_attention(const HyperParameters& h, const LayerWeights& weights, int64_t layer,
                                      int32_t first, CacheTypes types) {
  const LayerParameters& p = h.layer(layer);
  const AttentionWeights& w = weights.attention;
  DeviceAttentionLayer a;
  a.q = first++;
  a.k = first++;
  if (w.v.present()) a.v = first++;
  if (w.gate.present()) a.gate = first++;
  a.output = first;
  a.n_heads = static_cast<int32_t>(p.n_heads);
  a.n_kv_heads = static_cast<int32_t>(p.n_kv_heads);
  a.head_dim_k = static_cast<int32_t>(p.head_dim_k);
  a.head_dim_v = static_cast<int32_t>(p.head_dim_v);
  a.keys = types.keys;
  a.values = types.values;
  a.limit = static_cast<float>(h.qkv_limit);
  a.norm_of_q = norm_of(h, p, w.q_norm);
  a.norm_of_k = norm_of(h, p, w.k_norm);
  a.q_norm = data_or_null(w.q_norm);
  a.k_norm = data_or_null(w.k_norm);
  a.norm_after_rope = h.qk_norm_after_rope;
  a.normalize_values = h.normalize_values;
  a.eps = h.rms_eps;
  a.consecutive = h.rope_style == RopeStyle::kConsecutive;
  a.scale = h.attention_scale != 0.0 ? static_cast<float>(h.attention_scale)
                                     : 1.0f / std::sqrt(static_cast<float>(p.head_dim_k));
  a.softcap = static_cast<float>(h.attention_softcap);
  a.sinks = data_or_null(w.sinks);
  a.windowed = p.windowed;
  a.has_rope = p.has_rope;
  a.has_query_scale = p.has_temperature;
  a.output_scale = static_cast<float>(h.attention_output_scale);
  return a;
}

}  // namespace expertree
