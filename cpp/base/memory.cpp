#include "cpp/base/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// A file holding one number, or "max".
uint64_t read_number(const std::string& path) {
  std::ifstream in(path);
  uint64_t value;
  return in >> value ? value : kUnknown;
}

uint64_t meminfo_available() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  uint64_t kib;
  std::string unit;
  while (in >> key >> kib) {
    std::getline(in, unit);
    if (key == "MemAvailable:") return kib * 1024;
  }
  return kUnknown;
}

uint64_t control_group_room() {
  // Page cache counts as used in the control group but gives way; it is added back from its statistics.
  struct Files {
    const char* folder_key;  // prefix of the line in /proc/self/cgroup
    const char* root;
    const char* limit;
    const char* usage;
    const char* cache_key;
  };
  constexpr Files kVersions[] = {
      {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "file"},
      {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"},
  };
  uint64_t room = kUnknown;
  for (const Files& version : kVersions) {
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {
      if (line.find(version.folder_key) == std::string::npos) continue;
      std::string folder = version.root + line.substr(line.rfind(':') + 1) + "/";
      uint64_t limit = read_number(folder + version.limit);
      if (limit == kUnknown) {
        folder = std::string(version.root) + "/";  // inside a container the group is mounted as the root
        limit = read_number(folder + version.limit);
      }
      const uint64_t usage = read_number(folder + version.usage);
      if (limit == kUnknown || usage == kUnknown || limit > (uint64_t{1} << 60)) continue;
      uint64_t cache = 0;
      std::ifstream stat(folder + "memory.stat");
      std::string key;
      for (uint64_t value; stat >> key >> value;) {
        if (key == version.cache_key) cache = value;
      }
      const uint64_t hard = usage > cache ? usage - cache : 0;
      room = std::min(room, limit > hard ? limit - hard : 0);
    }
  }
  return room;
}

}  // namespace

PageBuffer::PageBuffer(uint64_t size_bytes, const std::string& purpose) {
  if (size_bytes == 0) return;
  void* p = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    throw Error(ErrorCode::kOutOfMemory, "cannot reserve " + format_bytes(size_bytes) + " for " + purpose +
                                             "; close other programs, or use a smaller model or context");
  }
  madvise(p, size_bytes, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
  size_bytes_ = size_bytes;
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

uint64_t available_memory_bytes() {
  const uint64_t available = std::min(meminfo_available(), control_group_room());
  return available == kUnknown ? 0 : available;
}

void require_memory(uint64_t need_bytes, const std::string& purpose) {
  const uint64_t available = available_memory_bytes();
  if (available == 0 || need_bytes <= available) return;
  throw Error(ErrorCode::kOutOfMemory, purpose + " needs " + format_bytes(need_bytes) + " of memory and " +
                                           format_bytes(available) +
                                           " is available; close other programs, or use a smaller model or context");
}

std::string format_bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024.0 && unit < 4) {
    value /= 1024.0;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace expertree
