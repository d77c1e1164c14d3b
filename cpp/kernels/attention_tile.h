// The cells of a tile of positions (canonical.h, C8), as attention_walk.h goes over them: where their keys and values lie,
// decoded where they are no floats. Everything is static: each instruction set has its own copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/kernels/kernel_table.h"

namespace expertree {

// The cells of a tile's t positions; the rest of the tile repeats the last one.
struct Tile {
  int64_t t;
  const float* k[kAttentionTile];
  const float* v[kAttentionTile];
};

// Cells that lie decoded in AttendArgs::scratch: position p in slot p % kDecodedCells.
struct DecodedCells {
  int64_t cell[kDecodedCells];
  bool needed[kDecodedCells];  // by rows that have not met their values yet
};

static inline bool is_decoded(const AttendArgs& args) {
  return args.k.dtype != DType::kF32 || args.v.dtype != DType::kF32;
}

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
  decoded->needed[slot] = true;
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

static inline int64_t tile_length(const AttendArgs& args, int64_t begin) {
  const int64_t left = args.n_prefix + args.n_tail - begin;
  return left < kAttentionTile ? left : kAttentionTile;
}

// Whether two rows have the same cells in the whole tile, and all of it.
static inline bool is_same_tile(const AttendArgs& a, const AttendArgs& b, int64_t begin) {
  const int64_t end = a.first + begin + kAttentionTile;
  return a.first == b.first && end <= a.n_prefix && end <= b.n_prefix;
}

// Whether the row's tile takes a slot from cells that are needed still.
static inline bool takes_slots(const AttendArgs& args, int64_t begin, const DecodedCells& decoded) {
  if (!is_decoded(args)) return false;
  for (int64_t p = begin; p < begin + tile_length(args, begin); ++p) {
    const int64_t slot = p % kDecodedCells;
    if (decoded.needed[slot] && decoded.cell[slot] != cell_at(args, p)) return true;
  }
  return false;
}

// Calls group.operator()<N>(first) for n pairs: kMost of them at a time, and what is left at the end.
template <int kMost, typename Group>
static inline void in_groups(int64_t n, const Group& group) {
  int64_t first = 0;
  for (; first + kMost <= n; first += kMost) group.template operator()<kMost>(first);
  if constexpr (kMost > 1)
    in_groups<kMost - 1>(n - first, [&]<int kN>(int64_t at) { group.template operator()<kN>(first + at); });
}

template <typename Isa>
static Tile tile_at(const AttendArgs& args, int64_t begin, DecodedCells* decoded) {
  Tile tile;
  tile.t = tile_length(args, begin);
  for (int64_t j = 0; j < tile.t; ++j) {
    if (is_decoded(args)) {
      point_at_cell<Isa>(args, begin + j, decoded, &tile.k[j], &tile.v[j]);
    } else {
      const int64_t cell = cell_at(args, begin + j);
      tile.k[j] = float_row(args.k, cell);
      tile.v[j] = float_row(args.v, cell);
    }
  }
  for (int64_t j = tile.t; j < kAttentionTile; ++j) {
    tile.k[j] = tile.k[tile.t - 1];
    tile.v[j] = tile.v[tile.t - 1];
  }
  return tile;
}

}  // namespace expertree
