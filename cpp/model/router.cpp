// Which experts each row of a chunk goes to, and with what weights.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpp/base/error.h"
#include "cpp/model/forward.h"

namespace expertree {
namespace {

// p = 1 / (1 + exp(-p)), float [n].
void sigmoid(const KernelTable& kernels, int64_t n, float* p) {
  for (int64_t i = 0; i < n; ++i) p[i] = -p[i];
  kernels.exp_f32(p, n, p);
  for (int64_t i = 0; i < n; ++i) p[i] = 1.0f / (1.0f + p[i]);
}

// Leaves the experts of the best groups in the choice: all others are set to -inf. Ties go to the lower group.
void mask_groups(const MoeParameters& moe, float* selection) {
  const int64_t size = moe.n_experts / moe.n_groups;
  std::vector<float> score(static_cast<size_t>(moe.n_groups));
  for (int64_t g = 0; g < moe.n_groups; ++g) {
    float best[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
    for (int64_t i = 0; i < size; ++i) {
      const float s = selection[g * size + i];
      if (s > best[0]) {
        best[1] = best[0];
        best[0] = s;
      } else if (s > best[1]) {
        best[1] = s;
      }
    }
    // -inf: an expert that MoE-Spec's budget dropped. Of two groups with one kept expert the better one is open.
    score[static_cast<size_t>(g)] = std::isfinite(best[1]) ? best[0] + best[1] : best[0];
  }
  std::vector<int64_t> order(static_cast<size_t>(moe.n_groups));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)]; });
  for (int64_t i = moe.n_groups_used; i < moe.n_groups; ++i) {
    std::fill_n(selection + order[static_cast<size_t>(i)] * size, size, -std::numeric_limits<float>::infinity());
  }
}

}  // namespace

// What the router of a layer reads, where that is not normed_.
void Forward::read_router_input(int64_t n, const LayerWeights& w, Activations* y) const {
  y->reset(n, h_.n_embd);
  switch (h_.moe.router_input) {
    case RouterInput::kNormed: norm(residual_.data(), w.ffn_norm, w.ffn_norm_bias, y); break;
    case RouterInput::kOwnNorm: norm(residual_.data(), w.moe.router_norm, {}, y); break;
    case RouterInput::kLayerInput: std::copy_n(residual_.data(), n * h_.n_embd, y->data()); break;
  }
}

// scores: [x.rows()][n_experts], as the router gives them.
void Forward::ask_router(const MoeWeights& w, Activations& x, std::vector<float>* scores) {
  const int64_t n_experts = h_.moe.n_experts;
  scores->resize(static_cast<size_t>(x.rows() * n_experts));
  const float* bias = w.router_bias.empty() ? nullptr : w.router_bias.data();
  const CpuBackend::Product router[] = {{w.router, scores->data(), n_experts, bias}};
  backend_.matmul(x, router);
}

void Forward::router_scores(const Chunk& chunk, int64_t layer) {
  const LayerWeights& w = weights(layer);
  if (h_.moe.router_input == RouterInput::kNormed) return ask_router(w.moe, normed_, &scores_);
  read_router_input(chunk.n, w, &router_input_);
  ask_router(w.moe, router_input_, &scores_);
}

// Of one row: scores [n_experts] of the router become what experts are chosen by and weighted with.
void Forward::gate(float* scores) const {
  if (h_.moe.gating == Gating::kSoftmax) backend_.kernels().softmax(scores, h_.moe.n_experts, scores);
  if (h_.moe.gating == Gating::kSigmoid) sigmoid(backend_.kernels(), h_.moe.n_experts, scores);
}

