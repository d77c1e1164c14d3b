#include "cpp/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "cpp/base/error.h"
#include "cpp/io/printable.h"

namespace expertree {
namespace {

// The most bytes that one Linux read moves; larger requests come back short anyway.
constexpr uint64_t kMaxCallBytes = 0x7ffff000;

std::string system_text(int error) { return std::generic_category().message(error); }

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

class RegularFile final : public File {
 public:
  RegularFile(const std::string& path, const struct stat& status, Descriptor fd)
      : File(path, static_cast<uint64_t>(status.st_size)), fd_(std::move(fd)), modified_(status.st_mtim) {}

  int descriptor() const override { return fd_.get(); }

  void check_unchanged() const override {
    struct stat now;
    if (::fstat(fd_.get(), &now) != 0) return;  // a read says more
    if (static_cast<uint64_t>(now.st_size) == size() && now.st_mtim.tv_sec == modified_.tv_sec &&
        now.st_mtim.tv_nsec == modified_.tv_nsec) {
      return;
    }
    throw Error(ErrorCode::kDevice,
                printable(path()) + ": the file was changed while the model is in use: " + std::to_string(size()) +
                    " bytes when it was opened, " + std::to_string(now.st_size) + " now; load the model again");
  }

 protected:
  int64_t read_some(uint64_t offset, uint64_t size, std::byte* out) const override {
    const ssize_t n = ::pread(fd_.get(), out, std::min(size, kMaxCallBytes), static_cast<off_t>(offset));
    return n < 0 ? -static_cast<int64_t>(errno) : n;
  }

 private:
  Descriptor fd_;
  struct timespec modified_;
};

[[noreturn]] void throw_open_failed(const std::string& path, int error) {
  const std::string file = printable(path);
  switch (error) {
    case ENOENT:
    case ENOTDIR: throw Error(ErrorCode::kInvalidRequest, file + ": there is no such file; check the path");
    case EACCES:
    case EPERM:
      throw Error(ErrorCode::kInvalidRequest, file +
                                                  ": no permission to read this file; change it with chmod a+r, or "
                                                  "run as a user who may read it");
    case ELOOP:
    case ENAMETOOLONG:
      throw Error(ErrorCode::kInvalidRequest, file + ": " + system_text(error) + "; check the path and its links");
    case ENXIO:  // a socket, or a device without a driver
    case ENODEV: throw Error(ErrorCode::kInvalidRequest, file + ": not a regular file; give the path of a model file");
    case ENOMEM: throw Error(ErrorCode::kOutOfMemory, file + ": no memory left to open it; close other programs");
    case EMFILE:
    case ENFILE: throw Error(ErrorCode::kDevice, file + ": too many open files; raise the limit with ulimit -n");
    default:
      throw Error(ErrorCode::kDevice,
                  file + ": cannot open it: " + system_text(error) + "; check the disk or the network mount");
  }
}

}  // namespace

void File::read_exact(uint64_t offset, uint64_t size, std::byte* out) const {
  ET_CHECK(offset <= size_ && size <= size_ - offset);
  while (size > 0) {
    const int64_t n = read_some(offset, size, out);
    if (n == -EINTR) continue;
    if (n < 0) throw_read_failed(offset, size, static_cast<int>(-n));
    if (n == 0) {
      throw Error(ErrorCode::kDevice, printable(path_) + ": the file now ends at byte " + std::to_string(offset) +
                                          " but had " + std::to_string(size_) +
                                          " bytes when it was opened; do not change a model file that is in use, and "
                                          "load it again");
    }
    offset += static_cast<uint64_t>(n);
    size -= static_cast<uint64_t>(n);
    out += n;
  }
}

void File::throw_read_failed(uint64_t offset, uint64_t size, int error) const {
  throw Error(ErrorCode::kDevice, printable(path_) + ": reading " + std::to_string(size) + " bytes at byte " +
                                      std::to_string(offset) + " failed: " + system_text(error) +
                                      "; check the disk or the network mount");
}

bool File::is_cached(uint64_t offset, uint64_t size) const {
  constexpr long kCachestat = 451;  // cachestat(2), the same number on every architecture
  struct {
    uint64_t offset, size;
  } range{offset, size};
  struct {
    uint64_t n_cached, n_dirty, n_writeback, n_evicted, n_recently_evicted;  // pages
  } found{};
  if (descriptor() < 0 || size == 0 || ::syscall(kCachestat, descriptor(), &range, &found, 0) != 0) return false;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return found.n_cached >= (offset + size - 1) / page - offset / page + 1;
}

std::unique_ptr<File> open_file(const std::string& path) {
  if (path.empty()) throw Error(ErrorCode::kInvalidRequest, "the path is empty; give the path of a GGUF file");
  if (path.find('\0') != std::string::npos) {
    throw Error(ErrorCode::kInvalidRequest, printable(path) + ": the path contains a NUL character; check the path");
  }
  // O_NONBLOCK: opening a pipe must not wait for its writer. It means nothing for regular files.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) throw_open_failed(path, errno);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) throw_open_failed(path, errno);
  if (S_ISDIR(status.st_mode)) {
    throw Error(ErrorCode::kInvalidRequest, printable(path) +
                                                ": this is a directory; give the path of the .gguf file "
                                                "in it (of a split model, the part -00001-of-...)");
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kInvalidRequest, printable(path) + ": not a regular file; give the path of a model file");
  }
  if (status.st_size == 0) {
    throw Error(ErrorCode::kModelFormat, printable(path) + ": the file is empty; download it again");
  }
  return std::make_unique<RegularFile>(path, status, std::move(fd));
}

}  // namespace expertree
