// Reading ahead: which experts will the next layer use? Its own router is asked about the residual stream as it is before
// this layer's experts have added to it, which layers of a trained model change little (Eliseev and Mazur 2023, "Fast
// inference of mixture-of-experts language models with offloading").
#include <algorithm>
#include <limits>
#include <numeric>

#include "cpp/model/forward.h"

namespace expertree {
namespace {

// More rows use most experts of a layer anyway, and their reads keep the disk busy without guesses.
constexpr int64_t kMaxRows = 16;

}  // namespace

void Forward::hint_next_layer(const Chunk& chunk, int64_t layer) {
  if (chunk.n > kMaxRows || !m_.experts_->wants_hints()) return;
  const ZoneScope zone(chunk.timeline, Zone::kPredict, layer);
  int64_t next = layer + 1;
  while (next < h_.n_layers && weights(next).moe.moe_layer < 0) ++next;
  if (next == h_.n_layers) return;
  const LayerWeights& w = weights(next);
  const int64_t n_experts = h_.moe.n_experts;
  read_router_input(chunk.n, w, &guessed_);
  ask_router(w.moe, guessed_, &guessed_scores_);

  // What each row would choose, by the score of the row that likes an expert best.
  constexpr float kNobody = -std::numeric_limits<float>::infinity();
  std::vector<float> best(static_cast<size_t>(n_experts), kNobody);
  std::vector<int32_t> chosen(static_cast<size_t>(h_.moe.n_used));
  std::vector<float> chosen_weights(chosen.size());
  for (int64_t r = 0; r < chunk.n; ++r) {
    float* scores = guessed_scores_.data() + r * n_experts;
    gate(scores);
    choose(w.moe, scores, chosen.data(), chosen_weights.data());
    for (const int32_t e : chosen) best[static_cast<size_t>(e)] = std::max(best[static_cast<size_t>(e)], scores[e]);
  }
  std::vector<int32_t> order(static_cast<size_t>(n_experts));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&best](int32_t a, int32_t b) { return best[static_cast<size_t>(a)] > best[static_cast<size_t>(b)]; });
  const auto is_guessed = [&best](int32_t e) { return best[static_cast<size_t>(e)] > kNobody; };
  const auto end = std::find_if_not(order.begin(), order.end(), is_guessed);
  m_.experts_->hint(static_cast<int32_t>(w.moe.moe_layer), std::span(order.begin(), end), 0.0f);
}

}  // namespace expertree
