#include "cpp/model/row_chunk.h"

namespace expertree {

int64_t RowPiece::n_asked_rows() const { return request().routing || request().last_hidden ? n : n_logit_rows(); }

int64_t RowPiece::n_logit_rows() const {
  if (request().logits == LogitRows::kAll) return n;
  const bool is_last = begin + n == pass.batch->size();
  return request().logits == LogitRows::kLast && is_last ? 1 : 0;
}

void RowChunk::add(const SequencePass& pass, int64_t begin, int64_t n_rows) {
  pieces.push_back({pass, begin, n_rows, n});
  for (int64_t i = begin; i < begin + n_rows; ++i) {
    const auto at = static_cast<size_t>(i);
    rows.push_back({pass.state, i, pass.state->n_committed() + pass.batch->depths[at], pass.batch->tokens[at]});
  }
  n += n_rows;
}

void RowChunk::check_stop() const {
  for (const SequencePass& pass : sequences) {
    if (pass.request->check_stop) pass.request->check_stop();
  }
}

}  // namespace expertree
