// Checks what the emulated runtime promises (cuda/emulation/control.h, runtime_api.h).
//
//   expertree_cuda_checks list      the checks' names
//   expertree_cuda_checks NAME      status 1 and the failed conditions, or 0
#include <cstdio>
#include <cstdlib>

#include "cuda/emulation/control.h"
#include "tests/cuda/bug_list.h"
#include "tests/cuda/check_list.h"

namespace {

int g_n_failures;

}  // namespace

void note_failure(const char* file, int line, const std::string& text) {
  ++g_n_failures;
  std::printf("%s:%d: %s\n", file, line, text.c_str());
}

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("unexpected %s\n", cudaGetErrorName(error));
  std::exit(3);
}

int main(int n_arguments, char** arguments) {
  std::vector<RuntimeCheck> checks = runtime_checks();
  for (RuntimeCheck& check : graph_checks()) checks.push_back(std::move(check));
  const std::string wanted = n_arguments == 2 ? arguments[1] : "";
  if (wanted == "list") {
    for (const RuntimeCheck& check : checks) std::printf("%s\n", check.name.c_str());
    return 0;
  }
  emu::set("abort", "0");
  for (const RuntimeCheck& check : checks) {
    if (check.name != wanted) continue;
    check.run();
    if (const std::string left = emu::leaks(); !left.empty()) note_failure(__FILE__, __LINE__, "left over: " + left);
    return g_n_failures > 0;
  }
  std::fprintf(stderr, "usage: expertree_cuda_checks list | NAME\n");
  return 2;
}
