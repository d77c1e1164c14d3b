// Integer atomics, relaxed as on the GPU. Those of floats are left out: their order would show in the result.
#pragma once

namespace emu {

template <class T, class F>
T atomic_update(T* p, F next) {
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, next(old), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace emu

#define EMU_ATOMICS(T)                                                                      \
  inline T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }      \
  inline T atomicOr(T* p, T v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }        \
  inline T atomicAnd(T* p, T v) { return __atomic_fetch_and(p, v, __ATOMIC_RELAXED); }      \
  inline T atomicExch(T* p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }    \
  inline T atomicMax(T* p, T v) {                                                           \
    return emu::atomic_update(p, [v](T o) { return o > v ? o : v; });                       \
  }                                                                                         \
  inline T atomicMin(T* p, T v) {                                                           \
    return emu::atomic_update(p, [v](T o) { return o < v ? o : v; });                       \
  }                                                                                         \
  inline T atomicCAS(T* p, T compare, T v) {                                                \
    __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    return compare;                                                                         \
  }
EMU_ATOMICS(int)
EMU_ATOMICS(unsigned)
EMU_ATOMICS(unsigned long long)
#undef EMU_ATOMICS

inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return emu::atomic_update(p, [limit](unsigned o) { return o >= limit ? 0 : o + 1; });
}
