// Asking for weights before they are needed, evenly over time. In an unnamed namespace: each instruction set has its own copy
// (no symbol may be shared between them).
#pragma once

#include <cstddef>
#include <cstdint>

namespace expertree {
namespace {

// For products of many columns: the rows that come next, to L2 (panels of long rows are larger than L1), a part at a time:
// more lines at once than there are line-fill buffers (12) hold up what needs them.
class Pace {
 public:
  Pace() = default;
  Pace(const std::byte* p, int64_t n_bytes, int64_t n_steps)
      : at_(p), end_(p + n_bytes), step_((n_bytes / n_steps + 63) / 64 * 64) {}

  inline __attribute__((always_inline)) void step() {
    const std::byte* const stop = at_ + step_ < end_ ? at_ + step_ : end_;
    for (; at_ < stop; at_ += 64) __builtin_prefetch(at_, 0, 2);
  }

 private:
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  int64_t step_ = 0;
};

// For products of few columns, where rows are read one after the other as one long stream: the bytes that follow the group
// of rows that is being worked on. A core that stops asking while it adds up leaves its memory idle. Reading takes three
// quarters of the time of a group, finishing it the rest.
// One column on Ice Lake, AVX-512, share of a plain read: 78 % (Q4_K) and 85 % (Q6_K) without, at any distance and to L1 or
// L2; 97 to 100 % with.
class Ahead {
 public:
  // The group of rows is one run of n bytes at p.
  Ahead(const std::byte* p, int64_t n) : Ahead(p, n, 0, n) {}
  // Rows are read in several passes: this one reads n_pass bytes of the group, `before` were read by others.
  Ahead(const std::byte* p, int64_t n, int64_t before, int64_t n_pass)
      : from_(p + kLead + n / 4 + before), n_(n_pass) {}

  // Beside reading the bytes [at, at + n) of the pass.
  inline __attribute__((always_inline)) void reading(int64_t at, int64_t n) const { ask(at * 3 / 4, n * 3 / 4); }
  // Beside finishing the share of those bytes.
  inline __attribute__((always_inline)) void finishing(int64_t at, int64_t n) const { ask(n_ * 3 / 4 + at / 4, n / 4); }

 private:
  static constexpr int64_t kLead = 4096;

  inline __attribute__((always_inline)) void ask(int64_t at, int64_t n) const {
    for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(from_ + at + i, 0, 3);
  }

  const std::byte* from_;
  int64_t n_;
};

}  // namespace
}  // namespace expertree
