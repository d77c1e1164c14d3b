#include "cpp/tensor/quantize_grid.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "cpp/tensor/half.h"
#include "cpp/tensor/integer_blocks.h"
#include "cpp/tensor/iq_grids.h"

namespace expertree {
namespace {

// A code book for searching: entries of one squared length together, so that for a group of elements only the best
// match of each length has to be compared when the scale changes.
struct Book {
  struct Entry {
    float values[8];  // [group]
    int index;        // as stored
  };
  struct Length {
    double squared;
    int begin, end;  // of entries
  };
  int group;
  double largest;
  std::vector<Entry> entries;
  std::vector<Length> lengths;
};

Book finish_book(int group, std::vector<Book::Entry> entries) {
  std::map<double, std::vector<Book::Entry>> by_length;
  Book book{group, 0.0, {}, {}};
  for (const Book::Entry& entry : entries) {
    double squared = 0.0;
    for (int e = 0; e < group; ++e) {
      squared += static_cast<double>(entry.values[e]) * entry.values[e];
      book.largest = std::max(book.largest, std::fabs(static_cast<double>(entry.values[e])));
    }
    by_length[squared].push_back(entry);
  }
  for (const auto& [squared, same] : by_length) {
    const int begin = static_cast<int>(book.entries.size());
    book.entries.insert(book.entries.end(), same.begin(), same.end());
    book.lengths.push_back({squared, begin, static_cast<int>(book.entries.size())});
  }
  return book;
}

template <int kBits, int kGroup, int kEntries, int kValues>
Book magnitude_book(const uint8_t (&grid)[2][kEntries], const int8_t (&values)[kValues]) {
  std::vector<Book::Entry> entries;
  for (int i = 0; i < kEntries; ++i) {
    int8_t q[kGroup];
    put_group<kBits, kGroup>(grid, values, i, 0, q);
    Book::Entry entry{{}, i};
    std::copy(q, q + kGroup, entry.values);
    entries.push_back(entry);
  }
  return finish_book(kGroup, std::move(entries));
}

// IQ1 with delta plus, minus or (an eleventh index bit says which) either.
Book ternary_book(bool plus, bool minus) {
  std::vector<Book::Entry> entries;
  for (int i = 0; i < 2048; ++i) {
    for (int delta = 0; delta < 2; ++delta) {
      if (!(delta == 0 ? plus : minus)) continue;
      int8_t q[8];
      put_ternary_group(i, delta == 1, q);
      Book::Entry entry{{}, i | delta << 11};
      std::copy(q, q + 8, entry.values);
      entries.push_back(entry);
    }
  }
  return finish_book(8, std::move(entries));
}

enum class Signs { kNone, kFree, kEven };

// One group of elements: the best entry of each length.
struct Group {
  int signs = 0;  // bit e: minus
  double energy = 0.0;
  std::vector<double> dots;    // per length
  std::vector<int> positions;  // of the entry that has it
};

Group match_group(const float* x, const Book& book, Signs mode, bool minus_is_odd = false) {
  Group out;
  float target[8];
  int smallest = 0;
  for (int e = 0; e < book.group; ++e) {
    target[e] = mode == Signs::kNone ? x[e] : std::fabs(x[e]);
    if (mode != Signs::kNone && std::signbit(x[e])) out.signs |= 1 << e;
    if (std::fabs(x[e]) < std::fabs(x[smallest])) smallest = e;
    out.energy += static_cast<double>(x[e]) * x[e];
  }
  if (mode == Signs::kEven && minus_is_odd) {  // the element that it hurts least gets the wrong sign
    target[smallest] = -target[smallest];
    out.signs ^= 1 << smallest;
  }
  for (const Book::Length& length : book.lengths) {
    double best = -1e300;
    int position = length.begin;
    for (int i = length.begin; i < length.end; ++i) {
      double dot = 0.0;
      for (int e = 0; e < book.group; ++e)
        dot += static_cast<double>(target[e]) * book.entries[static_cast<size_t>(i)].values[e];
      if (dot > best) {
        best = dot;
        position = i;
      }
    }
    out.dots.push_back(best);
    out.positions.push_back(position);
  }
  return out;
}

// Length whose best entry, times scale, is nearest to the group.
size_t nearest(const Group& group, const Book& book, double scale) {
  size_t best = 0;
  double best_error = 1e300;
  for (size_t l = 0; l < book.lengths.size(); ++l) {
    const double error = scale * (scale * book.lengths[l].squared - 2.0 * group.dots[l]);
    if (error < best_error) {
      best_error = error;
      best = l;
    }
  }
  return best;
}

struct Match {
  double error;
  double refined_scale;  // least squares for the entries that were chosen
};

Match match(const std::vector<Group>& groups, const Book& book, double scale) {
  double error = 0.0, sum_dot = 0.0, sum_squared = 0.0;
  for (const Group& group : groups) {
    const size_t l = nearest(group, book, scale);
    const double squared = book.lengths[l].squared;
    error += group.energy + scale * (scale * squared - 2.0 * group.dots[l]);
    sum_dot += group.dots[l];
    sum_squared += squared;
  }
  return {error, std::max(0.0, sum_dot / sum_squared)};
}

// Parity over 8 elements of a group of 4 needs its partner.
std::vector<Group> match_sub_block(const float* x, int n, const Book& book, Signs mode) {
  std::vector<Group> groups;
  for (int begin = 0; begin < n; begin += 8) {
    int n_minus = 0, smallest = 0;
    for (int e = 0; e < 8; ++e) {
      n_minus += std::signbit(x[begin + e]) ? 1 : 0;
      if (std::fabs(x[begin + e]) < std::fabs(x[begin + smallest])) smallest = e;
    }
    for (int part = 0; part < 8; part += book.group) {
      const bool has_smallest = smallest >= part && smallest < part + book.group;
      groups.push_back(match_group(x + begin + part, book, mode, n_minus % 2 == 1 && has_smallest));
    }
  }
  return groups;
}

double fit_scale(const std::vector<Group>& groups, const Book& book, double largest, double* error) {
  double best_scale = 0.0;
  *error = 1e300;
  for (int step = 0; step <= 30; ++step) {  // from a group of equal small entries to one large entry
    double scale = largest / (book.largest * (0.16 + 0.04 * step));
    for (int round = 0; round < 3; ++round) {
      const Match m = match(groups, book, scale);
      if (m.error < *error) {
        *error = m.error;
        best_scale = scale;
      }
      scale = m.refined_scale;
    }
  }
  return best_scale;
}

// A fitted block: w = d * factor * (2 * sc + 1) * entry, with signs.
struct Fit {
  Half d;
  int sc[16];
  int choice[16];  // of the books, per sub-block
  int index[64];
  int signs[64];
};

Fit fit_block(const float* x, int sub_block, const std::vector<const Book*>& books, Signs mode, int sc_max,
              double factor) {
  const int n_sub = 256 / sub_block;
  std::vector<std::vector<Group>> groups;
  std::vector<double> scales;
  Fit out{};
  double most = 0.0;
  for (int j = 0; j < n_sub; ++j) {
    const float* sub = x + j * sub_block;
    double largest = 0.0;
    for (int i = 0; i < sub_block; ++i) largest = std::max(largest, std::fabs(static_cast<double>(sub[i])));
    double best = 1e300;
    groups.emplace_back();
    scales.push_back(0.0);
    for (size_t b = 0; b < books.size(); ++b) {
      std::vector<Group> candidate = match_sub_block(sub, sub_block, *books[b], mode);
      double error;
      const double scale = fit_scale(candidate, *books[b], largest, &error);
      if (error >= best) continue;
      best = error;
      groups.back() = std::move(candidate);
      scales.back() = scale;
      out.choice[j] = static_cast<int>(b);
    }
    most = std::max(most, scales.back());
  }
  out.d = to_half_saturated(most / (factor * (2 * sc_max + 1)));
  const double d = half_to_float(out.d) * factor;
  const int groups_per_sub = sub_block / books[0]->group;
  for (int j = 0; j < n_sub; ++j) {
    const std::vector<Group>& sub = groups[static_cast<size_t>(j)];
    const Book& book = *books[static_cast<size_t>(out.choice[j])];
    const double wanted = d > 0.0 ? std::min(scales[static_cast<size_t>(j)] / d, 1e6) : 0.0;
    const int centre = static_cast<int>(std::nearbyint((wanted - 1.0) / 2.0));
    double best = -1.0;
    for (int sc = std::max(0, centre - 2); sc <= std::max(0, centre) + 2; ++sc) {
      const int kept = std::min(sc, sc_max);
      const double error = match(sub, book, d * (2 * kept + 1)).error;
      if (best < 0.0 || error < best) {
        best = error;
        out.sc[j] = kept;
      }
    }
    for (int g = 0; g < groups_per_sub; ++g) {
      const Group& group = sub[static_cast<size_t>(g)];
      const size_t l = nearest(group, book, d * (2 * out.sc[j] + 1));
      out.index[j * groups_per_sub + g] = book.entries[static_cast<size_t>(group.positions[l])].index;
      out.signs[j * groups_per_sub + g] = group.signs;
    }
  }
  return out;
}

void put_u32(uint8_t* p, uint32_t value) { std::memcpy(p, &value, 4); }
void put_nibble(uint8_t* bytes, int j, int value) { bytes[j / 2] |= static_cast<uint8_t>(value << (j % 2 * 4)); }

// Ternary: d of smallest squared error, codes 0, 1, 2.
Half fit_ternary(const float* x, int* codes) {
  double largest = 0.0;
  for (int i = 0; i < 256; ++i) largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
  double best = 1e300;
  Half best_d = 0;
  for (int step = 0; step < 40; ++step) {
    const Half half = to_half_saturated(largest * (1.0 - 0.02 * step));
    const double d = half_to_float(half);
    double error = 0.0;
    for (int i = 0; i < 256; ++i) {
      const double magnitude = std::fabs(static_cast<double>(x[i]));
      const double rest = magnitude > d / 2 ? magnitude - d : magnitude;
      error += rest * rest;
    }
    if (error < best) {
      best = error;
      best_d = half;
    }
  }
  const double d = half_to_float(best_d);
  for (int i = 0; i < 256; ++i) codes[i] = std::fabs(static_cast<double>(x[i])) <= d / 2 ? 1 : x[i] < 0.0f ? 0 : 2;
  return best_d;
}

// Nearest of the eight magnitudes, with the sign on top.
int e2m1_code(double v) {
  int best = 0;
  for (int i = 1; i < 8; ++i) {
    if (std::fabs(std::fabs(v) - kMXFP4Values[i]) < std::fabs(std::fabs(v) - kMXFP4Values[best])) best = i;
  }
  return v < 0.0 ? best | 8 : best;
}

}  // namespace

void encode_block(const float* x, BlockIQ1_S* b) {
  static const Book plus = ternary_book(true, false), minus = ternary_book(false, true);
  const Fit fit = fit_block(x, 32, {&plus, &minus}, Signs::kNone, 7, kIQ1Scale);
  b->d = fit.d;
  for (int j = 0; j < 8; ++j) {
    int qh = fit.sc[j] << 12 | fit.choice[j] << 15;
    for (int l = 0; l < 4; ++l) {
      const int index = fit.index[4 * j + l] & 2047;
      b->qs[4 * j + l] = static_cast<uint8_t>(index & 255);
      qh |= index >> 8 << (3 * l);
    }
    b->qh[j] = static_cast<uint16_t>(qh);
  }
}

void encode_block(const float* x, BlockIQ1_M* b) {
  static const Book both = ternary_book(true, true);
  const Fit fit = fit_block(x, 16, {&both}, Signs::kNone, 7, kIQ1Scale);
  for (int g = 0; g < 32; ++g) {
    b->qs[g] = static_cast<uint8_t>(fit.index[g] & 255);
    put_nibble(b->qh, g, fit.index[g] >> 8);
  }
  for (int i = 0; i < 4; ++i) {
    int bits = (fit.d >> (4 * i) & 15) << 12;
    for (int l = 0; l < 4; ++l) bits |= fit.sc[4 * i + l] << (3 * l);
    b->scales[i] = static_cast<uint16_t>(bits);
  }
}

void encode_block(const float* x, BlockIQ2_XXS* b) {
  static const Book book = magnitude_book<2, 8>(kGridIQ2_XXS, kIQ2Values);
  const Fit fit = fit_block(x, 32, {&book}, Signs::kEven, 15, kIQ2Scale);
  b->d = fit.d;
  for (int j = 0; j < 8; ++j) {
    uint32_t aux = static_cast<uint32_t>(fit.sc[j]) << 28;
    for (int l = 0; l < 4; ++l) {
      b->qs[j][l] = static_cast<uint8_t>(fit.index[4 * j + l]);
      aux |= static_cast<uint32_t>(fit.signs[4 * j + l] & 127) << (7 * l);
    }
    put_u32(b->qs[j] + 4, aux);
  }
}

void encode_block(const float* x, BlockIQ2_XS* b) {
  static const Book book = magnitude_book<2, 8>(kGridIQ2_XS, kIQ2Values);
  const Fit fit = fit_block(x, 16, {&book}, Signs::kEven, 15, kIQ2Scale);
  b->d = fit.d;
  for (int g = 0; g < 32; ++g) b->qs[g] = static_cast<uint16_t>(fit.index[g] | (fit.signs[g] & 127) << 9);
  for (int j = 0; j < 16; ++j) put_nibble(b->scales, j, fit.sc[j]);
}

void encode_block(const float* x, BlockIQ2_S* b) {
  static const Book book = magnitude_book<2, 8>(kGridIQ2_S, kIQ2Values);
  const Fit fit = fit_block(x, 16, {&book}, Signs::kFree, 15, kIQ2Scale);
  b->d = fit.d;
  for (int g = 0; g < 32; ++g) {
    b->qs[g] = static_cast<uint8_t>(fit.index[g] & 255);
    b->qh[g / 4] |= static_cast<uint8_t>(fit.index[g] >> 8 << (g % 4 * 2));
    b->signs[g] = static_cast<uint8_t>(fit.signs[g]);
  }
  for (int j = 0; j < 16; ++j) put_nibble(b->scales, j, fit.sc[j]);
}

void encode_block(const float* x, BlockIQ3_XXS* b) {
  static const Book book = magnitude_book<4, 4>(kGridIQ3_XXS, kIQ3_XXSValues);
  const Fit fit = fit_block(x, 32, {&book}, Signs::kEven, 15, kIQ3_XXSScale);
  b->d = fit.d;
  for (int g = 0; g < 64; ++g) b->qs[g] = static_cast<uint8_t>(fit.index[g]);
  for (int j = 0; j < 8; ++j) {
    uint32_t aux = static_cast<uint32_t>(fit.sc[j]) << 28;
    for (int l = 0; l < 4; ++l) {
      const int signs = fit.signs[8 * j + 2 * l] | fit.signs[8 * j + 2 * l + 1] << 4;
      aux |= static_cast<uint32_t>(signs & 127) << (7 * l);
    }
    put_u32(b->signs_scales[j], aux);
  }
}

void encode_block(const float* x, BlockIQ3_S* b) {
  static const Book book = magnitude_book<4, 4>(kGridIQ3_S, kIQ3_SValues);
  const Fit fit = fit_block(x, 32, {&book}, Signs::kFree, 15, 1.0);
  b->d = fit.d;
  for (int g = 0; g < 64; ++g) {
    b->qs[g] = static_cast<uint8_t>(fit.index[g] & 255);
    b->qh[g / 8] |= static_cast<uint8_t>(fit.index[g] >> 8 << (g % 8));
    put_nibble(b->signs, g, fit.signs[g]);
  }
  for (int j = 0; j < 8; ++j) put_nibble(b->scales, j, fit.sc[j]);
}

void encode_block(const float* x, BlockTQ1_0* b) {
  int codes[256];
  b->d = fit_ternary(x, codes);
  constexpr int kPlaces[5] = {81, 27, 9, 3, 1};
  const auto pack = [&](int first, int run, int n_digits) {
    int sum = 0;
    for (int n = 0; n < n_digits; ++n) sum += codes[first + n * run] * kPlaces[n];
    return static_cast<uint8_t>((sum * 256 + 242) / 243);
  };
  for (int m = 0; m < 32; ++m) b->qs[m] = pack(m, 32, 5);
  for (int m = 0; m < 16; ++m) b->qs[32 + m] = pack(160 + m, 16, 5);
  for (int m = 0; m < 4; ++m) b->qh[m] = pack(240 + m, 4, 4);
}

void encode_block(const float* x, BlockTQ2_0* b) {
  int codes[256];
  b->d = fit_ternary(x, codes);
  for (int i = 0; i < 256; ++i) b->qs[i / 128 * 32 + i % 32] |= static_cast<uint8_t>(codes[i] << (i % 128 / 32 * 2));
}

void encode_block(const float* x, BlockNVFP4* b) {
  for (int g = 0; g < 4; ++g) {
    double best = 1e300;
    for (int d = 0; d < 127; ++d) {
      const double scale = ue4m3_to_float_half(static_cast<uint8_t>(d));
      double error = 0.0;
      for (int i = 0; i < 16; ++i) {
        const double v = x[16 * g + i];
        const double rest = scale == 0.0 ? v : v - scale * kMXFP4Values[e2m1_code(v / scale)];
        error += rest * rest;
      }
      if (error < best) {
        best = error;
        b->d[g] = static_cast<uint8_t>(d);
      }
    }
    const double scale = ue4m3_to_float_half(b->d[g]);
    for (int i = 0; i < 16; ++i) {
      const int code = scale == 0.0 ? 0 : e2m1_code(x[16 * g + i] / scale);
      b->qs[8 * g + i % 8] |= static_cast<uint8_t>(code << (i / 8 * 4));
    }
  }
}

}  // namespace expertree
