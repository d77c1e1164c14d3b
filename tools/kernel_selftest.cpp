// Runs every kernel of every instruction set that this CPU has on the same inputs, and prints for each instruction set
// its name and a hash of all output bits. Exit status 1 when two hashes differ: they must not (cpp/kernels/canonical.h).
// With -v also one hash per kernel, to find the one that differs.
//
// tools/check_old_cpu.sh and tools/check_arm.sh run it on emulated CPUs, where an instruction that the CPU lacks ends
// the program.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "cpp/kernels/kernel_names.h"
#include "cpp/kernels/kernel_table.h"
#include "cpp/model/cache_types.h"
#include "cpp/tensor/dtype.h"
#include "cpp/tensor/half.h"

namespace expertree {
namespace {

constexpr int64_t kRowsOfWeights = 19;
constexpr int64_t kColumns = 6;

// splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // In (-4, 4), every multiple of 2^-21.
  float value() { return static_cast<float>(static_cast<int64_t>(bits() >> 40) - (1 << 23)) * 0x1p-21f; }

 private:
  uint64_t state_;
};

std::vector<float> random_floats(uint64_t seed, int64_t n) {
  Random random(seed);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) value = random.value();
  return x;
}

// FNV-1a. All NaN are one value: which NaN an operation gives is outside the contract.
class Hash {
 public:
  void add(const void* data, size_t size_bytes) {
    const unsigned char* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size_bytes; ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001b3ull;
  }
  void add(const std::vector<float>& x) {
    for (const float value : x) {
      const uint32_t bits = std::isnan(value) ? 0x7fc00000u : float_bits(value);
      add(&bits, sizeof bits);
    }
  }
  unsigned long long value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

// Random bytes in every field of a block; values of ordinary size for float weights.
std::vector<std::byte> random_weights(const DTypeInfo& type, int64_t k) {
  std::vector<std::byte> w(static_cast<size_t>(kRowsOfWeights * row_bytes(type.dtype, k)));
  Random random(17);
  if (type.block_size > 1) {
    for (std::byte& byte : w) byte = static_cast<std::byte>(random.bits() & 0xff);
    return w;
  }
  const size_t size_bytes = static_cast<size_t>(type.block_bytes);
  for (size_t i = 0; i < w.size(); i += size_bytes) {
    const float value = random.value();
    const uint16_t half = type.dtype == DType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
    std::memcpy(&w[i], size_bytes == 4 ? static_cast<const void*>(&value) : &half, size_bytes);
  }
  return w;
}

struct Activations {
  std::vector<float> x;
  std::vector<int8_t> q;
  std::vector<float> d;
  std::vector<int16_t> sums16;
};

Activations quantize(const KernelTable& table, int64_t block, int64_t k, Hash* hash) {
  Activations a;
  a.x = random_floats(23, kColumns * k);
  for (int64_t i = 0; i < k; ++i) a.x[static_cast<size_t>(i)] = 0.0f;  // a row of zeros
  for (int64_t i = k; i < 2 * k; ++i) a.x[static_cast<size_t>(i)] *= 0x1p-130f;  // a row that is too small
  a.x[static_cast<size_t>(2 * k)] = INFINITY;  // a row that is not finite
  a.q.resize(a.x.size());
  a.d.resize(a.x.size() / static_cast<size_t>(block));
  a.sums16.resize(a.x.size() / 16);
  (block == 32 ? table.quantize_q8_32 : table.quantize_q8_256)(a.x.data(), kColumns * k, a.q.data(), a.d.data(),
                                                               a.sums16.data());
  hash->add(a.q.data(), a.q.size());
  hash->add(a.d);
  hash->add(a.sums16.data(), a.sums16.size() * sizeof(int16_t));
  return a;
}

// Any number of columns, and a few runs of rows that are no whole groups, of weights that are not aligned.
void hash_matmul(const KernelTable& table, const DTypeInfo& type, int64_t k, Hash* hash) {
  const bool quantised = type.block_size > 1;
  const int64_t block = type.activation == ActivationFormat::kQ8_256 ? 256 : 32;
  std::vector<std::byte> w = random_weights(type, k);
  w.insert(w.begin(), std::byte{0});
  Activations a;
  if (quantised) {
    a = quantize(table, block, k, hash);
  } else {
    a.x = random_floats(29, kColumns * k);
  }
  QuantizedRows rows = {a.q.data(), a.d.data(), a.sums16.data(), k, k, k / block, k / 16};
  std::vector<float> y(static_cast<size_t>(kColumns * kRowsOfWeights));
  MatmulArgs args = {};
  args.w = w.data() + 1;
  args.w_row_bytes = row_bytes(type.dtype, k);
  args.k = k;
  args.x_f32 = a.x.data();
  args.x_stride = k;
  args.x_q = &rows;
  args.y = y.data();
  args.y_stride = kRowsOfWeights;
  const int32_t x_rows[kColumns] = {4, 0, 5, 3, 1, 2};
  const int32_t y_rows[kColumns] = {1, 5, 0, 4, 2, 3};
  for (args.n_columns = 1; args.n_columns <= kColumns; ++args.n_columns) {
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, kRowsOfWeights}, {3, 4}, {1, 6}, {2, 13}}) {
      args.row_begin = begin;
      args.row_end = end;
      args.x_rows = begin == 0 ? nullptr : x_rows;
      args.y_rows = begin == 0 ? nullptr : y_rows;
      matmul_of(table, type.dtype)(args);
      hash->add(y);
    }
  }
}

