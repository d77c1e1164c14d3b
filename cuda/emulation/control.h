// What tests set and read. The same knobs are read from the environment when the emulation is first used, as
// EXPERTREE_EMU_<KEY>, and are reached from Python as expertree_emu_set("key", "value").
//
//   order       forward | reverse | random      in which threads of a block, and blocks, run
//   streams     eager | lazy | shuffle          each call completes at once; nothing runs before something waits for
//                                               it; seeded interleaving, copies in pieces that are scrambled meanwhile
//   seed        number
//   poison      byte                            that fresh device and shared memory is filled with
//   device_mem  bytes                           the device's memory; more is cudaErrorMemoryAllocation
//   guard       0 | 1                           device memory ends at an unmapped page and is out of the host's reach
//   fail        CALL:N[:ERROR]                  the Nth call of CALL from now on fails; CALL is an API function, * for
//                                               any, or run:kernel, run:copy, run:memset, run:host for work in a stream
//                                               that fails when it runs (sticky, as on a GPU); "" for none
//   abort       0 | 1                           whether misuse of the API or a kernel's fault ends the process
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emu {

enum class Order { kForward, kReverse, kRandom };
enum class StreamMode { kEager, kLazy, kShuffle };

struct Config {
  Order order = Order::kForward;
  StreamMode streams = StreamMode::kEager;
  uint64_t seed = 1;
  int poison = 0xff;
  size_t device_mem = size_t{4} << 30;
  bool guard = false;
  bool abort_on_fault = true;
  size_t max_dynamic_smem = size_t{48} << 10;  // what every device gives unasked
};

const Config& config();
bool set(const std::string& key, const std::string& value);  // false for an unknown key or value

// What was found wrong first, or "". Faults end the process unless `abort` is 0.
std::string fault_text();
uint64_t n_faults();
void clear_faults();  // and the device's sticky error

// "*" for all; "bytes to device", "bytes to host": that copies moved; "graph:kernel", "graph:copy", "graph:memset": nodes of
// graphs that were launched.
uint64_t n_calls(const std::string& call);
// Objects and memory not given back: streams, events, graphs, device and pinned allocations.
std::string leaks();

// Under AddressSanitizer: marks a part of device memory as not to be touched by kernels, or again as usable.
void poison_region(const void* p, size_t size_bytes);
void unpoison_region(const void* p, size_t size_bytes);

}  // namespace emu
