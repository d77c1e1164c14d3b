// Bugs in the use of streams, events, memory and graphs: a pipeline with one wait left out, and calls that are refused.
#include <cstring>
#include <vector>

#include "tests/cuda/bug_list.h"
#include "tests/cuda/planted_bugs.h"

namespace {

constexpr int kWords = 64;
constexpr size_t kBytes = kWords * sizeof(int);

enum class Wait { kNone, kCopied, kSlotFree, kStagingFree, kResultReady };

// Batches go through one pinned staging buffer, one slot on the device, a kernel, and one of two pinned results.
bool pipeline_is_wrong(Wait left_out) {
  const OwnStream copying, computing;
  const OwnEvent copied, used, arrived;
  const PinnedArray<int> staging(kWords), result(2 * kWords);
  const DeviceArray<int> slot(kWords), sums(kWords);
  bool wrong = false;
  for (int batch = 0; batch < 6; ++batch) {
    if (left_out != Wait::kStagingFree) must(cudaEventSynchronize(copied.get()));
    for (int i = 0; i < kWords; ++i) staging[static_cast<size_t>(i)] = batch * 1000 + i;
    if (left_out != Wait::kSlotFree) must(cudaStreamWaitEvent(copying.get(), used.get(), 0));
    must(cudaMemcpyAsync(slot.data(), staging.data(), kBytes, cudaMemcpyHostToDevice, copying.get()));
    must(cudaEventRecord(copied.get(), copying.get()));
    if (left_out != Wait::kCopied) must(cudaStreamWaitEvent(computing.get(), copied.get(), 0));
    must(launch_add_one(sums.data(), slot.data(), kWords, computing.get()));
    must(cudaEventRecord(used.get(), computing.get()));
    must(cudaMemcpyAsync(result.data() + batch % 2 * kWords, sums.data(), kBytes, cudaMemcpyDeviceToHost,
                         computing.get()));
    must(cudaEventRecord(arrived.get(), computing.get()));
    if (batch % 2 == 0) continue;  // two batches under way
    if (left_out != Wait::kResultReady) must(cudaEventSynchronize(arrived.get()));
    for (int i = 0; i < 2 * kWords; ++i) {
      wrong |= result[static_cast<size_t>(i)] != (batch - 1 + i / kWords) * 1000 + i % kWords + 1;
    }
  }
  must(cudaStreamSynchronize(copying.get()));
  must(cudaStreamSynchronize(computing.get()));
  return wrong;
}

// A graph of copy in, two kernels on two streams, copy out; without the join or the fork's wait when broken.
bool graph_is_wrong(bool fork_waits) {
  const OwnStream first, second;
  const OwnEvent copied, added;
  const PinnedArray<int> in(kWords), out(kWords);
  const DeviceArray<int> a(kWords), b(kWords);
  must(cudaMemset(a.data(), 0, kBytes));
  must(cudaDeviceSynchronize());
  must(cudaStreamBeginCapture(first.get(), cudaStreamCaptureModeThreadLocal));
  if (!fork_waits) must(cudaEventRecord(copied.get(), first.get()));
  must(cudaMemcpyAsync(a.data(), in.data(), kBytes, cudaMemcpyHostToDevice, first.get()));
  if (fork_waits) must(cudaEventRecord(copied.get(), first.get()));
  must(cudaStreamWaitEvent(second.get(), copied.get(), 0));
  must(launch_add_one(b.data(), a.data(), kWords, second.get()));
  must(cudaEventRecord(added.get(), second.get()));
  must(cudaStreamWaitEvent(first.get(), added.get(), 0));
  must(cudaMemcpyAsync(out.data(), b.data(), kBytes, cudaMemcpyDeviceToHost, first.get()));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  must(cudaStreamEndCapture(first.get(), &graph));
  must(cudaGraphInstantiate(&exec, graph, 0));
  must(cudaGraphDestroy(graph));
  bool wrong = false;
  for (int batch = 1; batch < 8; ++batch) {
    for (int i = 0; i < kWords; ++i) in[static_cast<size_t>(i)] = batch * 1000 + i;
    must(cudaGraphLaunch(exec, first.get()));
    must(cudaStreamSynchronize(first.get()));
    for (int i = 0; i < kWords; ++i) wrong |= out[static_cast<size_t>(i)] != batch * 1000 + i + 1;
  }
  must(cudaGraphExecDestroy(exec));
  return wrong;
}

bool too_much_shared_memory(bool fixed) {
  return launch_nothing(fixed ? size_t{1} << 10 : size_t{60} << 10, nullptr) != cudaSuccess;
}

bool pageable_copy(bool fixed) {
  std::vector<int> pageable(kWords);
  const PinnedArray<int> pinned(kWords);
  const DeviceArray<int> device(kWords);
  const OwnStream stream;
  const int* from = fixed ? pinned.data() : pageable.data();
  const bool refused =
      cudaMemcpyAsync(device.data(), from, kBytes, cudaMemcpyHostToDevice, stream.get()) != cudaSuccess;
  must(cudaStreamSynchronize(stream.get()));
  return refused;
}

bool host_touches_device_memory(bool fixed) {
  const DeviceArray<int> device(kWords);
  int word = 0;
  volatile int* p = fixed ? &word : device.data();
  *p = 1;
  return false;
}

bool copy_past_the_end(bool fixed) {
  const DeviceArray<int> device(kWords), other(kWords);
  std::vector<int> words(kWords + 1);
  return cudaMemcpy(device.data(), words.data(), kBytes + (fixed ? 0 : 4), cudaMemcpyHostToDevice) != cudaSuccess;
}

}  // namespace

std::vector<PlantedBug> stream_bugs() {
  std::vector<PlantedBug> bugs;
  const auto add_wait = [&bugs](const char* name, Wait wait) {
    bugs.push_back({name, [wait](bool fixed) { return pipeline_is_wrong(fixed ? Wait::kNone : wait); }});
  };
  add_wait("no_wait_for_copied", Wait::kCopied);
  add_wait("no_wait_for_slot_free", Wait::kSlotFree);
  add_wait("no_wait_for_staging_free", Wait::kStagingFree);
  add_wait("no_wait_for_result", Wait::kResultReady);
  bugs.push_back({"graph_fork_too_early", graph_is_wrong});
  bugs.push_back({"too_much_shared_memory", too_much_shared_memory});
  bugs.push_back({"pageable_copy", pageable_copy});
  bugs.push_back({"host_touches_device_memory", host_touches_device_memory});
  bugs.push_back({"copy_past_the_end", copy_past_the_end});
  return bugs;
}
