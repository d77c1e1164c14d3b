// Memory, streams, events, errors and injected faults of the emulated runtime.
#include <cstring>
#include <thread>

#include "cuda/emulation/control.h"
#include "tests/cuda/bug_list.h"
#include "tests/cuda/check_list.h"
#include "tests/cuda/planted_bugs.h"

namespace {

constexpr int kWords = 64;
constexpr size_t kBytes = kWords * sizeof(int);

void memory_is_limited() {
  emu::set("device_mem", "4096");
  void *first = nullptr, *second = nullptr;
  size_t free_bytes = 0, total_bytes = 0;
  CHECK_ERROR(cudaMalloc(&first, 3000), cudaSuccess);
  CHECK_ERROR(cudaMalloc(&second, 1097), cudaErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  CHECK(free_bytes == 1096 && total_bytes == 4096);
  CHECK_ERROR(cudaMalloc(&second, 1096), cudaSuccess);
  CHECK_ERROR(cudaFree(first), cudaSuccess);
  CHECK_ERROR(cudaFree(second), cudaSuccess);
  CHECK_ERROR(cudaMalloc(&first, 4096), cudaSuccess);
  CHECK_ERROR(cudaFree(first), cudaSuccess);
}

void fresh_memory_is_poisoned() {
  const DeviceArray<int> device(kWords);
  int words[kWords] = {};
  must(cudaMemcpy(words, device.data(), kBytes, cudaMemcpyDeviceToHost));
  for (const int word : words) CHECK(word == -1);
}

// A small program that gives back all that it took, whatever fails. Returns the first error.
cudaError_t small_program() {
  int *device = nullptr, *pinned = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaError_t first = cudaSuccess;
  const auto run = [&first](cudaError_t error) {
    if (first == cudaSuccess) first = error;
    return error == cudaSuccess;
  };
  if (run(cudaMalloc(&device, kBytes)) && run(cudaMallocHost(&pinned, kBytes)) &&
      run(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) &&
      run(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) {
    std::memset(pinned, 0, kBytes);
    if (run(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, stream)) &&
        run(launch_add_one(device, device, kWords, stream)) && run(cudaEventRecord(event, stream)) &&
        run(cudaEventSynchronize(event))) {
      run(cudaStreamSynchronize(stream));
    }
  }
  // A call of these that fails does nothing: it is made again.
  if (event && !run(cudaEventDestroy(event))) cudaEventDestroy(event);
  if (stream && !run(cudaStreamDestroy(stream))) cudaStreamDestroy(stream);
  if (pinned && !run(cudaFreeHost(pinned))) cudaFreeHost(pinned);
  if (device && !run(cudaFree(device))) cudaFree(device);
  return first;
}

void any_call_can_be_made_to_fail() {
  const auto before = emu::n_calls("*");
  CHECK_ERROR(small_program(), cudaSuccess);
  const auto n = emu::n_calls("*") - before;
  CHECK(n == 13);
  for (uint64_t i = 1; i <= n; ++i) {
    CHECK(emu::set("fail", "*:" + std::to_string(i) + ":2"));
    CHECK_ERROR(small_program(), cudaErrorMemoryAllocation);
    CHECK(emu::leaks().empty());
  }
  CHECK_ERROR(small_program(), cudaSuccess);  // nothing is left of the injections
  CHECK(emu::set("fail", "cudaEventRecord:2"));
  CHECK_ERROR(small_program(), cudaSuccess);
  CHECK_ERROR(small_program(), cudaErrorUnknown);
  CHECK(emu::set("fail", ""));
  for (const char* wrong : {"cudaMalloc", "cudaMalloc:0", "cudaMalloc:x", "cudaMalloc:1:0", "run:kernel"}) {
    CHECK(!emu::set("fail", wrong));
  }
  CHECK(!emu::set("order", "sideways") && !emu::set("what", "1") && !emu::set("seed", ""));
}

void failed_work_is_sticky() {
  const DeviceArray<int> device(kWords);
  const OwnStream stream;
  emu::set("fail", "run:kernel:2");
  must(cudaMemset(device.data(), 0, kBytes));
  CHECK_ERROR(launch_add_one(device.data(), device.data(), kWords, stream.get()), cudaSuccess);
  CHECK_ERROR(cudaStreamSynchronize(stream.get()), cudaSuccess);
  CHECK_ERROR(launch_add_one(device.data(), device.data(), kWords, stream.get()), cudaSuccess);
  CHECK_ERROR(cudaStreamSynchronize(stream.get()), cudaErrorLaunchFailure);
  void* p = nullptr;
  CHECK_ERROR(cudaMalloc(&p, 16), cudaErrorLaunchFailure);
  CHECK_ERROR(cudaGetLastError(), cudaErrorLaunchFailure);
  CHECK_ERROR(cudaGetLastError(), cudaErrorLaunchFailure);
  emu::clear_faults();
  CHECK_ERROR(cudaDeviceSynchronize(), cudaSuccess);
}

void a_faulty_kernel_fails_its_stream() {
  const DeviceArray<int> device(256), in(1024);
  const OwnStream stream;
  CHECK_ERROR(launch_bug(KernelBug::kDivergentBarrier, false, device.data(), in.data(), stream.get()), cudaSuccess);
  CHECK_ERROR(cudaStreamSynchronize(stream.get()), cudaErrorLaunchFailure);
  CHECK(emu::n_faults() == 1 && emu::fault_text().find("divergent barrier") != std::string::npos);
  emu::clear_faults();
  CHECK(emu::n_faults() == 0 && emu::fault_text().empty());
  CHECK_ERROR(launch_bug(KernelBug::kDivergentBarrier, true, device.data(), in.data(), stream.get()), cudaSuccess);
  CHECK_ERROR(cudaStreamSynchronize(stream.get()), cudaSuccess);
}

void launches_have_limits() {
  CHECK_ERROR(launch_nothing(size_t{48} << 10, nullptr), cudaSuccess);
  CHECK_ERROR(launch_nothing((size_t{48} << 10) + 1, nullptr), cudaErrorInvalidValue);
  CHECK_ERROR(cudaGetLastError(), cudaErrorInvalidValue);
  CHECK_ERROR(cudaGetLastError(), cudaSuccess);
  CHECK_ERROR(launch_add_one(nullptr, nullptr, 0, nullptr), cudaErrorInvalidConfiguration);  // no blocks
  CHECK_ERROR(cudaDeviceSynchronize(), cudaSuccess);
}

void add_one_to_host(void* word) { ++*static_cast<int*>(word); }

void lazy_streams_wait_to_be_waited_for() {
  emu::set("streams", "lazy");
  const OwnStream stream, other;
  const OwnEvent event;
  int word = 0, other_word = 0;
  must(cudaLaunchHostFunc(stream.get(), add_one_to_host, &word));
  must(cudaEventRecord(event.get(), stream.get()));
  must(cudaLaunchHostFunc(other.get(), add_one_to_host, &other_word));
  CHECK(word == 0);
  CHECK_ERROR(cudaEventSynchronize(event.get()), cudaSuccess);
  CHECK(word == 1 && other_word == 0);
  int n_queries = 0;
  while (cudaStreamQuery(other.get()) == cudaErrorNotReady && n_queries < 10) ++n_queries;
  CHECK(other_word == 1 && n_queries <= 1);
}

void eager_streams_do_not_wait() {
  const OwnStream stream;
  int word = 0;
  must(cudaLaunchHostFunc(stream.get(), add_one_to_host, &word));
  CHECK(word == 1);
  CHECK_ERROR(cudaStreamQuery(stream.get()), cudaSuccess);
}

void the_default_stream_waits_for_blocking_ones() {
  emu::set("streams", "lazy");
  cudaStream_t blocking = nullptr;
  must(cudaStreamCreate(&blocking));
  const OwnStream nonblocking;
  int word = 0, other_word = 0;
  must(cudaLaunchHostFunc(blocking, add_one_to_host, &word));
  must(cudaLaunchHostFunc(nonblocking.get(), add_one_to_host, &other_word));
  const DeviceArray<int> device(1);
  must(cudaMemset(device.data(), 0, 4));
  CHECK(word == 1 && other_word == 0);
  must(cudaStreamDestroy(blocking));
}

void synchronise(void* error) { *static_cast<cudaError_t*>(error) = cudaDeviceSynchronize(); }

void calls_within_a_host_function_are_refused() {
  const OwnStream stream;
  cudaError_t error = cudaSuccess;
  must(cudaLaunchHostFunc(stream.get(), synchronise, &error));
  CHECK(error == cudaErrorNotSupported);
}

void an_event_is_its_last_record() {
  emu::set("streams", "lazy");
  const OwnStream first, second;
  const OwnEvent event;
  int word = 0;
  CHECK_ERROR(cudaEventQuery(event.get()), cudaSuccess);
  must(cudaStreamWaitEvent(second.get(), event.get(), 0));  // never recorded: no wait
  must(cudaEventRecord(event.get(), first.get()));
  must(cudaLaunchHostFunc(first.get(), add_one_to_host, &word));
  must(cudaEventRecord(event.get(), first.get()));
  must(cudaStreamWaitEvent(second.get(), event.get(), 0));
  CHECK_ERROR(cudaStreamSynchronize(second.get()), cudaSuccess);
  CHECK(word == 1);
}

void misuse_is_reported() {
  int word = 0;
  CHECK_ERROR(cudaFree(&word), cudaErrorInvalidValue);
  CHECK_ERROR(cudaMemset(&word, 0, 4), cudaErrorInvalidValue);
  const DeviceArray<int> device(1);
  CHECK_ERROR(cudaFreeHost(device.data()), cudaErrorInvalidValue);
  CHECK_ERROR(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(&word)), cudaErrorInvalidResourceHandle);
  CHECK_ERROR(cudaEventRecord(reinterpret_cast<cudaEvent_t>(&word), nullptr), cudaErrorInvalidResourceHandle);
  CHECK(emu::n_faults() == 5);
  CHECK(emu::leaks() == "1 device allocations of 4 bytes; ");  // device is not back yet
}

void registered_memory_is_pinned() {
  std::vector<int> words(kWords, 7);
  const DeviceArray<int> device(kWords);
  const OwnStream stream;
  CHECK_ERROR(cudaHostRegister(words.data(), kBytes, cudaHostRegisterDefault), cudaSuccess);
  CHECK_ERROR(cudaHostRegister(words.data() + 1, 4, cudaHostRegisterDefault), cudaErrorHostMemoryAlreadyRegistered);
  CHECK_ERROR(cudaMemcpyAsync(device.data(), words.data(), kBytes, cudaMemcpyHostToDevice, stream.get()), cudaSuccess);
  CHECK_ERROR(cudaStreamSynchronize(stream.get()), cudaSuccess);
  CHECK_ERROR(cudaHostUnregister(words.data()), cudaSuccess);
  CHECK_ERROR(cudaMemcpyAsync(device.data(), words.data(), kBytes, cudaMemcpyHostToDevice, stream.get()),
              cudaErrorInvalidValue);
}

void threads_share_the_device() {
  std::vector<std::thread> threads;
  int results[4] = {};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &results] {
      const OwnStream stream;
      const DeviceArray<int> device(kWords);
      const PinnedArray<int> host(kWords);
      for (int i = 0; i < kWords; ++i) host[static_cast<size_t>(i)] = t;
      must(cudaMemcpyAsync(device.data(), host.data(), kBytes, cudaMemcpyHostToDevice, stream.get()));
      for (int i = 0; i < 5; ++i) must(launch_add_one(device.data(), device.data(), kWords, stream.get()));
      must(cudaMemcpyAsync(host.data(), device.data(), kBytes, cudaMemcpyDeviceToHost, stream.get()));
      must(cudaStreamSynchronize(stream.get()));
      results[t] = host[kWords - 1];
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < 4; ++t) CHECK(results[t] == t + 5);
}

}  // namespace

std::vector<RuntimeCheck> runtime_checks() {
  return {{"memory_is_limited", memory_is_limited},
          {"fresh_memory_is_poisoned", fresh_memory_is_poisoned},
          {"any_call_can_be_made_to_fail", any_call_can_be_made_to_fail},
          {"failed_work_is_sticky", failed_work_is_sticky},
          {"a_faulty_kernel_fails_its_stream", a_faulty_kernel_fails_its_stream},
          {"launches_have_limits", launches_have_limits},
          {"lazy_streams_wait_to_be_waited_for", lazy_streams_wait_to_be_waited_for},
          {"eager_streams_do_not_wait", eager_streams_do_not_wait},
          {"the_default_stream_waits_for_blocking_ones", the_default_stream_waits_for_blocking_ones},
          {"calls_within_a_host_function_are_refused", calls_within_a_host_function_are_refused},
          {"an_event_is_its_last_record", an_event_is_its_last_record},
          {"misuse_is_reported", misuse_is_reported},
          {"registered_memory_is_pinned", registered_memory_is_pinned},
          {"threads_share_the_device", threads_share_the_device}};
}
