// Runs planted bugs.
//
//   expertree_cuda_bugs list         their names
//   expertree_cuda_bugs NAME         status 1 if it was noticed, by this program or by a sanitizer; else 0
//   expertree_cuda_bugs fixed        all of them repaired: status 0 unless something is raised
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

#include "tests/cuda/bug_list.h"
#include "tests/cuda/planted_bugs.h"

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "unexpected %s\n", cudaGetErrorName(error));
  std::exit(3);
}

namespace {

using Expected = std::function<int(int)>;  // of word i

bool wrong_result(KernelBug bug, bool fixed, int n_words, const Expected& expected) {
  constexpr int kOut = 256, kIn = 1024;
  std::vector<int> words(kIn);
  std::iota(words.begin(), words.end(), 0);
  const DeviceArray<int> in(kIn), out(kOut);
  must(cudaMemcpy(in.data(), words.data(), kIn * sizeof(int), cudaMemcpyHostToDevice));
  must(cudaMemset(out.data(), 0, kOut * sizeof(int)));
  if (launch_bug(bug, fixed, out.data(), in.data(), nullptr) != cudaSuccess) return true;
  if (cudaDeviceSynchronize() != cudaSuccess) return true;
  must(cudaMemcpy(words.data(), out.data(), kOut * sizeof(int), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n_words; ++i) {
    if (words[static_cast<size_t>(i)] != expected(i)) return true;
  }
  return false;
}

int run(const PlantedBug& bug, bool fixed) {
  if (!bug.is_noticed(fixed)) return 0;
  std::printf("%s noticed\n", bug.name.c_str());
  return 1;
}

}  // namespace

std::vector<PlantedBug> kernel_bugs() {
  std::vector<PlantedBug> bugs;
  const auto add = [&bugs](const char* name, KernelBug bug, int n_words, Expected expected) {
    bugs.push_back({name, [=](bool fixed) { return wrong_result(bug, fixed, n_words, expected); }});
  };
  const Expected same = [](int i) { return i; };
  add("missing_barrier", KernelBug::kMissingBarrier, 256, [](int i) { return 255 - i; });
  add("uninitialised_shared", KernelBug::kUninitialisedShared, 256, same);
  add("shared_out_of_bounds", KernelBug::kSharedOutOfBounds, 256, same);
  add("global_out_of_bounds", KernelBug::kGlobalOutOfBounds, 256, same);
  add("divergent_barrier", KernelBug::kDivergentBarrier, 256, same);
  add("divergent_shuffle", KernelBug::kDivergentShuffle, 256, same);
  add("missing_copy_wait", KernelBug::kMissingCopyWait, 256, same);
  add("buffer_reused_too_early", KernelBug::kBufferReusedTooEarly, 256,
      [](int i) { return 4 * ((i + 64) % 256) + 256 * 6; });
  add("misaligned_load", KernelBug::kMisalignedLoad, 256, same);
  add("missing_syncwarp", KernelBug::kMissingSyncwarp, 256, [](int i) { return i ^ 31; });
  add("race_between_blocks", KernelBug::kRaceBetweenBlocks, 256, same);
  add("lost_update", KernelBug::kLostUpdate, 1, [](int) { return 128; });
  add("partial_warp", KernelBug::kPartialWarp, 256, same);
  return bugs;
}

int main(int n_arguments, char** arguments) {
  std::vector<PlantedBug> bugs = kernel_bugs();
  for (PlantedBug& bug : stream_bugs()) bugs.push_back(std::move(bug));
  const std::string wanted = n_arguments == 2 ? arguments[1] : "";
  if (wanted == "list") {
    for (const PlantedBug& bug : bugs) std::printf("%s\n", bug.name.c_str());
    return 0;
  }
  int n_noticed = 0, n_run = 0;
  for (const PlantedBug& bug : bugs) {
    if (wanted != "fixed" && wanted != bug.name) continue;
    ++n_run;
    n_noticed += run(bug, wanted == "fixed");
  }
  if (n_run == 0) {
    std::fprintf(stderr, "usage: expertree_cuda_bugs list | fixed | NAME\n");
    return 2;
  }
  return n_noticed > 0;
}
