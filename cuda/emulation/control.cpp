#include "cuda/emulation/control.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/memory.h"
#include "cuda/emulation/streams.h"

namespace emu {

namespace {

struct Injection {
  std::string call;  // "" for none
  uint64_t countdown = 0;
  cudaError_t error = cudaErrorUnknown;
};

// All of it under the device's lock, but for the text of faults, which kernels report while it is not held.
Config g_config;
Injection g_injection;
std::map<std::string, uint64_t> g_calls;
uint64_t g_random = 1;
std::mutex g_fault_mutex;
std::string g_fault;
uint64_t g_n_faults;

bool parse_number(const std::string& text, uint64_t& number) {
  char* end = nullptr;
  number = std::strtoull(text.c_str(), &end, 0);
  return !text.empty() && *end == '\0';
}

template <class T>
bool choose(T& field, const std::string& value, std::initializer_list<std::pair<const char*, T>> names) {
  for (const auto& [name, choice] : names) {
    if (value == name) {
      field = choice;
      return true;
    }
  }
  return false;
}

bool set_injection(const std::string& value) {  // CALL:N[:ERROR]; CALL may be run:WHAT
  Injection injection;
  if (!value.empty()) {
    const size_t call_end = value.find(':', value.rfind("run:", 0) == 0 ? 4 : 0);
    if (call_end == std::string::npos) return false;
    injection.call = value.substr(0, call_end);
    const size_t error_at = value.find(':', call_end + 1);
    const std::string countdown =
        value.substr(call_end + 1, error_at == std::string::npos ? error_at : error_at - call_end - 1);
    if (!parse_number(countdown, injection.countdown) || injection.countdown == 0) return false;
    injection.error = injection.call.rfind("run:", 0) == 0               ? cudaErrorLaunchFailure
                      : injection.call.find("lloc") != std::string::npos ? cudaErrorMemoryAllocation
                                                                         : cudaErrorUnknown;
    uint64_t error = 0;
    if (error_at != std::string::npos) {
      if (!parse_number(value.substr(error_at + 1), error) || error == 0) return false;
      injection.error = static_cast<cudaError_t>(error);
    }
  }
  g_injection = injection;
  return true;
}

void seed_random() {
  g_random = 88172645463325252u ^ g_config.seed * 0x9E3779B97F4A7C15u;
  if (g_random == 0) g_random = 1;
}

bool set_unlocked(const std::string& key, const std::string& value) {
  if (key == "fail") return set_injection(value);
  if (key == "order") {
    return choose(g_config.order, value,
                  {{"forward", Order::kForward}, {"reverse", Order::kReverse}, {"random", Order::kRandom}});
  }
  if (key == "streams") {
    return choose(g_config.streams, value,
                  {{"eager", StreamMode::kEager}, {"lazy", StreamMode::kLazy}, {"shuffle", StreamMode::kShuffle}});
  }
  uint64_t number = 0;
  if (!parse_number(value, number)) return false;
  if (key == "seed") {
    g_config.seed = number;
    seed_random();
  } else if (key == "poison") {
    g_config.poison = static_cast<int>(number & 255);
  } else if (key == "device_mem") {
    g_config.device_mem = number;
  } else if (key == "guard") {
    g_config.guard = number != 0;
  } else if (key == "abort") {
    g_config.abort_on_fault = number != 0;
  } else {
    return false;
  }
  return true;
}

// Whether this call is the one that is to fail.
cudaError_t count_down(const std::string& call) {
  if (g_injection.call.empty() || (g_injection.call != call && g_injection.call != "*")) return cudaSuccess;
  if (g_injection.call == "*" && call.rfind("run:", 0) == 0) return cudaSuccess;
  if (--g_injection.countdown > 0) return cudaSuccess;
  g_injection.call.clear();
  return g_injection.error;
}

const bool g_environment_read = [] {
  seed_random();
  for (const char* key : {"order", "streams", "seed", "poison", "device_mem", "guard", "fail", "abort"}) {
    std::string name = "EXPERTREE_EMU_";
    for (const char* c = key; *c; ++c) name += static_cast<char>(*c >= 'a' ? *c - 'a' + 'A' : *c);
    const char* value = std::getenv(name.c_str());
    if (value && !set_unlocked(key, value)) {
      std::fprintf(stderr, "CUDA emulation: %s=%s is not understood; cuda/emulation/control.h lists the settings\n",
                   name.c_str(), value);
      std::abort();
    }
  }
  return true;
}();

}  // namespace

const Config& config() { return g_config; }

bool set(const std::string& key, const std::string& value) {
  Lock lock(device().mutex);
  return set_unlocked(key, value);
}

uint64_t draw() {
  g_random ^= g_random << 13;
  g_random ^= g_random >> 7;
  g_random ^= g_random << 17;
  return g_random;
}

std::string where() {
  if (!g_thread || !g_block) return "host";
  char text[160];
  const uint3 b = g_block->block_index, t = g_thread->thread_index;
  std::snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", b.x, b.y, b.z, t.x, t.y, t.z);
  return text;
}

void report(const std::string& fault) {
  const std::lock_guard lock(g_fault_mutex);
  if (g_n_faults++ == 0) g_fault = fault;
  if (!g_config.abort_on_fault) return;
  std::fprintf(stderr, "CUDA emulation: %s\n", fault.c_str());
  std::abort();
}

std::string fault_text() {
  const std::lock_guard lock(g_fault_mutex);
  return g_fault;
}

uint64_t n_faults() {
  const std::lock_guard lock(g_fault_mutex);
  return g_n_faults;
}

void clear_faults() {
  Lock device_lock(device().mutex);
  const std::lock_guard lock(g_fault_mutex);
  g_fault.clear();
  g_n_faults = 0;
  device().sticky = device().last = cudaSuccess;
}

cudaError_t begin_call(const char* name) {
  ++g_calls[name];
  ++g_calls["*"];
  if (device().executing && device().executor == std::this_thread::get_id()) {
    return misuse(cudaErrorNotSupported, std::string(name) + " is called by a function that a stream runs");
  }
  if (device().sticky != cudaSuccess) return device().sticky;
  return failed(count_down(name));
}

void count(const char* what, uint64_t n) { g_calls[what] += n; }

cudaError_t injected_run_error(const char* what) { return count_down(std::string("run:") + what); }

uint64_t n_calls(const std::string& call) {
  Lock lock(device().mutex);
  const auto found = g_calls.find(call);
  return found == g_calls.end() ? 0 : found->second;
}

std::string leaks() {
  Lock lock(device().mutex);
  std::string text = memory_leaks();
  const auto add = [&text](size_t n, const char* what) {
    if (n) text += std::to_string(n) + " " + what + "; ";
  };
  add(device().user_streams.size(), "streams");
  add(device().events.size(), "events");
  add(device().graphs.size(), "graphs");
  add(device().execs.size(), "instantiated graphs");
  return text;
}

}  // namespace emu
