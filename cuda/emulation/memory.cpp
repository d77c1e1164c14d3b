#include "cuda/emulation/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <map>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/sanitizer_hooks.h"
#include "cuda/emulation/streams.h"

namespace emu {

namespace {

constexpr size_t kDeviceAlignment = 256;

struct Allocation {
  size_t size_bytes;
  MemoryKind kind;
  void* map;  // of guarded memory
  size_t map_bytes;
};
std::map<uintptr_t, Allocation> g_allocations;
size_t g_used_bytes;

// Its end touches a page that nobody may touch (but for what alignment to 16 bytes leaves).
void* map_guarded(size_t size_bytes, Allocation& allocation) {
  const size_t rounded = (size_bytes + kPage - 1) / kPage * kPage;
  void* map = mmap(nullptr, rounded + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* first = static_cast<char*>(map);
  mprotect(first + rounded, kPage, PROT_NONE);
  allocation.map = map;
  allocation.map_bytes = rounded;
  return first + rounded - (size_bytes + 15) / 16 * 16;
}

}  // namespace

bool inside(const void* p, size_t size_bytes, bool device) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  auto after = g_allocations.upper_bound(address);
  if (after == g_allocations.begin()) return false;
  const auto& [start, allocation] = *--after;
  return (allocation.kind == MemoryKind::kDevice) == device && address + size_bytes <= start + allocation.size_bytes;
}

void hide_device_memory(bool hide) {
  if (!config().guard) return;
  for (auto& [start, allocation] : g_allocations) {
    if (allocation.map) mprotect(allocation.map, allocation.map_bytes, hide ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
}

cudaError_t allocate(void** p, size_t size_bytes, MemoryKind kind) {
  *p = nullptr;
  const bool on_device = kind == MemoryKind::kDevice;
  if (on_device && (size_bytes > config().device_mem || g_used_bytes > config().device_mem - size_bytes)) {
    return failed(cudaErrorMemoryAllocation);
  }
  if (size_bytes == 0) return cudaSuccess;
  Allocation allocation{size_bytes, kind, nullptr, 0};
  if (on_device && config().guard) {
    *p = map_guarded(size_bytes, allocation);
  } else if (posix_memalign(p, kDeviceAlignment, size_bytes)) {
    *p = nullptr;
  }
  if (!*p) return failed(cudaErrorMemoryAllocation);
  fill_with_poison(*p, size_bytes);
  if (allocation.map) mprotect(allocation.map, allocation.map_bytes, PROT_NONE);
  g_allocations[reinterpret_cast<uintptr_t>(*p)] = allocation;
  if (on_device) g_used_bytes += size_bytes;
  return cudaSuccess;
}

cudaError_t give_back(void* p, MemoryKind kind) {
  if (!p) return cudaSuccess;
  const auto found = g_allocations.find(reinterpret_cast<uintptr_t>(p));
  if (found == g_allocations.end() || found->second.kind != kind) {
    return misuse(cudaErrorInvalidValue, "memory is given back that was not allocated so, or twice");
  }
  const Allocation allocation = found->second;
  g_allocations.erase(found);
  if (kind == MemoryKind::kDevice) g_used_bytes -= allocation.size_bytes;
  if (allocation.map) {
    munmap(allocation.map, allocation.map_bytes + kPage);
  } else if (kind != MemoryKind::kRegistered) {
    std::free(p);
  }
  return cudaSuccess;
}

cudaError_t register_host(void* p, size_t size_bytes) {
  if (!p || size_bytes == 0) return failed(cudaErrorInvalidValue);
  const auto address = reinterpret_cast<uintptr_t>(p);
  auto next = g_allocations.lower_bound(address);
  const bool touches_next = next != g_allocations.end() && next->first < address + size_bytes;
  if (touches_next || inside(p, 1, false)) return failed(cudaErrorHostMemoryAlreadyRegistered);
  g_allocations[address] = {size_bytes, MemoryKind::kRegistered, nullptr, 0};
  return cudaSuccess;
}

size_t used_device_bytes() { return g_used_bytes; }

std::string memory_leaks() {
  size_t n[3] = {}, bytes[3] = {};
  for (const auto& [start, allocation] : g_allocations) {
    ++n[static_cast<int>(allocation.kind)];
    bytes[static_cast<int>(allocation.kind)] += allocation.size_bytes;
  }
  std::string text;
  const char* names[3] = {"device", "pinned", "registered"};
  for (int kind = 0; kind < 3; ++kind) {
    if (n[kind]) {
      text +=
          std::to_string(n[kind]) + " " + names[kind] + " allocations of " + std::to_string(bytes[kind]) + " bytes; ";
    }
  }
  return text;
}

void poison_region(const void* p, size_t size_bytes) {
  if (__asan_poison_memory_region) __asan_poison_memory_region(p, size_bytes);
}

void unpoison_region(const void* p, size_t size_bytes) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, size_bytes);
}

}  // namespace emu
