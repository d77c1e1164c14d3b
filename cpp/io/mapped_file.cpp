#include "cpp/io/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "cpp/base/error.h"
#include "cpp/io/printable.h"

namespace expertree {

MappedFile::MappedFile(const File& file) : size_(file.size()) {
  if (file.descriptor() < 0) {
    throw Error(ErrorCode::kUnsupported, printable(file.path()) +
                                             ": this file has no descriptor and cannot be mapped; "
                                             "read it instead");
  }
  struct stat status;
  if (::fstat(file.descriptor(), &status) != 0 || static_cast<uint64_t>(status.st_size) < size_) {
    throw Error(ErrorCode::kDevice, printable(file.path()) + ": the file has become shorter than the " +
                                        std::to_string(size_) + " bytes it had; load it again");
  }
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) {
    const ErrorCode code = errno == ENOMEM ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
    throw Error(code, printable(file.path()) + ": mapping " + std::to_string(size_) + " bytes failed: " +
                          std::generic_category().message(errno) + "; check ulimit -v and the file system");
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(data_), size_); }

}  // namespace expertree
