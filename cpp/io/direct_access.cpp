#include "cpp/io/direct_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

namespace expertree {
namespace {

constexpr uint64_t kUnknownAlignment = 4096;  // the largest sector size in use

// The alignment that the system asks for; 0 when it says that there is no direct access to this file.
uint64_t alignment_of(int fd) {
#ifdef STATX_DIOALIGN
  struct statx status;
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0) {
    return std::max<uint64_t>(status.stx_dio_offset_align, status.stx_dio_mem_align);
  }
#endif
  return kUnknownAlignment;
}

bool is_same_file(int a, int b) {
  struct stat status_a;
  struct stat status_b;
  return ::fstat(a, &status_a) == 0 && ::fstat(b, &status_b) == 0 && status_a.st_dev == status_b.st_dev &&
         status_a.st_ino == status_b.st_ino;
}

}  // namespace

DirectAccess::DirectAccess(const File& file) {
#ifdef O_DIRECT
  if (file.descriptor() < 0) return;
  fd_ = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd_ >= 0 && is_same_file(fd_, file.descriptor()) && probe(file.size())) return;
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  alignment_ = 1;
#endif
}

DirectAccess::DirectAccess(DirectAccess&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), alignment_(other.alignment_) {}

DirectAccess::~DirectAccess() {
  if (fd_ >= 0) ::close(fd_);
}

bool DirectAccess::probe(uint64_t file_size) {
  alignment_ = alignment_of(fd_);
  if (alignment_ == 0 || (alignment_ & (alignment_ - 1)) != 0 || alignment_ > 65536) return false;
  const auto size = std::max<uint64_t>(alignment_, 512);
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(size, size), &std::free);
  if (page == nullptr) return false;
  return ::pread(fd_, page.get(), size, 0) == static_cast<ssize_t>(std::min(size, file_size));
}

}  // namespace expertree
