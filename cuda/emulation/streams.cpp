#include "cuda/emulation/streams.h"

#include <algorithm>
#include <cstdio>

#include "cuda/emulation/machine.h"
#include "cuda/emulation/memory.h"
#include "cuda/emulation/sanitizer_hooks.h"

namespace emu {

Device& device() {
  static auto* device = new Device;  // never destroyed: streams may be waited for while the process ends
  return *device;
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) device().last = error;
  return error;
}

cudaError_t misuse(cudaError_t error, const std::string& text) {
  report(text);
  return failed(error);
}

Stream* make_stream(bool nonblocking) {
  auto* stream = new Stream;
  stream->nonblocking = nonblocking;
  if (under_tsan()) {
    static unsigned number;
    char name[32];
    std::snprintf(name, sizeof name, "stream %u", number++);
    stream->tsan_fiber = __tsan_create_fiber(0);
    __tsan_set_fiber_name(stream->tsan_fiber, name);
  }
  device().streams.push_back(stream);
  return stream;
}

void destroy_stream(Stream* stream, Lock& lock) {
  finish(stream, lock);
  auto& streams = device().streams;
  streams.erase(std::find(streams.begin(), streams.end(), stream));
  if (under_tsan()) {
    // Whoever destroys a stream is not ordered after its work; cudaFree is.
    void* host = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(stream->tsan_fiber, kTsanNoSync);
    release(&device().ended_token);
    __tsan_switch_to_fiber(host, kTsanNoSync);
    __tsan_destroy_fiber(stream->tsan_fiber);
  }
  delete stream;
}

bool is_stream(Stream* stream) { return !stream || device().user_streams.count(stream) != 0; }

Stream* resolve(Stream* stream) {
  if (stream) return stream;
  if (!device().legacy) device().legacy = make_stream(false);
  return device().legacy;
}

namespace {

bool can_run(const Stream* stream) {
  if (stream->busy || stream->queue.empty()) return false;
  const auto& waits = stream->queue.front()->waits;
  return std::all_of(waits.begin(), waits.end(), [](const PointPtr& point) { return point->reached; });
}

// One step of the stream's oldest operation, on the stream's own fiber for ThreadSanitizer.
void run_step(Stream* stream, Lock& lock) {
  const std::shared_ptr<Operation> operation = stream->queue.front();
  const bool broken = device().sticky != cudaSuccess;
  stream->busy = true;
  device().executing = true;
  device().executor = std::this_thread::get_id();
  hide_device_memory(false);
  lock.unlock();
  void* host = under_tsan() ? __tsan_get_current_fiber() : nullptr;
  if (host) __tsan_switch_to_fiber(stream->tsan_fiber, kTsanNoSync);
  acquire(&operation->token);
  for (const PointPtr& point : operation->waits) acquire(&point->token);
  // After a sticky error nothing runs any more; what is queued is done with.
  const bool finished = broken || operation->step();
  if (finished) {
    operation->step = nullptr;
    release(&stream->done_token);
    if (operation->reaches) release(&operation->reaches->token);
  }
  if (host) __tsan_switch_to_fiber(host, kTsanNoSync);
  lock.lock();
  hide_device_memory(true);
  stream->busy = false;
  device().executing = false;
  if (finished) {
    if (const cudaError_t error = broken ? cudaSuccess : injected_run_error(operation->what)) device().sticky = error;
    stream->queue.pop_front();
    if (operation->reaches) {
      operation->reaches->time = std::chrono::steady_clock::now();
      operation->reaches->reached = true;
    }
  }
  device().changed.notify_all();
}

// A step of what the stream needs next, be it in another stream.
bool step_for(Stream* stream, Lock& lock, int depth = 0) {
  if (stream->queue.empty() || depth > 256) return false;
  if (can_run(stream)) {
    run_step(stream, lock);
    return true;
  }
  const std::vector<PointPtr> waits = stream->queue.front()->waits;
  for (const PointPtr& point : waits) {
    if (!point->reached && point->stream && step_for(point->stream, lock, depth + 1)) return true;
  }
  return false;
}

bool try_step_any(Lock& lock) {
  std::vector<Stream*> runnable;
  for (Stream* stream : device().streams) {
    if (can_run(stream)) runnable.push_back(stream);
  }
  if (runnable.empty()) return false;
  run_step(runnable[draw() % runnable.size()], lock);
  return true;
}

// The legacy default stream waits for all blocking ones, and they for it.
void order_with_legacy(Stream* stream, Lock& lock) {
  if (stream == device().legacy) {
    const std::vector<Stream*> streams = device().streams;
    for (Stream* other : streams) {
      if (!other->nonblocking) finish(other, lock);
    }
  } else if (!stream->nonblocking && device().legacy) {
    finish(device().legacy, lock);
  }
}

cudaError_t add_node(Stream* stream, const char* what, MakeStep make) {
  Capture& capture = *stream->capture;
  if (capture.invalid) return failed(cudaErrorStreamCaptureInvalidated);
  capture.nodes.push_back({what, std::move(make), stream->tail, stream->lane});
  stream->tail = {static_cast<int>(capture.nodes.size()) - 1};
  return cudaSuccess;
}

}  // namespace

void step_any(Lock& lock) {
  if (!device().executing && config().streams != StreamMode::kEager) try_step_any(lock);
}

cudaError_t run_until(Stream* stream, const std::function<bool()>& done, Lock& lock) {
  while (!done()) {
    if (device().executing) {
      device().changed.wait(lock);
    } else if (!(config().streams == StreamMode::kLazy && stream ? step_for(stream, lock) : try_step_any(lock))) {
      return misuse(cudaErrorUnknown, "streams deadlocked: something is waited for, and nothing can run");
    }
  }
  return device().sticky;
}

cudaError_t finish(Stream* stream, Lock& lock) {
  return run_until(stream, [stream] { return stream->queue.empty(); }, lock);
}

void enqueue(Stream* stream, const char* what, Step step, std::vector<PointPtr> waits, PointPtr reaches, Lock& lock) {
  auto operation = std::make_shared<Operation>();
  operation->what = what;
  operation->step = std::move(step);
  operation->waits = std::move(waits);
  operation->reaches = std::move(reaches);
  if (operation->reaches) operation->reaches->stream = stream;
  release(&operation->token);
  stream->queue.push_back(operation);
  device().changed.notify_all();
  if (config().streams == StreamMode::kEager) {
    finish(stream, lock);
  } else if (config().streams == StreamMode::kShuffle) {
    for (uint64_t n = draw() % 3; n > 0; --n) step_any(lock);
  }
}

cudaError_t submit(Stream* given, const char* what, MakeStep make, Lock& lock) {
  if (!is_stream(given)) return misuse(cudaErrorInvalidResourceHandle, "a stream that does not exist");
  if (given && given->capture) return add_node(given, what, std::move(make));
  if (!given && !device().captures.empty()) {
    for (auto& capture : device().captures) capture->invalid = true;
    return misuse(cudaErrorStreamCaptureImplicit, "the default stream is used while another stream is captured");
  }
  Stream* stream = resolve(given);
  order_with_legacy(stream, lock);
  enqueue(stream, what, make(), {}, nullptr, lock);
  return cudaSuccess;
}

}  // namespace emu
