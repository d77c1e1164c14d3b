// What timings of kernels share.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "cpp/base/error.h"

namespace expertree {

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Anonymous memory, in huge pages where the system gives them.
class Pages {
 public:
  Pages(int64_t size_bytes, bool huge) : size_bytes_(static_cast<size_t>(size_bytes)) {
    void* mapped = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw Error(ErrorCode::kOutOfMemory, "mmap of a benchmark buffer failed");
    data_ = static_cast<std::byte*>(mapped);
    madvise(data_, size_bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  ~Pages() { munmap(data_, size_bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

  // Bytes 0x38 to 0x3f: no scale or float weight is so small or large that subnormals would slow the arithmetic down.
  void fill() const {
    uint64_t state = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i + 8 <= size_bytes_; i += 8) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t bytes = ((state ^ (state >> 29)) & 0x0707070707070707u) | 0x3838383838383838u;
      std::memcpy(data_ + i, &bytes, 8);
    }
  }

 private:
  std::byte* data_;
  size_t size_bytes_;
};

// Calls work(i) for i = 0, 1, .. until `seconds` have passed. Returns the shortest of the times of `group` calls in a
// row, per call: other programs share these cores, so the best group is nearest to what the kernel can do.
template <typename Work>
double best_seconds(double seconds, int group, const Work& work) {
  double best = 1e30;
  int call = 0;
  for (const double end = now_s() + seconds; now_s() < end || call == 0;) {
    const double begin = now_s();
    for (int i = 0; i < group; ++i) work(call++);
    best = std::min(best, (now_s() - begin) / group);
  }
  return best;
}

}  // namespace expertree
