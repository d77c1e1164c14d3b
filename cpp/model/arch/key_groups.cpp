#include "cpp/model/arch/key_groups.h"

#include <algorithm>
#include <limits>

#include "cpp/base/error.h"

namespace expertree {
namespace {

void read_layer_count(const ArchKeys& keys, HyperParameters* h) {
  const int64_t n_blocks = keys.require_int("block_count");
  h->n_nextn_layers = keys.int_or("nextn_predict_layers", 0, 0);
  if (h->n_nextn_layers >= n_blocks) {
    keys.refuse_value("nextn_predict_layers", h->n_nextn_layers, "less than block_count " + std::to_string(n_blocks));
  }
  h->n_layers = n_blocks - h->n_nextn_layers;
  // Each layer has tensors of its own, so a file cannot promise more layers than it has tensors.
  const int64_t n_tensors = std::ssize(keys.reader().tensors());
  if (h->n_layers <= n_tensors) return;
  throw Error(ErrorCode::kModelFormat, keys.reader().paths()[0] + ": the file says it has " +
                                           std::to_string(h->n_layers) + " layers and holds only " +
                                           std::to_string(n_tensors) +
                                           " tensors. The file is incomplete; get it again");
}

}  // namespace

void read_common(const ArchKeys& keys, HyperParameters* h) {
  read_layer_count(keys, h);
  const int64_t n_blocks = h->n_layers + h->n_nextn_layers;
  h->n_embd = keys.require_int("embedding_length");
  if (!keys.bool_or("attention.causal", true)) {
    keys.refuse_feature("attention.causal", "false", "attention to later positions");
  }
  h->n_ctx_train = keys.require_int("context_length");
  const std::vector<int64_t> heads = keys.require_ints("attention.head_count", n_blocks);
  const std::vector<int64_t> kv_heads =
      keys.has("attention.head_count_kv") ? keys.require_ints("attention.head_count_kv", n_blocks, 0) : heads;
  // Models whose every layer has experts may leave the dense width out.
  std::vector<int64_t> widths(static_cast<size_t>(n_blocks), 0);
  if (keys.has("feed_forward_length") || !keys.has("expert_feed_forward_length")) {
    widths = keys.require_ints("feed_forward_length", n_blocks, 0);
  }
  h->n_heads = heads[0];
  h->n_kv_heads = kv_heads[0];
  h->n_ff = widths[0];
  h->head_dim_k = keys.int_or("attention.key_length", h->n_embd / h->n_heads);
  h->head_dim_v = keys.int_or("attention.value_length", h->n_embd / h->n_heads);
  if (h->head_dim_k < 1 || h->head_dim_v < 1) {
    keys.refuse_value("attention.head_count", h->n_heads, "at most embedding_length");
  }
  const char* eps_key = h->layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  const double eps = keys.require_float(eps_key);
  if (!(eps >= 0.0 && eps < 1.0)) keys.refuse_value(eps_key, std::to_string(eps), "a number from 0 to 1");
  h->rms_eps = static_cast<float>(eps);
  for (size_t i = 0; i < static_cast<size_t>(n_blocks); ++i) {
    auto& layers = i < static_cast<size_t>(h->n_layers) ? h->layers : h->nextn_layers;
    layers.push_back({.n_heads = heads[i],
                      .n_kv_heads = kv_heads[i],
                      .head_dim_k = h->head_dim_k,
                      .head_dim_v = h->head_dim_v,
                      .n_ff = widths[i]});
  }
  read_rope(keys, h);
}

void read_experts(const ArchKeys& keys, HyperParameters* h) {
  MoeParameters& moe = h->moe;
  moe.n_experts = keys.require_int("expert_count");
  moe.n_used = keys.require_same_int("expert_used_count");
  if (moe.n_used > moe.n_experts) {
    keys.refuse_value("expert_used_count", moe.n_used, "at most expert_count " + std::to_string(moe.n_experts));
  }
  for (LayerParameters& layer : h->layers) layer.has_experts = true;
  for (LayerParameters& layer : h->nextn_layers) layer.has_experts = true;
  const int64_t n_groups = keys.int_or("expert_group_count", 0, 0);
  if (n_groups <= 1) return;
  moe.n_groups = n_groups;
  if (moe.n_experts % n_groups != 0 || moe.n_experts < 2 * n_groups) {
    keys.refuse_value("expert_group_count", n_groups,
                      "a divisor of expert_count " + std::to_string(moe.n_experts) + ", with two experts per group");
  }
  moe.n_groups_used = keys.require_int("expert_group_used_count");
  const int64_t n_open = moe.n_groups_used * (moe.n_experts / n_groups);
  if (moe.n_groups_used > n_groups || n_open < moe.n_used) {
    keys.refuse_value("expert_group_used_count", moe.n_groups_used,
                      "at most expert_group_count, and groups with expert_used_count experts in all");
  }
}

void read_gating(const ArchKeys& keys, const Gating* fallback, HyperParameters* h) {
  const char* key = "expert_gating_func";
  const int64_t value = fallback != nullptr ? keys.int_or(key, 0, 0) : keys.require_int(key, 0);
  switch (value) {
    case 1: h->moe.gating = Gating::kSoftmax; return;
    case 2: h->moe.gating = Gating::kSigmoid; return;
    case 3: h->moe.gating = Gating::kSoftmaxOfChosen; return;
    default: break;
  }
  if (value != 0 || fallback == nullptr) {
    keys.refuse_feature(key, std::to_string(value),
                        "gating functions other than softmax (1), sigmoid (2) and softmax of the chosen (3)");
  }
  h->moe.gating = *fallback;
}

void read_weights_rule(const ArchKeys& keys, HyperParameters* h) {
  h->moe.renormalize = keys.bool_or("expert_weights_norm", false);
  const double scale = keys.float_or("expert_weights_scale", 0.0);
  if (scale != 0.0) h->moe.weights_scale = scale;  // 0 means that there is none
}

void read_leading_dense(const ArchKeys& keys, HyperParameters* h) {
  const int64_t n_dense = keys.int_or("leading_dense_block_count", 0, 0);
  for (int64_t i = 0; i < std::min(n_dense, h->n_layers); ++i) h->layers[static_cast<size_t>(i)].has_experts = false;
  for (int64_t i = h->n_layers; i < std::min(n_dense, h->n_layers + h->n_nextn_layers); ++i) {
    h->nextn_layers[static_cast<size_t>(i - h->n_layers)].has_experts = false;
  }
}

void read_shared_experts(const ArchKeys& keys, int64_t width, HyperParameters* h) {
  const int64_t n_shared = keys.require_int("expert_shared_count", 0);
  if (n_shared == 0) return;
  h->moe.shared = SharedExpert::kPlain;
  h->moe.n_ff_shared = width * n_shared;
}

void read_window_layers(const ArchKeys& keys, int64_t period, bool dense_first, HyperParameters* h) {
  const char* key = "attention.sliding_window_pattern";
  const GgufValue* value = keys.reader().find(keys.full(key));
  if (value != nullptr && value->type == GgufValueType::kArray) {
    std::vector<bool> flags;
    if (value->element_type == GgufValueType::kBool) {
      flags = keys.reader().require_bools(keys.full(key), -1);
    } else {  // as numbers, which other writers use
      const std::vector<int64_t> numbers = keys.require_ints(key, -1, 0);
      for (const int64_t number : numbers) flags.push_back(number != 0);
    }
    if (std::ssize(flags) < h->n_layers) {
      keys.refuse_value(key, std::to_string(flags.size()) + " flags", "one for each of the layers");
    }
    for (size_t i = 0; i < h->layers.size(); ++i) h->layers[i].windowed = flags[i];
    return;
  }
  period = period < 0 ? keys.require_int(key, 0) : keys.int_or(key, period, 0);
  for (int64_t i = 0; i < h->n_layers; ++i) {
    const bool dense = period > 0 && i % period == (dense_first ? 0 : period - 1);
    h->layers[static_cast<size_t>(i)].windowed = !dense;
  }
}

void read_scales(const ArchKeys& keys, HyperParameters* h) {
  const double divisor = keys.require_float("logit_scale");
  if (divisor == 0.0) keys.refuse_value("logit_scale", "0", "a number other than 0");
  h->logit_scale = 1.0 / divisor;
  h->attention_scale = keys.float_or("attention.scale", 0.0);
  const auto scale = [&](const char* key) {
    const double value = keys.float_or(key, 0.0);
    return value != 0.0 ? value : 1.0;
  };
  h->residual_scale = scale("residual_scale");
  h->embedding_scale = scale("embedding_scale");
}

void check_layers(const ArchKeys& keys, const HyperParameters& h) {
  std::vector<LayerParameters> blocks = h.layers;
  blocks.insert(blocks.end(), h.nextn_layers.begin(), h.nextn_layers.end());
  for (const LayerParameters& layer : blocks) {
    const bool has_attention = layer.mixer == Mixer::kAttention;
    if (has_attention && (layer.n_kv_heads < 1 || layer.n_heads % layer.n_kv_heads != 0)) {
      keys.refuse_value("attention.head_count_kv", layer.n_kv_heads,
                        "a divisor of attention.head_count " + std::to_string(layer.n_heads));
    }
    if (layer.n_heads * std::max(layer.head_dim_k, layer.head_dim_v) > kMaxInt) {
      keys.refuse_value("attention.head_count", layer.n_heads, "heads of less than 2^31 elements in all");
    }
    const int64_t n_rot = layer.windowed ? h.n_rot_windowed : h.n_rot;
    if (layer.has_rope && (n_rot > layer.head_dim_k || n_rot % 2 != 0)) {
      keys.refuse_value(layer.windowed ? "rope.dimension_count_swa" : "rope.dimension_count", n_rot,
                        "an even number up to the head size " + std::to_string(layer.head_dim_k));
    }
    if (layer.has_experts && h.moe.n_ff < 1) {
      keys.refuse_value("expert_feed_forward_length", h.moe.n_ff, "the width of an expert, at least 1");
    }
    if ((!layer.has_experts || h.moe.dense_beside) && layer.n_ff < 1) {
      keys.refuse_value("feed_forward_length", layer.n_ff, "the width of the dense layers, at least 1");
    }
  }
}

}  // namespace expertree
