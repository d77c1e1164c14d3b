// What a pager is told and what it tells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cpp/experts/slot_layout.h"
#include "cpp/io/async_reader.h"

namespace expertree {

struct PagerOptions {
  uint64_t budget_bytes = kAllExperts;  // of memory for experts, never exceeded
  std::string policy = "auto";          // a name of policy_table(), or auto: chosen by replaying the recent past
  std::vector<float> profile;           // uses per step in earlier runs, [n_layers * n_experts]; empty: none
  bool background_fill = true;          // read what has room when the disk is idle
  bool read_ahead = true;               // ask for guesses of what the next layer uses
  bool poison = false;                  // for tests: 0xFF over every slot that changes hands
  AsyncReaderOptions reader;
};

struct PagerStats {
  std::string policy;             // in use
  uint64_t budget_bytes = 0;      // taken for slots
  uint64_t all_bytes = 0;         // what slots for all experts would take
  int64_t n_slots = 0;
  int64_t n_resident = 0;
  int64_t n_steps = 0;
  int64_t n_rows = 0;  // of the text, that were counted in the first layer
  int64_t n_uses = 0;             // experts that steps needed: device hits + hits + late + misses
  int64_t n_device_hits = 0;      // on a device when asked for
  int64_t n_device_runs = 0;      // experts that ran there, these and others
  int64_t n_device_rows = 0;      // and their rows
  int64_t n_hits = 0;             // in memory when asked for
  int64_t n_late = 0;             // being read then
  int64_t n_misses = 0;           // not even that
  int64_t n_reads = 0;            // experts read, whatever for
  int64_t n_failed_reads = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_from_disk = 0;   // past the page cache, whole blocks
  uint64_t bytes_overread = 0;    // of them beside the experts
  uint64_t bytes_from_cache = 0;  // the page cache had them
  int64_t read_us = 0;            // while at least one was being read
  double read_bytes_per_second = 0.0;  // recent; 0: unknown yet
  int64_t wait_us = 0;            // that leases waited
  int64_t n_evictions = 0;
  int64_t n_hints = 0;            // experts hinted and not in memory
  int64_t n_hint_reads = 0;
  int64_t n_hints_in_time = 0;
  int64_t n_hints_late = 0;
  int64_t n_hints_wasted = 0;
  int64_t n_hint_closings = 0;    // times that hints were switched off
  bool hints_open = true;
};

// Of the text so far.
struct CountedUses {
  std::vector<int64_t> n_rows;  // counted, by layer
  std::vector<double> uses;     // of each expert by these, [n_layers * n_experts]
};

}  // namespace expertree
