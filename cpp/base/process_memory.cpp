#include "cpp/base/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace expertree {

uint64_t process_resident_bytes() {
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[128];  // pages: all, resident, ...
  const ssize_t n = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  if (n <= 0) return 0;
  text[n] = '\0';
  char* resident = nullptr;
  std::strtoull(text, &resident, 10);
  return std::strtoull(resident, nullptr, 10) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace expertree
