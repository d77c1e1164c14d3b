// Anonymous memory straight from the operating system, and what the machine has left of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace expertree {

// Zero-filled pages that take memory only once touched; huge pages where the system gives them. Move-only.
class PageBuffer {
 public:
  PageBuffer() = default;
  // Throws kOutOfMemory naming `purpose` when the address space cannot be had.
  PageBuffer(uint64_t size_bytes, const std::string& purpose);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept { swap(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept {
    PageBuffer(std::move(other)).swap(*this);
    return *this;
  }

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(PageBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
  }

  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

// Bytes that this process may still take without swapping: the least of the system's available memory and the room
// left in its control group (v1 or v2). 0 when the system does not say.
uint64_t available_memory_bytes();

// Throws kOutOfMemory naming purpose, need and what is there, when `need_bytes` would not fit.
void require_memory(uint64_t need_bytes, const std::string& purpose);

// "1.4 GiB"
std::string format_bytes(uint64_t bytes);

}  // namespace expertree
