#include "cpp/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
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
constexpr uint64_t kMaxReadBytes = 0x7ffff000;

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
  RegularFile(const std::string& path, uint64_t size, Descriptor fd) : File(path, size), fd_(std::move(fd)) {}

  int descriptor() const override { return fd_.get(); }

 protected:
  int64_t read_some(uint64_t offset, uint64_t size, std::byte* out) const override {
    const ssize_t n = ::pread(fd_.get(), out, std::min(size, kMaxReadBytes), static_cast<off_t>(offset));
    return n < 0 ? -static_cast<int64_t>(errno) : n;
  }

 private:
  Descriptor fd_;
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
    if (n < 0) {
      throw Error(ErrorCode::kDevice, printable(path_) + ": reading " + std::to_string(size) + " bytes at byte " +
                                          std::to_string(offset) + " failed: " + system_text(static_cast<int>(-n)) +
                                          "; check the disk or the network mount");
    }
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
  return std::make_unique<RegularFile>(path, static_cast<uint64_t>(status.st_size), std::move(fd));
}

}  // namespace expertree
