// The sanitizers' runtimes, used where the program has them. The emulation itself is compiled without instrumentation:
// only kernels and host code are watched, and the calls below tell what orders what. Under ThreadSanitizer every CUDA
// thread and every stream is a fiber, switched without synchronisation; barriers, events and waits alone order them.
#pragma once

#include <cstddef>

extern "C" {
#define EMU_WEAK __attribute__((weak, visibility("default")))
EMU_WEAK void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size_bytes);
EMU_WEAK void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, size_t* size_bytes);
EMU_WEAK void __asan_poison_memory_region(const volatile void* p, size_t size_bytes);
EMU_WEAK void __asan_unpoison_memory_region(const volatile void* p, size_t size_bytes);
EMU_WEAK void* __tsan_get_current_fiber();
EMU_WEAK void* __tsan_create_fiber(unsigned flags);
EMU_WEAK void __tsan_destroy_fiber(void* fiber);
EMU_WEAK void __tsan_switch_to_fiber(void* fiber, unsigned flags);
EMU_WEAK void __tsan_set_fiber_name(void* fiber, const char* name);
EMU_WEAK void __tsan_acquire(void* address);
EMU_WEAK void __tsan_release(void* address);
EMU_WEAK void AnnotateIgnoreReadsBegin(const char* file, int line);
EMU_WEAK void AnnotateIgnoreReadsEnd(const char* file, int line);
EMU_WEAK void AnnotateIgnoreWritesBegin(const char* file, int line);
EMU_WEAK void AnnotateIgnoreWritesEnd(const char* file, int line);
#undef EMU_WEAK
}

namespace emu {

inline bool under_tsan() { return __tsan_create_fiber != nullptr; }
inline bool under_asan() { return __sanitizer_start_switch_fiber != nullptr; }

// What was done before release(p) is seen by whoever calls acquire(p) after it.
inline void acquire(void* token) {
  if (__tsan_acquire) __tsan_acquire(token);
}
inline void release(void* token) {
  if (__tsan_release) __tsan_release(token);
}

constexpr unsigned kTsanNoSync = 1;

// Memory accesses in its scope, those of libc functions included, are the emulation's own.
class Unwatched {
 public:
  Unwatched() {
    if (!AnnotateIgnoreReadsBegin) return;
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    if (!AnnotateIgnoreReadsBegin) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

}  // namespace emu
