// Hidden states for drafters: the residual stream at chosen layers, and the normalised output of the last one.
#include <algorithm>
#include <string>

#include "cpp/base/error.h"
#include "cpp/model/forward.h"

namespace expertree {

void Forward::prepare_hidden(const SequencePass& pass) const {
  const ForwardRequest& request = *pass.request;
  const int64_t n_rows = pass.batch->size() - request.first_row;
  const auto n_taps = static_cast<int64_t>(request.tap_layers.size());
  for (const int32_t layer : request.tap_layers) {
    if (layer >= 0 && layer < h_.n_layers) continue;
    throw Error(ErrorCode::kInvalidRequest, "hidden states of layer " + std::to_string(layer) +
                                                " were asked for; the model has layers 0 to " +
                                                std::to_string(h_.n_layers - 1));
  }
  const int64_t width = n_taps * h_.n_embd;
  const int64_t n_hidden = request.last_hidden ? h_.n_embd : 0;
  require_memory(static_cast<uint64_t>(n_rows * (width + n_hidden)) * sizeof(float), "the hidden states of this batch");
  pass.result->taps.resize(static_cast<size_t>(n_rows * width));
  pass.result->last_hidden.resize(static_cast<size_t>(n_rows * n_hidden));
}

void Forward::tap(const Chunk& chunk, int64_t layer) const {
  for (const Piece& piece : chunk.pieces) {
    const std::vector<int32_t>& tap_layers = piece.request().tap_layers;
    const auto n_taps = static_cast<int64_t>(tap_layers.size());
    for (int64_t t = 0; t < n_taps; ++t) {
      if (tap_layers[static_cast<size_t>(t)] != layer) continue;
      for (int64_t r = 0; r < piece.n; ++r) {
        std::copy_n(residual_.data() + (piece.at + r) * h_.n_embd, h_.n_embd,
                    piece.result().taps.data() + ((piece.result_row() + r) * n_taps + t) * h_.n_embd);
      }
    }
  }
}

void Forward::last_hidden(const Chunk& chunk) {
  if (std::ranges::none_of(chunk.pieces, [](const Piece& piece) { return piece.request().last_hidden; })) return;
  normed_.reset(chunk.n, h_.n_embd);
  norm(residual_.data(), m_.weights_.output_norm, m_.weights_.output_norm_bias, &normed_);
  for (const Piece& piece : chunk.pieces) {
    if (!piece.request().last_hidden) continue;
    std::copy_n(normed_.row(piece.at), piece.n * h_.n_embd,
                piece.result().last_hidden.data() + piece.result_row() * h_.n_embd);
  }
}

}  // namespace expertree
