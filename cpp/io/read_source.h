// A file as asynchronous readers see it: how best to get a large range of it into memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cpp/base/memory.h"
#include "cpp/io/direct_access.h"
#include "cpp/io/file.h"

namespace expertree {

// What reads took so far.
struct ReadCounts {
  uint64_t disk_bytes = 0;      // from the disk, whole blocks
  uint64_t overread_bytes = 0;  // of them beside what was asked for, or read twice
  uint64_t cached_bytes = 0;    // from the page cache
};

class ReadSource {
 public:
  // `direct`: go past the page cache where the file system does it; `use_cached`: except for what is in there already.
  ReadSource(const File& file, bool direct, bool use_cached);

  const File& file() const { return file_; }
  // Of direct reads, 1 without them: a range goes to an address that is its offset's equal modulo `alignment`, and what
  // lies around the range in its first and last block is overwritten.
  uint64_t alignment() const { return alignment_; }

  // The range cut out in whole blocks for the descriptor of direct reads.
  struct DirectRange {
    int descriptor;
    uint64_t offset;
    uint64_t size;
    std::byte* out;
    uint64_t asked_bytes;
    uint64_t needed_bytes;  // what a read must give at least: the last block may end with the file
  };
  // False when the range is better read through the page cache: it is there already, or there is no direct access.
  bool direct_range(uint64_t offset, uint64_t size, std::byte* out, DirectRange* range) const;
  // Direct reads turned out not to work; use the page cache from now on.
  void give_up_direct() const { direct_works_.store(false); }

  // A direct read of the range gave so many bytes, by whatever way it was made; did it give all that was asked for?
  void count_direct(const DirectRange& range, uint64_t n_read, bool complete) const;
  ReadCounts counts() const { return {disk_bytes_.load(), overread_bytes_.load(), cached_bytes_.load()}; }

  // Reads the range now, one way or the other. What was not in the page cache before is not left there. Throws kDevice.
  void read(uint64_t offset, uint64_t size, std::byte* out) const;
  // The same for `out` at any address: a direct read goes through `bounce`, which grows as needed.
  void read_anywhere(uint64_t offset, uint64_t size, std::byte* out, PageBuffer* bounce) const;

 private:
  bool read_direct(const DirectRange& range) const;
  void read_buffered(uint64_t offset, uint64_t size, std::byte* out) const;

  const File& file_;
  DirectAccess direct_;
  uint64_t alignment_;
  bool use_cached_;
  mutable std::atomic<bool> direct_works_;
  mutable std::atomic<uint64_t> disk_bytes_{0};
  mutable std::atomic<uint64_t> overread_bytes_{0};
  mutable std::atomic<uint64_t> cached_bytes_{0};
};

}  // namespace expertree
