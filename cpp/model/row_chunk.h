// The rows of a pass, as many as go through all layers together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/model/model.h"
#include "cpp/profile/timeline.h"

namespace expertree {

// Rows [begin, begin + n) of one sequence's batch, which are rows [at, at + n) of a chunk.
struct RowPiece {
  const SequencePass& pass;
  int64_t begin;
  int64_t n;
  int64_t at;

  const ForwardRequest& request() const { return *pass.request; }
  ForwardResult& result() const { return *pass.result; }
  int64_t result_row() const { return begin - pass.request->first_row; }  // that the first of these is
  int64_t n_result_rows() const { return pass.batch->size() - pass.request->first_row; }
  int64_t n_logit_rows() const;  // the last ones of these
  int64_t n_asked_rows() const;  // the last ones, whose output of the last layer is wanted
};

// Of one sequence or of several.
struct RowChunk {
  struct Row {
    SequenceState* state;
    int64_t index;  // in its batch
    int64_t position;
    int32_t token;
  };
  std::span<const SequencePass> sequences;
  std::vector<RowPiece> pieces;
  std::vector<Row> rows;
  int64_t n = 0;
  Timeline* timeline = nullptr;  // no profile runs

  void add(const SequencePass& pass, int64_t begin, int64_t n_rows);
  const Row& row(int64_t r) const { return rows[static_cast<size_t>(r)]; }
  int64_t position(int64_t r) const { return row(r).position; }
  int64_t cell(int64_t r) const { return row(r).state->cell(row(r).index); }
  const PathCells& path(int64_t r) const { return row(r).state->path(row(r).index); }
  void check_stop() const;
};

}  // namespace expertree
