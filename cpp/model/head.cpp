// Logits of the rows that are asked about: whole rows, or the best of each where those are enough and a device has the head.
#include <algorithm>

#include "cpp/backend/machine_limits.h"
#include "cpp/model/forward.h"

namespace expertree {
namespace {

int64_t rows_with_logits(const SequencePass& pass) {
  switch (pass.request->logits) {
    case LogitRows::kNone: return 0;
    case LogitRows::kLast: return 1;
    case LogitRows::kAll: return pass.batch->size() - pass.request->first_row;
  }
  return 0;
}

void size_logits(const SequencePass& pass, int64_t n_vocab, int32_t n_best) {
  const int64_t n = rows_with_logits(pass) * (n_best > 0 ? n_best : n_vocab);
  require_memory(static_cast<uint64_t>(n) * sizeof(float), "the logits of this batch");
  pass.result->n_best = n_best;
  pass.result->logits.resize(static_cast<size_t>(n));
  pass.result->best_ids.resize(n_best > 0 ? static_cast<size_t>(n) : 0);
}

}  // namespace

// How many of each row's logits the passes are given; 0: all. Only where all rows with logits are in one chunk, so that
// whole rows can still take their place.
int32_t Forward::best_that_suffice(std::span<const SequencePass> sequences) const {
  if (!products_.has_head()) return 0;
  int32_t n_best = 0;
  int64_t n_rows = 0;
  for (const SequencePass& pass : sequences) {
    n_rows += pass.batch->size() - pass.request->first_row;
    if (pass.request->logits == LogitRows::kNone) continue;
    if (pass.request->n_best == 0) return 0;
    n_best = std::max(n_best, pass.request->n_best);
  }
  const bool one_chunk = n_rows <= kChunkRows || (sequences.size() == 1 && rows_with_logits(sequences[0]) == 1);
  return one_chunk && n_best <= kMostBest && n_best < h_.n_vocab ? n_best : 0;
}

void Forward::size_logits_of(std::span<const SequencePass> sequences) {
  n_best_ = best_that_suffice(sequences);
  for (const SequencePass& pass : sequences) size_logits(pass, h_.n_vocab, n_best_);
}

std::vector<const RowPiece*> Forward::pieces_with_logits(const Chunk& chunk) {
  std::vector<const Piece*> asked;
  for (const Piece& piece : chunk.pieces) {
    if (piece.n_logit_rows() > 0) asked.push_back(&piece);
  }
  return asked;
}

void Forward::logits(const Chunk& chunk) {
  const std::vector<const Piece*> asked = pieces_with_logits(chunk);
  if (asked.empty()) return;
  int64_t n = 0;
  for (const Piece* piece : asked) n += piece->n_logit_rows();
  // The output matrix is read once for the rows of all sequences.
  const auto first_of = [](const Piece& piece) { return piece.at + piece.n - piece.n_logit_rows(); };
  const float* inputs = residual_.data() + first_of(*asked.front()) * h_.n_embd;
  if (asked.size() > 1) {
    head_inputs_.clear();
    for (const Piece* piece : asked) {
      const float* rows = residual_.data() + first_of(*piece) * h_.n_embd;
      head_inputs_.insert(head_inputs_.end(), rows, rows + piece->n_logit_rows() * h_.n_embd);
    }
    inputs = head_inputs_.data();
  }
  if (n_best_ > 0) {
    best_ids_.resize(static_cast<size_t>(n * n_best_));
    head_outputs_.resize(best_ids_.size());
    if (products_.best_logits(inputs, n, n_best_, head_outputs_.data(), best_ids_.data())) {
      return give_logits(asked, n_best_);
    }
    // Whoever reads such a row is to say what is wrong with it.
    for (const SequencePass& pass : chunk.sequences) size_logits(pass, h_.n_vocab, 0);
    n_best_ = 0;
  }
  whole_logits(inputs, n, asked);
}

// Where a piece's rows of `width` logits go.
int64_t Forward::first_logit(const Piece& piece, int64_t width) {
  return piece.request().logits == LogitRows::kLast ? 0 : piece.result_row() * width;
}

void Forward::whole_logits(const float* inputs, int64_t n, std::span<const Piece* const> asked) {
  const int64_t width = h_.n_vocab;
  float* outputs = nullptr;
  if (asked.size() > 1) {
    head_outputs_.resize(static_cast<size_t>(n * width));
    outputs = head_outputs_.data();
  } else {
    outputs = asked.front()->result().logits.data() + first_logit(*asked.front(), width);
  }
  normed_.reset(n, h_.n_embd);
  norm(inputs, m_.weights_.output_norm, m_.weights_.output_norm_bias, &normed_);
  const FloatVector& bias = m_.weights_.output_bias;
  const CpuBackend::Product head[] = {{m_.weights_.output, outputs, width, bias.empty() ? nullptr : bias.data()}};
  products_.matmul(normed_, head);
  scale_logits(n * width, outputs);
  if (asked.size() > 1) give_logits(asked, width);
}

// From head_outputs_, and where it is the best of each row from best_ids_, to whom they belong.
void Forward::give_logits(std::span<const Piece* const> asked, int64_t width) const {
  int64_t from = 0;
  for (const Piece* piece : asked) {
    const int64_t n = piece->n_logit_rows() * width, to = first_logit(*piece, width);
    std::copy_n(head_outputs_.data() + from, n, piece->result().logits.data() + to);
    if (n_best_ > 0) std::copy_n(best_ids_.data() + from, n, piece->result().best_ids.data() + to);
    from += n;
  }
}

// Scale, then soft cap (canonical.h, C13), over n logits.
void Forward::scale_logits(int64_t n, float* logits) const {
  const auto scale = static_cast<float>(h_.logit_scale);
  const auto cap = static_cast<float>(h_.logit_softcap);
  if (scale == 1.0f && cap == 0.0f) return;
  constexpr int64_t kTaskLogits = 4096;
  backend_.pool().parallel_for((n + kTaskLogits - 1) / kTaskLogits, [&](int64_t task) {
    float* x = logits + task * kTaskLogits;
    const int64_t size = std::min(kTaskLogits, n - task * kTaskLogits);
    if (scale != 1.0f) {
      for (int64_t i = 0; i < size; ++i) x[i] = x[i] * scale;
    }
    if (cap == 0.0f) return;
    for (int64_t i = 0; i < size; ++i) x[i] = x[i] * (2.0f / cap);
    backend_.kernels().exp_f32(x, size, x);
    for (int64_t i = 0; i < size; ++i) x[i] = cap * (1.0f - 2.0f / (x[i] + 1.0f));
  });
}

}  // namespace expertree
