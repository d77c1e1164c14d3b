// A file whose reads meet faults, for tests.
#pragma once

#include <cstdint>
#include <memory>

#include "cpp/io/file.h"

namespace expertree {

struct Faults {
  uint64_t max_read_bytes = UINT64_MAX;  // a read gives at most so many: short reads
  uint64_t interrupt_every = 0;          // every n-th read fails with EINTR; 0: none
  uint64_t fail_at = UINT64_MAX;         // reads that reach this byte stop before it, then fail with EIO
  uint64_t end_at = UINT64_MAX;          // the file was cut here after it was opened
  uint64_t fail_every = 0;               // every n-th read fails with EIO; 0: none
  uint64_t first_fault = 0;              // reads before this one, counted from 0, meet no fail_every and no delay
  uint64_t delay_every = 0;              // every n-th read takes delay_us longer; 0: none
  uint64_t delay_us = 0;
  bool descriptor = false;  // the file has one: asynchronous and direct reads, and faults in their results
};

std::unique_ptr<File> with_faults(std::unique_ptr<File> file, const Faults& faults);

}  // namespace expertree
