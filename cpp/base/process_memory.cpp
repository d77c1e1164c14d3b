#include "cpp/base/process_memory.h"

#include <unistd.h>

#include <cstdio>

namespace expertree {

uint64_t process_resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long long all = 0;
  unsigned long long resident = 0;
  const int n = std::fscanf(file, "%llu %llu", &all, &resident);
  std::fclose(file);
  return n == 2 ? resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace expertree
