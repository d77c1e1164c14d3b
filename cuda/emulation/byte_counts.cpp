// Counts what kernels ask of device memory. Kernels are compiled with -fsanitize=thread and linked without its runtime:
// the calls that it makes at every access end here. Asynchronous copies (gpu_cp_async16) count where they are waited
// for, atomics as a read and a write. Shared and host memory do not count. For one host thread at a time.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/memory.h"

namespace emu {

namespace {

constexpr uintptr_t kSectorBytes = 32;  // what caches and memory move at a time

enum Way { kRead = 0, kWritten = 1, kNumWays = 2 };

// Of one launch; arrays by Way. tests/cuda/counted_bytes.py has the same.
struct LaunchBytes {
  uint64_t kernel;  // its address in this library, as nm has it
  uint64_t n_blocks;
  uint64_t asked_bytes[kNumWays];  // by all threads
  uint64_t warp_bytes[kNumWays];  // different ones of each access of a warp
  uint64_t warp_sectors[kNumWays];
  uint64_t block_sectors[kNumWays];  // different ones of each block
  uint64_t grid_sectors[kNumWays];  // different ones of the launch
};

// What an access takes of one sector.
struct Piece {
  uintptr_t site;  // in the kernel's code
  uintptr_t sector;
  uint32_t warp;
  uint32_t turn;  // how often the thread was at the site before: a warp's lanes are taken to be there together
  uint32_t bytes;  // a bit for each
  Way way;
};

std::vector<LaunchBytes> g_launches;
bool g_counting;
std::vector<Piece> g_pieces;  // of the block that runs
std::unordered_map<uint64_t, uint32_t> g_turns;  // by site and thread
std::vector<uintptr_t> g_sectors[kNumWays];  // different ones of each block so far

void count(const void* p, size_t size_bytes, Way way, const void* site) {
  if (!g_counting || !g_thread || !inside(p, size_bytes, true)) return;
  const auto begin = reinterpret_cast<uintptr_t>(p), end = begin + size_bytes;
  const auto place = reinterpret_cast<uintptr_t>(site);
  const uint32_t turn = g_turns[(place * 2 + way) * kMaxThreads + g_thread->linear]++;
  g_launches.back().asked_bytes[way] += size_bytes;
  for (uintptr_t sector = begin / kSectorBytes; sector * kSectorBytes < end; ++sector) {
    const uintptr_t first = std::max(begin, sector * kSectorBytes) % kSectorBytes;
    const uintptr_t n = std::min(end - sector * kSectorBytes, kSectorBytes) - first;
    const auto bytes = static_cast<uint32_t>(((uint64_t{1} << n) - 1) << first);
    g_pieces.push_back({place, sector, g_thread->warp, turn, bytes, way});
  }
}

void count_warps() {
  LaunchBytes& launch = g_launches.back();
  const auto key = [](const Piece& p) { return std::tie(p.way, p.site, p.warp, p.turn, p.sector); };
  std::sort(g_pieces.begin(), g_pieces.end(), [&](const Piece& a, const Piece& b) { return key(a) < key(b); });
  for (auto piece = g_pieces.begin(); piece != g_pieces.end();) {
    const Piece& first = *piece;
    uint32_t bytes = 0;
    for (; piece != g_pieces.end() && key(*piece) == key(first); ++piece) bytes |= piece->bytes;
    launch.warp_bytes[first.way] += static_cast<uint64_t>(__builtin_popcount(bytes));
    ++launch.warp_sectors[first.way];
  }
}

void keep_different(std::vector<uintptr_t>& sectors) {
  std::sort(sectors.begin(), sectors.end());
  sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
}

void begins(const void* kernel, dim3 grid) {
  Dl_info library{};
  dladdr(kernel, &library);
  LaunchBytes launch{};
  launch.kernel = static_cast<uint64_t>(static_cast<const char*>(kernel) - static_cast<char*>(library.dli_fbase));
  launch.n_blocks = uint64_t{grid.x} * grid.y * grid.z;
  g_launches.push_back(launch);
  g_counting = true;
}

void block_ends() {
  count_warps();
  for (const Way way : {kRead, kWritten}) {
    std::vector<uintptr_t> sectors;
    for (const Piece& piece : g_pieces) {
      if (piece.way == way) sectors.push_back(piece.sector);
    }
    keep_different(sectors);
    g_launches.back().block_sectors[way] += sectors.size();
    g_sectors[way].insert(g_sectors[way].end(), sectors.begin(), sectors.end());
  }
  g_pieces.clear();
  g_turns.clear();
}

void ends() {
  g_counting = false;
  for (const Way way : {kRead, kWritten}) {
    keep_different(g_sectors[way]);
    g_launches.back().grid_sectors[way] = g_sectors[way].size();
    g_sectors[way].clear();
  }
}

constexpr KernelObserver kCounter{begins, block_ends, ends};
const bool g_attached = [] {
  g_observer = &kCounter;
  return true;
}();

}  // namespace

}  // namespace emu

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