void hash_row(const KernelTable& table, const std::vector<float>& x, const std::vector<float>& w, Hash* hash) {
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> y(x.size());
  table.rms_norm(x.data(), w.data(), 1e-6f, n, y.data());
  hash->add(y);
  table.rms_norm(x.data(), nullptr, 1e-6f, n, y.data());
  hash->add(y);
  table.softmax(x.data(), n, y.data());
  hash->add(y);
  for (const GatedUnitFn unit : {table.silu_mul, table.gelu_mul, table.swiglu_oai, table.relu_mul}) {
    unit(x.data(), w.data(), n, y.data());
    hash->add(y);
  }
  table.axpy(0.3f, x.data(), n, y.data());
  hash->add(y);
  table.exp_f32(x.data(), n, y.data());
  hash->add(y);
  table.log_f32(y.data(), n, y.data());
  hash->add(y);
  table.log_f32(x.data(), n, y.data());
  hash->add(y);
  std::vector<uint16_t> halves(x.size());
  table.encode_f16(x.data(), n, halves.data());
  for (size_t i = 0; i < x.size(); ++i) y[i] = half_to_float(halves[i]);
  hash->add(y);
}

void hash_elementwise(const KernelTable& table, Hash* hash) {
  constexpr float kSpecial[] = {NAN,         -0.0f,        0.0f,      INFINITY, -INFINITY,
                                88.7228394f, -87.3365479f, 0x1p-140f, -100.5f,  70000.0f};
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 21, 333}) {
    std::vector<float> x = random_floats(31, n);
    const std::vector<float> w = random_floats(37, n);
    for (float& value : x) value *= 20.0f;
    hash_row(table, x, w, hash);
    for (const float special : kSpecial) {  // in every lane of a register, and behind the last whole one
      x[static_cast<size_t>(n / 2)] = x.back() = special;
      hash_row(table, x, w, hash);
    }
  }
}

// Rows of n elements in the format of a KV cache.
std::vector<std::byte> cells(const KernelTable& table, DType type, const std::vector<float>& x, int64_t n) {
  const int64_t row = cache_row_bytes(type, n);
  std::vector<std::byte> out(x.size() / static_cast<size_t>(n) * static_cast<size_t>(row) + 128);
  for (int64_t i = 0; i * n < static_cast<int64_t>(x.size()); ++i) {
    write_cache_row(table, x.data() + i * n, n, type, out.data() + i * row);
  }
  return out;
}

