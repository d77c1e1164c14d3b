// Memory for tests of kernels: reading past its end faults.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "cpp/base/error.h"

namespace expertree {

// Elements that end `gap_bytes` before a page without access.
template <typename T>
class GuardedArray {
 public:
  explicit GuardedArray(int64_t count, int64_t gap_bytes = 0) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t need = static_cast<size_t>(count) * sizeof(T) + static_cast<size_t>(gap_bytes);
    mapped_bytes_ = (need + page - 1) / page * page + page;
    void* mapped = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw Error(ErrorCode::kOutOfMemory, "mmap of a guarded test buffer failed");
    mapped_ = static_cast<std::byte*>(mapped);
    ET_CHECK(mprotect(mapped_ + mapped_bytes_ - page, page, PROT_NONE) == 0);
    data_ = reinterpret_cast<T*>(mapped_ + mapped_bytes_ - page - need);
  }
  GuardedArray(const T* source, int64_t count, int64_t gap_bytes = 0) : GuardedArray(count, gap_bytes) {
    if (count > 0) std::memcpy(static_cast<void*>(data_), source, static_cast<size_t>(count) * sizeof(T));
  }
  ~GuardedArray() { munmap(mapped_, mapped_bytes_); }
  GuardedArray(const GuardedArray&) = delete;
  GuardedArray& operator=(const GuardedArray&) = delete;

  T* data() const { return data_; }

 private:
  std::byte* mapped_;
  size_t mapped_bytes_;
  T* data_;
};

}  // namespace expertree
