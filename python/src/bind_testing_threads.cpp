// expertree._core._testing: the thread pool.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/base/thread_pool.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

// Runs n_jobs jobs of n_tasks tasks, one after another; task i adds 1 to counts[i], without synchronisation of its own.
// Returns how many tasks, of all jobs together, had not run exactly once when their job returned.
int64_t pool_faults(int n_threads, int64_t n_tasks, int64_t n_jobs) {
  ThreadPool pool(n_threads);
  int64_t n_faults = 0;
  std::vector<int64_t> counts(static_cast<size_t>(n_tasks));
  for (int64_t job = 0; job < n_jobs; ++job) {
    counts.assign(counts.size(), 0);
    pool.parallel_for(n_tasks, [&](int64_t i) { ++counts[static_cast<size_t>(i)]; });
    for (const int64_t count : counts) n_faults += count != 1;
  }
  return n_faults;
}

// One job whose tasks from `first` on throw, and then a whole one. Returns how many tasks the two ran.
std::vector<int64_t> pool_after_error(int n_threads, int64_t n_tasks, int64_t first) {
  ThreadPool pool(n_threads);
  std::atomic<int64_t> n_run[2] = {};
  bool thrown = false;
  try {
    pool.parallel_for(n_tasks, [&](int64_t i) {
      ++n_run[0];
      if (i >= first) throw Error(ErrorCode::kDevice, "task " + std::to_string(i));
    });
  } catch (const Error&) {
    thrown = true;
  }
  pool.parallel_for(n_tasks, [&](int64_t) { ++n_run[1]; });
  return {thrown ? 1 : 0, n_run[0], n_run[1]};
}

}  // namespace

void bind_testing_threads(nb::module_& m) {
  m.def("pool_faults", &pool_faults, "n_threads"_a, "n_tasks"_a, "n_jobs"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Tasks that did not run exactly once before their job returned.");
  m.def("pool_after_error", &pool_after_error, "n_threads"_a, "n_tasks"_a, "first"_a,
        nb::call_guard<nb::gil_scoped_release>(), "[an error came out, tasks run in that job, tasks run in the next]");
}

}  // namespace expertree
