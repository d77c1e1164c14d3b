// A file that is read at offsets. Virtual so that tests can serve bytes from memory and inject short reads and EIO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace expertree {

class File {
 public:
  virtual ~File() = default;

  const std::string& path() const { return path_; }
  // Bytes when it was opened.
  uint64_t size() const { return size_; }

  // Fills `out` with `size` bytes from `offset`: interrupted and short reads are continued. Throws kDevice naming
  // the file and the offset when the system reports an error or the bytes are no longer there. Safe from any thread.
  void read_exact(uint64_t offset, uint64_t size, std::byte* out) const;

  // The descriptor to map or to read asynchronously, or -1 when there is none.
  virtual int descriptor() const { return -1; }

  // What a read through the descriptor into `out`, past read_some, gave: bytes, or -errno. Tests put faults in its place.
  virtual int64_t descriptor_result(uint64_t offset, std::byte* out, int64_t result) const { return result; }

  // Throws kDevice when the file was written to since it was opened: bytes read later would be another model's.
  virtual void check_unchanged() const {}

  // All of the range lies in the system's page cache. False where the system does not say (Linux before 6.5).
  bool is_cached(uint64_t offset, uint64_t size) const;

  // The system's error as kDevice, naming file and offset.
  [[noreturn]] void throw_read_failed(uint64_t offset, uint64_t size, int error) const;

 protected:
  File(std::string path, uint64_t size) : path_(std::move(path)), size_(size) {}

  // One system read: the number of bytes read (0 at the end of the file), or -errno.
  virtual int64_t read_some(uint64_t offset, uint64_t size, std::byte* out) const = 0;

 private:
  std::string path_;
  uint64_t size_;
};

// Opens a regular file for reading. Throws kInvalidRequest when there is no such file, it is a directory or a device,
// or may not be read; kModelFormat when it is empty; kDevice when the system fails.
std::unique_ptr<File> open_file(const std::string& path);

using FileOpener = std::function<std::unique_ptr<File>(const std::string& path)>;

}  // namespace expertree