// Three rows of one KV head, that see different positions.
void hash_attention(const KernelTable& table, DType type, int64_t heads, int64_t dim_k, int64_t dim_v, Hash* hash) {
  constexpr int64_t kCells = 90;
  constexpr int64_t kRows = 3;
  const std::vector<float> q = random_floats(41, kRows * heads * dim_k);
  const std::vector<std::byte> k = cells(table, type, random_floats(43, kCells * dim_k), dim_k);
  const std::vector<std::byte> v = cells(table, type, random_floats(47, kCells * dim_v), dim_v);
  const int32_t tail[] = {80, 71, 89, 60, 75};
  const std::vector<float> sinks = random_floats(53, heads);
  std::vector<float> scratch(static_cast<size_t>(attend_scratch_floats(dim_k, dim_v)));
  std::vector<float> out(static_cast<size_t>(kRows * heads * dim_v));
  AttendArgs rows[kRows];
  const auto attend = [&](float softcap, const float* sink, float scale) {
    for (AttendArgs& row : rows) row.softcap = softcap, row.sinks = sink, row.scale = scale;
    table.attend(rows, kRows);
    hash->add(out);
  };
  for (const int64_t n_prefix : {0, 1, 30, 59}) {
    for (int64_t r = 0; r < kRows; ++r) {
      rows[r] = {.q = q.data() + r * heads * dim_k,
                 .q_stride = dim_k,
                 .n_heads = heads,
                 .k = {k.data(), cache_row_bytes(type, dim_k), type},
                 .v = {v.data(), cache_row_bytes(type, dim_v), type},
                 .scratch = scratch.data(),
                 .head_dim_k = dim_k,
                 .head_dim_v = dim_v,
                 .first = r == 1 ? n_prefix / 2 : 0,
                 .n_prefix = n_prefix,
                 .tail = tail,
                 .n_tail = 5 - r,
                 .scale = 0.2f,
                 .out = out.data() + r * heads * dim_v,
                 .out_stride = dim_v};
    }
    attend(0.0f, nullptr, 0.2f);
    attend(5.0f, sinks.data(), 0.2f);
    attend(0.0f, sinks.data(), INFINITY);
  }
}

void hash_recurrent(const KernelTable& table, Hash* hash) {
  constexpr int64_t kKeys = 19;
  constexpr int64_t kStride = 90;
  constexpr int64_t kTokens = 3;
  const std::vector<float> x = random_floats(53, 4 * kStride);
  const std::vector<float> w = random_floats(59, 4 * kStride);
  const std::vector<float> keys = random_floats(61, kTokens * kKeys);
  const float* taps[] = {x.data() + kStride, x.data(), x.data() + 2 * kStride, x.data() + 3 * kStride};
  std::vector<float> y(kStride);
  for (const int64_t n : {1, 7, 16, 37, 89}) {
    table.convolve(taps, w.data(), 4, n, y.data());
    hash->add(y);
    std::vector<float> state = random_floats(67, kKeys * kStride);
    std::vector<float> out(kTokens * kStride);
    std::vector<DeltaRow> rows;
    for (int64_t t = 0; t < kTokens; ++t) {
      const float* k = keys.data() + t * kKeys;
      rows.push_back({k, t == 1 ? nullptr : keys.data() + (kTokens - 1 - t) * kKeys, x.data() + t * kStride, 0.9f, 0.1f,
                      out.data() + t * kStride});
    }
    table.delta_scan({state.data(), kStride, kKeys, n, rows.data(), kTokens});
    hash->add(state);
    hash->add(out);
  }
}

// Prints the table's line; returns the hash of everything.
unsigned long long hash_table(const KernelTable& table, bool verbose) {
  Hash all;
  const auto finish = [&](const char* what, const Hash& part) {
    const unsigned long long value = part.value();
    if (verbose) std::printf("  %-7s %-12s %016llx\n", table.name, what, value);
    all.add(&value, sizeof value);
  };
  for (int32_t number = 0; number < 256; ++number) {
    const DTypeInfo* type = find_dtype(number);
    if (type == nullptr) continue;
    Hash part;
    hash_matmul(table, *type, type->block_size > 1 ? 3 * type->block_size : 87, &part);
    if (type->block_size == 1) hash_matmul(table, *type, 96, &part);
    finish(type->name, part);
  }
  Hash elementwise;
  hash_elementwise(table, &elementwise);
  finish("elementwise", elementwise);
  Hash attention;
  for (const DType type : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    hash_attention(table, type, 7, 24, 41, &attention);
    hash_attention(table, type, 1, 64, 67, &attention);
    hash_attention(table, type, 6, 16, 96, &attention);
  }
  finish("attention", attention);
  Hash recurrent;
  hash_recurrent(table, &recurrent);
  finish("recurrent", recurrent);
  std::printf("%s %016llx\n", table.name, all.value());
  std::fflush(stdout);
  return all.value();
}

int run(bool verbose) {
  const unsigned long long expected = hash_table(*scalar_kernels(), verbose);
  int status = 0;
  for (const std::string& name : kernel_names() | std::views::reverse) {
    if (name == "scalar" || hash_table(*find_kernels(name.c_str()), verbose) == expected) continue;
    std::printf("%s differs from scalar; run with -v to see which kernel\n", name.c_str());
    status = 1;
  }
  return status;
}

}  // namespace
}  // namespace expertree

int main(int argc, char** argv) { return expertree::run(argc > 1 && std::strcmp(argv[1], "-v") == 0); }
