// control.h for Python's ctypes, in the shared library.
#include <string>

#include "cuda/emulation/control.h"

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

EMU_EXPORT int expertree_emu_set(const char* key, const char* value) { return emu::set(key, value) ? 0 : 1; }
EMU_EXPORT unsigned long long expertree_emu_n_calls(const char* call) { return emu::n_calls(call); }
EMU_EXPORT unsigned long long expertree_emu_n_faults() { return emu::n_faults(); }
EMU_EXPORT void expertree_emu_clear_faults() { emu::clear_faults(); }

// Valid until the thread's next call.
EMU_EXPORT const char* expertree_emu_fault() {
  thread_local std::string text;
  text = emu::fault_text();
  return text.c_str();
}
EMU_EXPORT const char* expertree_emu_leaks() {
  thread_local std::string text;
  text = emu::leaks();
  return text.c_str();
}
