// Finding and loading the shared library of a device.
#pragma once

#include <memory>
#include <string>

#include "cpp/backend/device.h"

namespace expertree {

struct OpenedDevice {
  std::shared_ptr<Device> device;  // nullptr: there is none
  std::string why_not;             // then: what is missing
};

// backend: "cuda", or "emulated", the same code with an emulated CUDA for tests. Looks in the folder of the library or
// program that this code is part of. The library stays loaded. Throws kInvalidRequest for another name.
OpenedDevice open_device(const std::string& backend);

// The same, or else kDevice with what to do.
std::shared_ptr<Device> require_device(const std::string& backend);

}  // namespace expertree
