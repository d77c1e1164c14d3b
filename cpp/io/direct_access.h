// A second way into an open file, past the page cache (O_DIRECT).
#pragma once

#include <cstdint>

#include "cpp/io/file.h"

namespace expertree {

class DirectAccess {
 public:
  DirectAccess() = default;  // not available
  // Opens the same file again and tries one read. Never throws: without a descriptor, or where the file system does
  // not do it, available() is false.
  explicit DirectAccess(const File& file);
  ~DirectAccess();
  DirectAccess(DirectAccess&& other) noexcept;
  DirectAccess& operator=(DirectAccess&&) = delete;

  bool available() const { return fd_ >= 0; }
  int descriptor() const { return fd_; }
  // Offsets, sizes and addresses of reads are multiples of it: a power of two, 1 when not available.
  uint64_t alignment() const { return alignment_; }

 private:
  bool probe(uint64_t file_size);

  int fd_ = -1;
  uint64_t alignment_ = 1;
};

}  // namespace expertree
