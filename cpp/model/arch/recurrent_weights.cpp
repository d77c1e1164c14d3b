#include "cpp/model/arch/recurrent_weights.h"

#include <vector>

#include "cpp/model/arch/row_order.h"

namespace expertree {
namespace {

// Per key head its betas, then its alphas: to all betas, then all alphas.
void split_beta_alpha(const RecurrentParameters& r, DeltaNetWeights* w) {
  const int64_t group = r.n_value_heads / r.n_key_heads;
  std::vector<int64_t> order;
  for (const int64_t part : {0, 1}) {
    for (int64_t i = 0; i < r.n_value_heads; ++i) order.push_back(2 * group * (i / group) + part * group + i % group);
  }
  const WeightMatrix both = w->beta;
  reorder_rows(both, order);
  w->beta = both.rows_from(0, r.n_value_heads);
  w->alpha = both.rows_from(r.n_value_heads, r.n_value_heads);
}

// Per key head its query, key, values and gates, as the first files had them: to the order of qkv, then all gates.
void split_in(const RecurrentParameters& r, DeltaNetWeights* w) {
  const int64_t d = r.head_dim;
  const int64_t values = r.n_value_heads / r.n_key_heads * d;
  const int64_t stride = 2 * d + 2 * values;
  std::vector<int64_t> order;
  const auto part = [&](int64_t first, int64_t size) {
    for (int64_t head = 0; head < r.n_key_heads; ++head) {
      for (int64_t i = 0; i < size; ++i) order.push_back(head * stride + first + i);
    }
  };
  part(0, d);
  part(d, d);
  part(2 * d, values);
  part(2 * d + values, values);
  const WeightMatrix all = w->qkv;
  reorder_rows(all, order);
  w->qkv = all.rows_from(0, r.n_channels);
  w->gate = all.rows_from(r.n_channels, r.n_values());
}

// [channels][taps] to [taps][channels].
void transpose(int64_t n_taps, FloatVector* conv) {
  const int64_t n_channels = std::ssize(*conv) / n_taps;
  FloatVector turned(conv->size());
  for (int64_t c = 0; c < n_channels; ++c) {
    for (int64_t t = 0; t < n_taps; ++t) {
      turned[static_cast<size_t>(t * n_channels + c)] = (*conv)[static_cast<size_t>(c * n_taps + t)];
    }
  }
  *conv = std::move(turned);
}

void plan_delta_net(TensorPlan* plan, const std::string& block, const HyperParameters& h, DeltaNetWeights* w) {
  const RecurrentParameters& r = h.recurrent;
  if (r.neighbours_share_key && !plan->has(block + "attn_qkv.weight") && plan->has(block + "ssm_in.weight")) {
    plan->matrix(block + "ssm_in.weight", h.n_embd, r.n_channels + r.n_values(), &w->qkv);
  } else {
    plan->matrix(block + "attn_qkv.weight", h.n_embd, r.n_channels, &w->qkv);
    plan->matrix(block + "attn_gate.weight", h.n_embd, r.n_values(), &w->gate);
  }
  if (r.neighbours_share_key) {
    plan->matrix(block + "ssm_ba.weight", h.n_embd, 2 * r.n_value_heads, &w->beta);
  } else {
    plan->matrix(block + "ssm_beta.weight", h.n_embd, r.n_value_heads, &w->beta);
    plan->matrix(block + "ssm_alpha.weight", h.n_embd, r.n_value_heads, &w->alpha);
  }
  plan->floats(block + "ssm_conv1d.weight", {r.n_taps, r.n_channels}, &w->conv);
  plan->vector(block + "ssm_dt.bias", r.n_value_heads, &w->dt);
  plan->vector(block + "ssm_a", r.n_value_heads, &w->a);
  plan->vector(block + "ssm_norm.weight", r.head_dim, &w->norm);
  plan->matrix(block + "ssm_out.weight", r.n_values(), h.n_embd, &w->output);
}

void plan_short_conv(TensorPlan* plan, const std::string& block, const HyperParameters& h, ShortConvWeights* w) {
  plan->matrix(block + "shortconv.in_proj.weight", h.n_embd, 3 * h.n_embd, &w->in);
  plan->matrix(block + "shortconv.out_proj.weight", h.n_embd, h.n_embd, &w->output);
  plan->floats(block + "shortconv.conv.weight", {h.recurrent.n_taps, h.n_embd}, &w->conv);
}

}  // namespace

void plan_recurrent(TensorPlan* plan, const std::string& block, const HyperParameters& h, int64_t layer,
                    LayerWeights* w) {
  if (h.layer(layer).mixer == Mixer::kDeltaNet) {
    plan_delta_net(plan, block, h, &w->delta_net);
  } else {
    plan_short_conv(plan, block, h, &w->short_conv);
  }
}

void finish_recurrent(const HyperParameters& h, int64_t layer, LayerWeights* w) {
  const RecurrentParameters& r = h.recurrent;
  if (h.layer(layer).mixer == Mixer::kShortConv) {
    transpose(r.n_taps, &w->short_conv.conv);
    return;
  }
  if (!w->delta_net.gate.present()) split_in(r, &w->delta_net);
  if (!w->delta_net.alpha.present()) split_beta_alpha(r, &w->delta_net);
  transpose(r.n_taps, &w->delta_net.conv);
}

}  // namespace expertree
