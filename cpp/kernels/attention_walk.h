// The walk of vectorised attention (canonical.h, C8): rows and heads that share a KV head go over its cells together, so
// that a tile of keys and values is read from memory once, is decoded once, and comes from the near caches for the rest:
// all of them meet the tile's keys before any meets its values, since keys and values of a tile are too large for L1 both.
// Everything is static: each instruction set has its own copy (no symbol may be shared between them).
#pragma once

#include "cpp/kernels/attention_tile.h"

namespace expertree {

constexpr int64_t kWalkRows = 8;  // that walk together
constexpr int64_t kWalkPairs = 64;  // of a row and a head: 32 KiB of outputs at heads of 128

static_assert(kDecodedCells >= kAttentionTile + kWalkRows);

// Running maximum and sum of one head.
struct RunningSoftmax {
  float m;
  float l;
};

static inline int64_t n_seen(const AttendArgs& args) { return args.n_prefix + args.n_tail - args.first; }

// What a tile's keys have made of its pairs of a row and a head.
struct TileWeights {
  alignas(64) float p[kWalkPairs][kAttentionTile];
  float c[kWalkPairs];  // the factor of what came before
};

// Heads first .. first + n_heads - 1 of up to kWalkRows rows. What is kept by pairs of a row and a head is [row][head].
template <typename Isa>
class WalkGroup {
 public:
  WalkGroup(const AttendArgs* rows, int64_t n_rows, int64_t first, int64_t n_heads)
      : rows_(rows), n_rows_(n_rows), n_heads_(n_heads) {
    for (int64_t& cell : decoded_.cell) cell = -1;
    for (bool& needed : decoded_.needed) needed = false;
    for (int64_t pair = 0; pair < n_rows * n_heads; ++pair) {
      const AttendArgs& args = rows[pair / n_heads];
      const int64_t head = first + pair % n_heads;
      q_[pair] = args.q + head * args.q_stride;
      out_[pair] = args.out + head * args.out_stride;
      for (int64_t d = 0; d < args.head_dim_v; ++d) out_[pair][d] = 0.0f;
      states_[pair].m = args.sinks ? args.sinks[head] : -__builtin_inff();
      states_[pair].l = args.sinks ? 1.0f : 0.0f;
    }
  }

  void attend() {
    int64_t longest = 0;
    for (int64_t r = 0; r < n_rows_; ++r) longest = n_seen(rows_[r]) > longest ? n_seen(rows_[r]) : longest;
    for (int64_t begin = 0; begin < longest; begin += kAttentionTile) attend_tile(begin);
    for (int64_t pair = 0; pair < n_rows_ * n_heads_; ++pair) {
      const float inverse = 1.0f / states_[pair].l;
      for (int64_t d = 0; d < rows_[0].head_dim_v; ++d) out_[pair][d] = out_[pair][d] * inverse;
    }
  }

 private:
  void attend_tile(int64_t begin) {
    int64_t waiting = 0;  // rows from here on have their tile, and have not met it
    for (int64_t r = 0; r < n_rows_; ++r) {
      const AttendArgs& args = rows_[r];
      tile_of_[r] = nullptr;
      if (begin >= n_seen(args)) continue;
      if (r > waiting && tile_of_[r - 1] != nullptr && is_same_tile(rows_[r - 1], args, begin)) {
        tile_of_[r] = tile_of_[r - 1];
        continue;
      }
      if (takes_slots(args, args.first + begin, decoded_)) {
        meet_tiles(waiting, r);
        waiting = r;
      }
      tiles_[r] = tile_at<Isa>(args, args.first + begin, &decoded_);
      tile_of_[r] = &tiles_[r];
    }
    meet_tiles(waiting, n_rows_);
  }

  void meet_tiles(int64_t row_begin, int64_t row_end) {
    for_each_tile(row_begin, row_end, [this](const Tile& tile, int64_t pair, int64_t n) {
      Isa::weigh_keys(rows_[0], tile, q_ + pair, n, states_ + pair, weights_.p + pair, weights_.c + pair);
    });
    for_each_tile(row_begin, row_end, [this](const Tile& tile, int64_t pair, int64_t n) {
      Isa::add_values(rows_[0], tile, weights_.p + pair, weights_.c + pair, n, out_ + pair);
    });
    for (bool& needed : decoded_.needed) needed = false;
  }

  // function(tile, first pair, number of pairs) for the rows, those with the same tile together.
  template <typename Function>
  void for_each_tile(int64_t row_begin, int64_t row_end, const Function& function) {
    for (int64_t r = row_begin, end; r < row_end; r = end) {
      for (end = r + 1; end < row_end && tile_of_[end] == tile_of_[r]; ++end) {
      }
      if (tile_of_[r] != nullptr) function(*tile_of_[r], r * n_heads_, (end - r) * n_heads_);
    }
  }

  const AttendArgs* rows_;
  int64_t n_rows_;
  int64_t n_heads_;
  const float* q_[kWalkPairs];
  float* out_[kWalkPairs];
  RunningSoftmax states_[kWalkPairs];
  TileWeights weights_;
  DecodedCells decoded_;
  Tile tiles_[kWalkRows];
  const Tile* tile_of_[kWalkRows];
};

template <typename Isa>
static void walk_attention(const AttendArgs* rows, int64_t n_rows) {
  for (int64_t r = 0; r < n_rows; r += kWalkRows) {
    const int64_t n = n_rows - r < kWalkRows ? n_rows - r : kWalkRows;
    const int64_t step = kWalkPairs / n;
    for (int64_t h = 0; h < rows[r].n_heads; h += step) {
      const int64_t left = rows[r].n_heads - h;
      WalkGroup<Isa>(rows + r, n, h, left < step ? left : step).attend();
    }
  }
}

}  // namespace expertree
