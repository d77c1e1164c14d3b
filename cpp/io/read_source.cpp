#include "cpp/io/read_source.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cpp/base/error.h"

namespace expertree {

ReadSource::ReadSource(const File& file, bool direct, bool use_cached)
    : file_(file),
      direct_(direct ? DirectAccess(file) : DirectAccess()),
      alignment_(direct_.alignment()),
      use_cached_(use_cached),
      direct_works_(direct_.available()) {}

bool ReadSource::direct_range(uint64_t offset, uint64_t size, std::byte* out, DirectRange* range) const {
  if (!direct_works_.load() || (use_cached_ && file_.is_cached(offset, size))) return false;
  const uint64_t before = offset % alignment_;
  ET_CHECK(reinterpret_cast<uintptr_t>(out) % alignment_ == before);
  const uint64_t whole = (before + size + alignment_ - 1) / alignment_ * alignment_;
  *range = {direct_.descriptor(), offset - before, whole, out - before, size, before + size};
  return true;
}

void ReadSource::count_direct(const DirectRange& range, uint64_t n_read, bool complete) const {
  disk_bytes_ += n_read;
  overread_bytes_ += complete ? n_read - range.asked_bytes : n_read;
}

bool ReadSource::read_direct(const DirectRange& range) const {
  uint64_t done = 0;
  const auto end = [&] {
    const bool complete = done >= range.needed_bytes;
    count_direct(range, done, complete);
    return complete;
  };
  while (done < range.needed_bytes) {
    const uint64_t at = range.offset + done;
    const ssize_t given = ::pread(range.descriptor, range.out + done, range.size - done, static_cast<off_t>(at));
    const int64_t n = file_.descriptor_result(at, range.out + done, given < 0 ? -errno : given);
    if (n == -EINTR) continue;
    if (n == -EINVAL) {
      give_up_direct();
      return end();
    }
    if (n < 0) {
      end();
      file_.throw_read_failed(at, range.size - done, static_cast<int>(-n));
    }
    done += static_cast<uint64_t>(n);
    // The end of a file that has become shorter, or an odd piece: the buffered read says which, or goes on.
    if (static_cast<uint64_t>(n) % alignment_ != 0 || n == 0) return end();
  }
  return end();
}

void ReadSource::read_buffered(uint64_t offset, uint64_t size, std::byte* out) const {
  const bool was_cached = file_.is_cached(offset, size);
  file_.read_exact(offset, size, out);
  (was_cached ? cached_bytes_ : disk_bytes_) += size;
  if (!was_cached && file_.descriptor() >= 0) {
    ::posix_fadvise(file_.descriptor(), static_cast<off_t>(offset), static_cast<off_t>(size), POSIX_FADV_DONTNEED);
  }
}

void ReadSource::read(uint64_t offset, uint64_t size, std::byte* out) const {
  DirectRange range;
  if (!direct_range(offset, size, out, &range) || !read_direct(range)) read_buffered(offset, size, out);
  file_.check_unchanged();
}

void ReadSource::read_anywhere(uint64_t offset, uint64_t size, std::byte* out, PageBuffer* bounce) const {
  if (!direct_works_.load() || (use_cached_ && file_.is_cached(offset, size))) {
    read_buffered(offset, size, out);
    file_.check_unchanged();
    return;
  }
  if (bounce->size_bytes() < size + 2 * alignment_) *bounce = PageBuffer(size + 2 * alignment_, "reading weights");
  std::byte* place = bounce->data() + offset % alignment_;
  read(offset, size, place);
  std::memcpy(out, place, size);
}

}  // namespace expertree