// One row: from gated scores [n_experts] ids and weights [n_used], best first.
void Forward::choose(const MoeWeights& w, const float* scores, int32_t* ids, float* weights) const {
  const MoeParameters& moe = h_.moe;
  const int64_t n_used = moe.n_used;
  std::vector<float> selection(scores, scores + moe.n_experts);
  for (size_t e = 0; e < w.selection_bias.size(); ++e) selection[e] = selection[e] + w.selection_bias[e];
  if (moe.n_groups > 1) {
    std::vector<float> open = selection;
    mask_groups(moe, open.data());
    // Of the experts that MoE-Spec's budget keeps, the open groups may hold too few.
    if (std::ranges::count_if(open, [](float s) { return std::isfinite(s); }) >= n_used) selection = std::move(open);
  }
  std::vector<int32_t> order(static_cast<size_t>(moe.n_experts));
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + n_used, order.end(), [&selection](int32_t a, int32_t b) {
    const float x = selection[static_cast<size_t>(a)];
    const float y = selection[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (int64_t i = 0; i < n_used; ++i) {
    ids[i] = order[static_cast<size_t>(i)];
    weights[i] = scores[ids[i]];
  }
  if (moe.gating == Gating::kSoftmaxOfChosen) backend_.kernels().softmax(weights, n_used, weights);
  if (moe.gating == Gating::kSigmoidOfChosen) sigmoid(backend_.kernels(), n_used, weights);
  if (moe.renormalize) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n_used; ++i) sum = sum + weights[i];
    for (int64_t i = 0; i < n_used; ++i) weights[i] = weights[i] / std::max(sum, kMinWeightSum);
  }
  const auto scale = static_cast<float>(moe.weights_scale);
  if (scale == 1.0f) return;
  for (int64_t i = 0; i < n_used; ++i) weights[i] = weights[i] * scale;
}

void Forward::refuse_scores(int64_t layer) const {
  throw Error(ErrorCode::kModelFormat,
              m_.path_ + ": the router of layer " + std::to_string(layer) +
                  " gave a score that is not a finite number; the weights of the file are damaged. Check the "
                  "file's hash and get it again");
}

// Gated scores, ids and weights of all rows.
void Forward::choose_all(const Chunk& chunk, int64_t layer) {
  const int64_t n_experts = h_.moe.n_experts;
  const int64_t n_used = h_.moe.n_used;
  chosen_.resize(static_cast<size_t>(chunk.n * n_used));
  weights_.resize(static_cast<size_t>(chunk.n * n_used));
  const MoeWeights& w = weights(layer).moe;
  if (h_.moe.router_input != RouterInput::kLayerInput) router_scores(chunk, layer);
  backend_.pool().parallel_for(chunk.n, [&](int64_t r) {
    float* scores = scores_.data() + r * n_experts;
    for (int64_t e = 0; e < n_experts; ++e) {
      if (!std::isfinite(scores[e])) refuse_scores(layer);
    }
    gate(scores);
    choose(w, scores, chosen_.data() + r * n_used, weights_.data() + r * n_used);
  });
}

void Forward::route(const Chunk& chunk, int64_t layer) {
  const int64_t n_experts = h_.moe.n_experts;
  const int64_t n_used = h_.moe.n_used;
  const MoeWeights& w = weights(layer).moe;
  if (block_ == nullptr || !block_->has_router()) choose_all(chunk, layer);
  for (const Piece& piece : chunk.pieces) {
    if (piece.request().most_experts > 0 && piece.request().most_experts < n_experts) {
      drop_light_experts(piece);
      for (int64_t r = piece.at; r < piece.at + piece.n; ++r) {
        choose(w, scores_.data() + r * n_experts, chosen_.data() + r * n_used, weights_.data() + r * n_used);
      }
    }
    if (!piece.request().routing) continue;
    const int64_t base = (w.moe_layer * piece.n_result_rows() + piece.result_row()) * n_used;
    std::copy_n(chosen_.data() + piece.at * n_used, piece.n * n_used, piece.result().expert_ids.data() + base);
    std::copy_n(weights_.data() + piece.at * n_used, piece.n * n_used, piece.result().expert_weights.data() + base);
  }
}

}  // namespace expertree
