// The walk of vectorised attention (canonical.h, C8): rows and heads that share a KV head go over its cells together, so
// that a tile of keys and values is read from memory once, is decoded once, and comes from the near caches for the rest.
// Everything is static: each instruction set has its own copy (no symbol may be shared between them).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/kernels/kernel_table.h"

namespace expertree {

constexpr int64_t kWalkRows = 8;  // that walk together
constexpr int64_t kWalkPairs = 64;  // of a row and a head: 32 KiB of outputs at heads of 128

static_assert(kDecodedCells >= kAttentionTile + kWalkRows);

// The cells of a tile's t positions; the rest of the tile repeats the last one.
struct Tile {
  int64_t t;
  const float* k[kAttentionTile];
  const float* v[kAttentionTile];
};

// Running maximum and sum of one head.
struct RunningSoftmax {
  float m;
  float l;
};

// Cells that lie decoded in AttendArgs::scratch: position p in slot p % kDecodedCells.
struct DecodedCells {
  int64_t cell[kDecodedCells];
};

static inline int64_t cell_at(const AttendArgs& args, int64_t position) {
  return position < args.n_prefix ? position : args.tail[position - args.n_prefix];
}

static inline const float* float_row(const CellRows& rows, int64_t cell) {
  return reinterpret_cast<const float*>(rows.data + cell * rows.row_bytes);
}

// Keys and values of a position, decoded into its slot unless they are there.
template <typename Isa>
static void point_at_cell(const AttendArgs& args, int64_t position, DecodedCells* decoded, const float** k,
                          const float** v) {
  const int64_t cell = cell_at(args, position);
  const int64_t slot = position % kDecodedCells;
  const int64_t stride_k = (args.head_dim_k + 31) / 32 * 32;
  const int64_t stride_v = (args.head_dim_v + 31) / 32 * 32;
  float* key = args.scratch + slot * stride_k;
  float* value = args.scratch + kDecodedCells * stride_k + slot * stride_v;
  const bool is_fresh = decoded->cell[slot] != cell;
  const bool values_are_keys = args.v.data == args.k.data;
  decoded->cell[slot] = cell;
  *k = key;
  if (args.k.dtype == DType::kF32) {
    *k = float_row(args.k, cell);
  } else if (is_fresh) {
    Isa::decode_row(args.k.dtype, args.k.data + cell * args.k.row_bytes, args.head_dim_k, key);
  }
  *v = value;
  if (values_are_keys) {
    *v = *k;
  } else if (args.v.dtype == DType::kF32) {
    *v = float_row(args.v, cell);
  } else if (is_fresh) {
    Isa::decode_row(args.v.dtype, args.v.data + cell * args.v.row_bytes, args.head_dim_v, value);
  }
}

template <typename Isa>
static Tile tile_at(const AttendArgs& args, int64_t begin, DecodedCells* decoded) {
  const bool is_plain = args.k.dtype == DType::kF32 && args.v.dtype == DType::kF32;
  const int64_t left = args.n_prefix + args.n_tail - begin;
  Tile tile;
  tile.t = left < kAttentionTile ? left : kAttentionTile;
  for (int64_t j = 0; j < tile.t; ++j) {
    if (is_plain) {
      const int64_t cell = cell_at(args, begin + j);
      tile.k[j] = float_row(args.k, cell);
      tile.v[j] = float_row(args.v, cell);
    } else {
      point_at_cell<Isa>(args, begin + j, decoded, &tile.k[j], &tile.v[j]);
    }
  }
  for (int64_t j = tile.t; j < kAttentionTile; ++j) {
    tile.k[j] = tile.k[tile.t - 1];
    tile.v[j] = tile.v[tile.t - 1];
  }
  return tile;
}

static inline int64_t n_seen(const AttendArgs& args) { return args.n_prefix + args.n_tail - args.first; }

// Heads first .. first + n_heads - 1 of up to kWalkRows rows.
template <typename Isa>
static void attend_group(const AttendArgs* rows, int64_t n_rows, int64_t first, int64_t n_heads) {
  RunningSoftmax states[kWalkPairs];  // [row][head]
  DecodedCells decoded;
  for (int64_t& cell : decoded.cell) cell = -1;
  int64_t longest = 0;
  for (int64_t r = 0; r < n_rows; ++r) {
    const AttendArgs& args = rows[r];
    longest = n_seen(args) > longest ? n_seen(args) : longest;
    for (int64_t h = 0; h < n_heads; ++h) {
      float* out = args.out + (first + h) * args.out_stride;
      for (int64_t d = 0; d < args.head_dim_v; ++d) out[d] = 0.0f;
      states[r * n_heads + h].m = args.sinks ? args.sinks[first + h] : -__builtin_inff();
      states[r * n_heads + h].l = args.sinks ? 1.0f : 0.0f;
    }
  }
  for (int64_t begin = 0; begin < longest; begin += kAttentionTile) {
    for (int64_t r = 0; r < n_rows; ++r) {
      if (begin >= n_seen(rows[r])) continue;
      const Tile tile = tile_at<Isa>(rows[r], rows[r].first + begin, &decoded);
      Isa::attend_tile(rows[r], tile, first, n_heads, states + r * n_heads);
    }
  }
  for (int64_t r = 0; r < n_rows; ++r) {
    for (int64_t h = 0; h < n_heads; ++h) {
      float* out = rows[r].out + (first + h) * rows[r].out_stride;
      const float inverse = 1.0f / states[r * n_heads + h].l;
      for (int64_t d = 0; d < rows[r].head_dim_v; ++d) out[d] = out[d] * inverse;
    }
  }
}

template <typename Isa>
static void walk_attention(const AttendArgs* rows, int64_t n_rows) {
  for (int64_t r = 0; r < n_rows; r += kWalkRows) {
    const int64_t n = n_rows - r < kWalkRows ? n_rows - r : kWalkRows;
    const int64_t step = kWalkPairs / n;
    for (int64_t h = 0; h < rows[r].n_heads; h += step) {
      const int64_t left = rows[r].n_heads - h;
      attend_group<Isa>(rows + r, n, h, left < step ? left : step);
    }
  }
}

}  // namespace expertree
