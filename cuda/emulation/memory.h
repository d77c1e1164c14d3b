// The emulated device's memory and the registry of pinned host memory. Internal to the emulation.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/emulation/runtime_api.h"

namespace emu {

enum class MemoryKind { kDevice, kPinned, kRegistered };

bool inside(const void* p, size_t size_bytes, bool device);  // one allocation, all of it
void hide_device_memory(bool hide);                          // from the host, with guard pages on
cudaError_t allocate(void** p, size_t size_bytes, MemoryKind kind);
cudaError_t give_back(void* p, MemoryKind kind);
cudaError_t register_host(void* p, size_t size_bytes);
size_t used_device_bytes();
std::string memory_leaks();

}  // namespace emu
