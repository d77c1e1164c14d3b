// The API's streams and events.
#include "cuda/emulation/control.h"
#include "cuda/emulation/sanitizer_hooks.h"
#include "cuda/emulation/streams.h"

namespace emu {

namespace {

cudaError_t create_stream(const char* name, Stream** stream, bool nonblocking) {
  EMU_BEGIN(name);
  *stream = make_stream(nonblocking);
  device().user_streams.insert(*stream);
  return cudaSuccess;
}

cudaError_t create_event(const char* name, Event** event) {
  EMU_BEGIN(name);
  *event = new Event;
  device().events.insert(*event);
  return cudaSuccess;
}

cudaError_t no_such(const char* name, const char* what) {
  return misuse(cudaErrorInvalidResourceHandle, std::string(name) + ": the " + what + " does not exist");
}

// A wait of a captured stream, or one on a captured event: it becomes a dependency of the stream's next node.
cudaError_t wait_in_capture(Stream* stream, Event* event) {
  const std::shared_ptr<Capture> capture = event->capture.lock();
  if (event->captured && !capture)
    return misuse(cudaErrorInvalidValue, "a wait for an event of a capture that has ended");
  if (!event->captured) {
    return misuse(cudaErrorStreamCaptureIsolation, "a captured stream waits for an event recorded outside its capture");
  }
  if (!stream) return misuse(cudaErrorStreamCaptureImplicit, "the default stream waits for a captured event");
  if (!stream->capture) {
    stream->capture = capture;
    stream->lane = static_cast<int>(capture->streams.size());
    stream->tail.clear();
    capture->streams.push_back(stream);
  } else if (stream->capture != capture) {
    return misuse(cudaErrorStreamCaptureMerge, "a wait would join two captures");
  }
  stream->tail.insert(event->after.begin(), event->after.end());
  return cudaSuccess;
}

}  // namespace

}  // namespace emu

using namespace emu;

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create_stream("cudaStreamCreate", stream, false); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create_stream("cudaStreamCreateWithFlags", stream, flags & cudaStreamNonBlocking);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return create_stream("cudaStreamCreateWithPriority", stream, flags & cudaStreamNonBlocking);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  EMU_BEGIN("cudaDeviceGetStreamPriorityRange");
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  EMU_BEGIN("cudaStreamDestroy");
  if (!stream || !is_stream(stream)) return no_such("cudaStreamDestroy", "stream");
  if (stream->capture) stream->capture->invalid = true;
  device().user_streams.erase(stream);
  destroy_stream(stream, lock);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t given) {
  EMU_BEGIN("cudaStreamSynchronize");
  if (!is_stream(given)) return no_such("cudaStreamSynchronize", "stream");
  if (const cudaError_t error = forbid_while_capturing("cudaStreamSynchronize")) return error;
  Stream* stream = resolve(given);
  if (const cudaError_t error = finish(stream, lock)) return error;
  acquire(&stream->done_token);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t given) {
  EMU_BEGIN("cudaStreamQuery");
  if (!is_stream(given)) return no_such("cudaStreamQuery", "stream");
  if (const cudaError_t error = forbid_while_capturing("cudaStreamQuery")) return error;
  Stream* stream = resolve(given);
  step_any(lock);
  if (!stream->queue.empty()) return cudaErrorNotReady;
  acquire(&stream->done_token);
  return device().sticky;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user) {
  EMU_BEGIN("cudaLaunchHostFunc");
  auto step = [=] {
    function(user);
    return true;
  };
  return submit(stream, "host", [=] { return Step(step); }, lock);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return create_event("cudaEventCreate", event); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return create_event("cudaEventCreateWithFlags", event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  EMU_BEGIN("cudaEventDestroy");
  if (device().events.erase(event) == 0) return no_such("cudaEventDestroy", "event");
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t given) {
  EMU_BEGIN("cudaEventRecord");
  if (device().events.count(event) == 0) return no_such("cudaEventRecord", "event");
  if (!is_stream(given)) return no_such("cudaEventRecord", "stream");
  event->captured = given && given->capture;
  event->point = nullptr;
  if (event->captured) {
    event->capture = given->capture;
    event->after = given->tail;
    return cudaSuccess;
  }
  event->point = std::make_shared<Point>();
  Stream* stream = resolve(given);
  if (!given) {  // ordered after the blocking streams, by an operation of its own
    if (const cudaError_t error = submit(nullptr, "record", [] { return Step([] { return true; }); }, lock))
      return error;
  }
  enqueue(stream, "record", [] { return true; }, {}, event->point, lock);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t event, unsigned) {
  EMU_BEGIN("cudaStreamWaitEvent");
  if (device().events.count(event) == 0) return no_such("cudaStreamWaitEvent", "event");
  if (!is_stream(given)) return no_such("cudaStreamWaitEvent", "stream");
  if (event->captured || (given && given->capture)) return wait_in_capture(given, event);
  if (event->point) enqueue(resolve(given), "wait", [] { return true; }, {event->point}, nullptr, lock);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  EMU_BEGIN("cudaEventSynchronize");
  if (device().events.count(event) == 0) return no_such("cudaEventSynchronize", "event");
  if (event->captured) return misuse(cudaErrorCapturedEvent, "cudaEventSynchronize of a captured event");
  if (const cudaError_t error = forbid_while_capturing("cudaEventSynchronize")) return error;
  const PointPtr point = event->point;
  if (!point) return cudaSuccess;
  if (const cudaError_t error = run_until(point->stream, [point] { return point->reached; }, lock)) return error;
  acquire(&point->token);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  EMU_BEGIN("cudaEventQuery");
  if (device().events.count(event) == 0) return no_such("cudaEventQuery", "event");
  if (event->captured) return misuse(cudaErrorCapturedEvent, "cudaEventQuery of a captured event");
  if (const cudaError_t error = forbid_while_capturing("cudaEventQuery")) return error;
  const PointPtr point = event->point;
  if (!point) return cudaSuccess;
  step_any(lock);
  if (!point->reached) return cudaErrorNotReady;
  acquire(&point->token);
  return device().sticky;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  EMU_BEGIN("cudaEventElapsedTime");
  if (device().events.count(start) == 0 || device().events.count(end) == 0) {
    return no_such("cudaEventElapsedTime", "event");
  }
  if (!start->point || !end->point) return failed(cudaErrorInvalidResourceHandle);
  if (!start->point->reached || !end->point->reached) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->point->time - start->point->time).count();
  return cudaSuccess;
}
