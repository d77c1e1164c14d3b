// What a captured stream allows, and what a graph's launches do.
#include <thread>

#include "cuda/emulation/control.h"
#include "tests/cuda/bug_list.h"
#include "tests/cuda/check_list.h"
#include "tests/cuda/planted_bugs.h"

namespace {

constexpr int kWords = 64;
constexpr size_t kBytes = kWords * sizeof(int);
constexpr auto kGlobal = cudaStreamCaptureModeGlobal;
constexpr auto kThreadLocal = cudaStreamCaptureModeThreadLocal;
constexpr auto kRelaxed = cudaStreamCaptureModeRelaxed;

// Ends a capture that a refused call has made invalid.
void check_invalidated(const OwnStream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CHECK_ERROR(cudaStreamIsCapturing(stream.get(), &status), cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusInvalidated);
  cudaGraph_t graph = nullptr;
  CHECK_ERROR(cudaStreamEndCapture(stream.get(), &graph), cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);
  CHECK_ERROR(cudaStreamIsCapturing(stream.get(), &status), cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusNone);
}

void capture_forbids_waiting() {
  const OwnStream captured, other;
  const OwnEvent event;
  must(cudaEventRecord(event.get(), other.get()));
  const std::function<cudaError_t()> calls[] = {
      [] { return cudaDeviceSynchronize(); },
      [&] { return cudaStreamSynchronize(captured.get()); },
      [&] { return cudaStreamQuery(captured.get()); },
      [&] { return cudaEventSynchronize(event.get()); },
      [&] { return cudaEventQuery(event.get()); },
      [] {
        void* p = nullptr;
        return cudaMalloc(&p, 16);
      },
      [] {
        int word = 0;
        return cudaMemcpy(&word, &word, 4, cudaMemcpyHostToHost);
      },
  };
  for (const auto& call : calls) {
    must(cudaStreamBeginCapture(captured.get(), kThreadLocal));
    CHECK_ERROR(call(), cudaErrorStreamCaptureUnsupported);
    check_invalidated(captured);
  }
}

void capture_modes_say_whom_they_forbid() {
  const OwnStream captured;
  for (const auto& [mode, mine, others] :
       {std::tuple{kGlobal, cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureUnsupported},
        std::tuple{kThreadLocal, cudaErrorStreamCaptureUnsupported, cudaSuccess},
        std::tuple{kRelaxed, cudaSuccess, cudaSuccess}}) {
    for (const bool on_other_thread : {false, true}) {
      must(cudaStreamBeginCapture(captured.get(), mode));
      void* p = nullptr;
      cudaError_t error = cudaSuccess;
      const auto allocate = [&] { error = cudaMalloc(&p, 16); };
      if (on_other_thread) {
        std::thread(allocate).join();
      } else {
        allocate();
      }
      CHECK_ERROR(error, on_other_thread ? others : mine);
      cudaGraph_t graph = nullptr;
      const cudaError_t ended = cudaStreamEndCapture(captured.get(), &graph);
      CHECK((ended == cudaSuccess) == (error == cudaSuccess));
      if (graph) must(cudaGraphDestroy(graph));
      must(cudaFree(p));
    }
  }
}

void capture_refuses_pageable_memory_and_the_default_stream() {
  const OwnStream captured;
  const DeviceArray<int> device(kWords);
  std::vector<int> words(kWords);
  must(cudaStreamBeginCapture(captured.get(), kThreadLocal));
  CHECK_ERROR(cudaMemcpyAsync(device.data(), words.data(), kBytes, cudaMemcpyHostToDevice, captured.get()),
              cudaErrorInvalidValue);
  CHECK_ERROR(cudaMemsetAsync(device.data(), 0, kBytes, nullptr), cudaErrorStreamCaptureImplicit);
  check_invalidated(captured);
  CHECK_ERROR(cudaStreamBeginCapture(nullptr, kThreadLocal), cudaErrorStreamCaptureUnsupported);
}

void forked_streams_are_joined() {
  const OwnStream origin, fork;
  const OwnEvent event, joined;
  const DeviceArray<int> device(kWords);
  cudaGraph_t graph = nullptr;
  must(cudaStreamBeginCapture(origin.get(), kThreadLocal));
  must(cudaEventRecord(event.get(), origin.get()));
  must(cudaStreamWaitEvent(fork.get(), event.get(), 0));
  must(cudaMemsetAsync(device.data(), 0, kBytes, fork.get()));
  CHECK_ERROR(cudaStreamEndCapture(fork.get(), &graph), cudaErrorStreamCaptureUnmatched);
  CHECK_ERROR(cudaStreamEndCapture(origin.get(), &graph), cudaErrorStreamCaptureUnjoined);
  must(cudaStreamBeginCapture(origin.get(), kThreadLocal));
  must(cudaEventRecord(event.get(), origin.get()));
  must(cudaStreamWaitEvent(fork.get(), event.get(), 0));
  must(cudaMemsetAsync(device.data(), 0, kBytes, fork.get()));
  must(cudaEventRecord(joined.get(), fork.get()));
  CHECK_ERROR(cudaEventQuery(joined.get()), cudaErrorCapturedEvent);
  must(cudaStreamWaitEvent(origin.get(), joined.get(), 0));
  cudaError_t error = cudaSuccess;
  std::thread([&] { error = cudaStreamEndCapture(origin.get(), &graph); }).join();
  CHECK_ERROR(error, cudaErrorStreamCaptureWrongThread);
  CHECK_ERROR(cudaStreamEndCapture(origin.get(), &graph), cudaSuccess);
  CHECK_ERROR(cudaStreamWaitEvent(origin.get(), joined.get(), 0), cudaErrorInvalidValue);  // of an ended capture
  must(cudaGraphDestroy(graph));
}

void captures_are_apart() {
  const OwnStream first, second, outside;
  const OwnEvent event, before;
  must(cudaEventRecord(before.get(), outside.get()));
  must(cudaStreamBeginCapture(first.get(), kThreadLocal));
  must(cudaStreamBeginCapture(second.get(), kThreadLocal));
  CHECK_ERROR(cudaStreamBeginCapture(second.get(), kThreadLocal), cudaErrorInvalidValue);
  CHECK_ERROR(cudaStreamWaitEvent(first.get(), before.get(), 0), cudaErrorStreamCaptureIsolation);
  must(cudaEventRecord(event.get(), first.get()));
  CHECK_ERROR(cudaStreamWaitEvent(second.get(), event.get(), 0), cudaErrorStreamCaptureMerge);
  for (const OwnStream* stream : {&first, &second}) {
    cudaGraph_t graph = nullptr;
    CHECK_ERROR(cudaStreamEndCapture(stream->get(), &graph), cudaSuccess);
    must(cudaGraphDestroy(graph));
  }
}

// to[i] = from[i] + n, from pinned to pinned memory, as a graph.
cudaGraphExec_t capture_adds(const OwnStream& stream, int* to, int* device, const int* from, int n) {
  must(cudaStreamBeginCapture(stream.get(), kThreadLocal));
  must(cudaMemcpyAsync(device, from, kBytes, cudaMemcpyHostToDevice, stream.get()));
  for (int i = 0; i < n; ++i) must(launch_add_one(device, device, kWords, stream.get()));
  must(cudaMemcpyAsync(to, device, kBytes, cudaMemcpyDeviceToHost, stream.get()));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  must(cudaStreamEndCapture(stream.get(), &graph));
  must(cudaGraphInstantiate(&exec, graph, 0));
  must(cudaGraphDestroy(graph));  // the executable does not need it
  return exec;
}

void a_graph_runs_when_launched() {
  const OwnStream stream;
  const PinnedArray<int> from(kWords), to(kWords);
  const DeviceArray<int> device(kWords);
  for (size_t i = 0; i < kWords; ++i) from[i] = to[i] = 0;
  const cudaGraphExec_t exec = capture_adds(stream, to.data(), device.data(), from.data(), 3);
  CHECK(to[0] == 0);
  must(cudaStreamSynchronize(stream.get()));
  CHECK(to[0] == 0);  // captured, not run
  for (int batch = 1; batch < 4; ++batch) {
    for (size_t i = 0; i < kWords; ++i) from[i] = batch;  // read anew by each launch
    CHECK_ERROR(cudaGraphLaunch(exec, stream.get()), cudaSuccess);
    must(cudaStreamSynchronize(stream.get()));
    for (size_t i = 0; i < kWords; ++i) CHECK(to[i] == batch + 3);
  }
  must(cudaGraphExecDestroy(exec));
}

void launches_count_their_nodes() {
  const OwnStream stream;
  const PinnedArray<int> from(kWords), to(kWords);
  const DeviceArray<int> device(kWords);
  const cudaGraphExec_t exec = capture_adds(stream, to.data(), device.data(), from.data(), 3);
  const uint64_t kernels = emu::n_calls("graph:kernel"), copies = emu::n_calls("graph:copy");
  const uint64_t launched = emu::n_calls("cudaLaunchKernel"), bytes = emu::n_calls("bytes to device");
  for (int i = 0; i < 2; ++i) must(cudaGraphLaunch(exec, stream.get()));
  must(cudaStreamSynchronize(stream.get()));
  CHECK(emu::n_calls("graph:kernel") - kernels == 2 * 3);
  CHECK(emu::n_calls("graph:copy") - copies == 2 * 2);
  CHECK(emu::n_calls("cudaLaunchKernel") == launched);
  CHECK(emu::n_calls("bytes to device") - bytes == 2 * kBytes);
  must(cudaGraphExecDestroy(exec));
}

// As after an error of the driver: the capture goes on until its end succeeds.
void a_capture_whose_end_fails_is_ended_again() {
  const OwnStream stream;
  const DeviceArray<int> device(kWords);
  must(cudaStreamBeginCapture(stream.get(), kThreadLocal));
  must(launch_add_one(device.data(), device.data(), kWords, stream.get()));
  emu::set("fail", "cudaStreamEndCapture:1");
  cudaGraph_t graph = nullptr;
  CHECK_ERROR(cudaStreamEndCapture(stream.get(), &graph), cudaErrorUnknown);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  must(cudaStreamIsCapturing(stream.get(), &status));
  CHECK(status == cudaStreamCaptureStatusActive);
  CHECK_ERROR(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  must(cudaGraphDestroy(graph));
}

void launches_of_one_graph_follow_one_another() {
  const OwnStream first, second;
  const PinnedArray<int> from(kWords), to(kWords);
  const DeviceArray<int> device(kWords);
  for (size_t i = 0; i < kWords; ++i) from[i] = 5;
  const cudaGraphExec_t exec = capture_adds(first, to.data(), device.data(), from.data(), 2);
  must(cudaGraphLaunch(exec, first.get()));
  must(cudaGraphLaunch(exec, second.get()));
  must(cudaStreamSynchronize(second.get()));
  for (size_t i = 0; i < kWords; ++i) CHECK(to[i] == 7);
  must(cudaGraphExecDestroy(exec));  // waits for what still runs
  CHECK_ERROR(cudaGraphLaunch(exec, first.get()), cudaErrorInvalidValue);
}

void a_graph_is_not_launched_into_a_capture() {
  const OwnStream stream;
  const PinnedArray<int> words(kWords);
  const DeviceArray<int> device(kWords);
  const cudaGraphExec_t exec = capture_adds(stream, words.data(), device.data(), words.data(), 1);
  must(cudaStreamBeginCapture(stream.get(), kThreadLocal));
  CHECK_ERROR(cudaGraphLaunch(exec, stream.get()), cudaErrorNotSupported);
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(stream.get(), &graph));
  must(cudaGraphDestroy(graph));
  must(cudaGraphExecDestroy(exec));
}

}  // namespace

std::vector<RuntimeCheck> graph_checks() {
  return {{"capture_forbids_waiting", capture_forbids_waiting},
          {"capture_modes_say_whom_they_forbid", capture_modes_say_whom_they_forbid},
          {"capture_refuses_pageable_memory_and_the_default_stream",
           capture_refuses_pageable_memory_and_the_default_stream},
          {"forked_streams_are_joined", forked_streams_are_joined},
          {"captures_are_apart", captures_are_apart},
          {"a_graph_runs_when_launched", a_graph_runs_when_launched},
          {"launches_count_their_nodes", launches_count_their_nodes},
          {"a_capture_whose_end_fails_is_ended_again", a_capture_whose_end_fails_is_ended_again},
          {"launches_of_one_graph_follow_one_another", launches_of_one_graph_follow_one_another},
          {"a_graph_is_not_launched_into_a_capture", a_graph_is_not_launched_into_a_capture}};
}