// The launches since the last call, no more than there is room for; the others are forgotten.
EMU_EXPORT uint64_t expertree_emu_take_launches(emu::LaunchBytes* out, uint64_t room) {
  const uint64_t n = std::min<uint64_t>(room, emu::g_launches.size());
  std::copy_n(emu::g_launches.begin(), n, out);
  emu::g_launches.clear();
  return n;
}

// What gcc calls. Only kernels are compiled so.
#define EMU_HERE __builtin_return_address(0)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define EMU_ACCESS(NAME, WAY, SIZE) \
  void __tsan_##NAME##SIZE(void* p) { emu::count(p, SIZE, emu::WAY, EMU_HERE); }
#define EMU_ACCESSES(NAME, WAY) \
  EMU_ACCESS(NAME, WAY, 1)      \
  EMU_ACCESS(NAME, WAY, 2)      \
  EMU_ACCESS(NAME, WAY, 4)      \
  EMU_ACCESS(NAME, WAY, 8)      \
  EMU_ACCESS(NAME, WAY, 16)
EMU_ACCESSES(read, kRead)
EMU_ACCESSES(write, kWritten)
EMU_ACCESSES(unaligned_read, kRead)
EMU_ACCESSES(unaligned_write, kWritten)
void __tsan_read_range(void* p, size_t size_bytes) { emu::count(p, size_bytes, emu::kRead, EMU_HERE); }
void __tsan_write_range(void* p, size_t size_bytes) { emu::count(p, size_bytes, emu::kWritten, EMU_HERE); }
// Calls of the library's own functions are not instrumented: the linker leads them here (--wrap).
void* __real_memcpy(void* to, const void* from, size_t size_bytes);
void* __wrap_memcpy(void* to, const void* from, size_t size_bytes) {
  emu::count(from, size_bytes, emu::kRead, EMU_HERE);
  emu::count(to, size_bytes, emu::kWritten, EMU_HERE);
  return __real_memcpy(to, from, size_bytes);
}
void* __real_memset(void* to, int value, size_t size_bytes);
void* __wrap_memset(void* to, int value, size_t size_bytes) {
  emu::count(to, size_bytes, emu::kWritten, EMU_HERE);
  return __real_memset(to, value, size_bytes);
}
}

// The atomics of atomics.h: instrumented, they are calls, too.
#define EMU_LOAD(BITS, T)                           \
  T __tsan_atomic##BITS##_load(const T* p, int) {   \
    emu::count(p, sizeof(T), emu::kRead, EMU_HERE); \
    return __atomic_load_n(p, __ATOMIC_RELAXED);    \
  }
#define EMU_UPDATE(BITS, T, NAME, BUILTIN)             \
  T __tsan_atomic##BITS##_##NAME(T* p, T v, int) {     \
    emu::count(p, sizeof(T), emu::kRead, EMU_HERE);    \
    emu::count(p, sizeof(T), emu::kWritten, EMU_HERE); \
    return BUILTIN(p, v, __ATOMIC_RELAXED);            \
  }
#define EMU_COMPARE(BITS, T, NAME)                                                            \
  bool __tsan_atomic##BITS##_##NAME(T* p, T* old, T v, int, int) {                            \
    emu::count(p, sizeof(T), emu::kRead, EMU_HERE);                                           \
    emu::count(p, sizeof(T), emu::kWritten, EMU_HERE);                                        \
    return __atomic_compare_exchange_n(p, old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
  }
#define EMU_ATOMICS(BITS, T)                         \
  EMU_LOAD(BITS, T)                                  \
  EMU_UPDATE(BITS, T, exchange, __atomic_exchange_n) \
  EMU_UPDATE(BITS, T, fetch_add, __atomic_fetch_add) \
  EMU_UPDATE(BITS, T, fetch_or, __atomic_fetch_or)   \
  EMU_UPDATE(BITS, T, fetch_and, __atomic_fetch_and) \
  EMU_COMPARE(BITS, T, compare_exchange_strong)      \
  EMU_COMPARE(BITS, T, compare_exchange_weak)
extern "C" {
EMU_ATOMICS(32, uint32_t)
EMU_ATOMICS(64, uint64_t)
}
