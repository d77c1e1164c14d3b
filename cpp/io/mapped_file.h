// The bytes of a file as read-only memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/io/file.h"

namespace expertree {

// Reading mapped bytes of a file that somebody has cut short since raises SIGBUS: map only for inspection and tests.
class MappedFile {
 public:
  // Maps all of `file`, which may be closed afterwards. Throws kUnsupported when it has no descriptor, kDevice or
  // kOutOfMemory when the system refuses or the file is no longer as long as it was.
  explicit MappedFile(const File& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace expertree
