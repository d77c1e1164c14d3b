#include "cpp/base/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace expertree {
namespace {

// A worker without a job spins this long before it sleeps: longer than the serial gaps inside a forward pass
// (microseconds), shorter than anything a person or a power meter notices.
constexpr int64_t kSpinUs = 100;

constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kOneJob = uint64_t{1} << 32;

uint64_t job_number(uint64_t job) { return job / kOneJob; }
uint64_t n_joined(uint64_t job) { return job % kOpen; }

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : ranges_(static_cast<size_t>(std::max(1, n_threads))) {
  ET_CHECK(n_threads >= 1);
  try {
    for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this, i] { worker_loop(i); });
  } catch (const std::system_error& error) {
    stop_ = true;
    job_ += kOneJob;
    park_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    throw Error(ErrorCode::kDevice, "cannot start " + std::to_string(n_threads) + " threads (" + error.what() +
                                        "); ask for fewer with --threads");
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> lock(park_mutex_);
    stop_ = true;
    job_ += kOneJob;
  }
  park_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::call(int64_t task) {
  try {
    trampoline_(function_, task);
  } catch (...) {
    std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void ThreadPool::work(int thread) {
  const auto n_ranges = static_cast<int>(ranges_.size());
  for (int i = 0; i < n_ranges; ++i) {
    Range& range = ranges_[static_cast<size_t>((thread + i) % n_ranges)];
    for (;;) {
      // The plain read spares a range that is used up the traffic of everybody's fetch_add.
      if (range.next.load(std::memory_order_relaxed) >= range.end) break;
      const int64_t task = range.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= range.end) break;
      call(task);
    }
  }
}

void ThreadPool::worker_loop(int thread) {
  uint64_t seen = 0;
  const auto is_new = [&] { return job_number(job_.load()) != seen; };
  for (;;) {
    const int64_t spin_end = now_us() + kSpinUs;
    for (int spins = 0; !is_new(); ++spins) {
      pause_cpu();
      if (spins % 64 == 63 && now_us() > spin_end) {
        std::unique_lock<std::mutex> lock(park_mutex_);
        ++n_parked_;
        park_.wait(lock, is_new);
        --n_parked_;
        break;
      }
    }
    if (stop_) return;
    uint64_t job = job_.load();
    seen = job_number(job);
    while ((job & kOpen) != 0 && job_number(job) == seen) {
      if (!job_.compare_exchange_weak(job, job + 1)) continue;
      work(thread);
      job_.fetch_sub(1);
      break;
    }
  }
}

void ThreadPool::run(int64_t n_tasks, Trampoline trampoline, const void* function) {
  if (n_tasks <= 0) return;
  if (workers_.empty() || n_tasks == 1) {
    for (int64_t i = 0; i < n_tasks; ++i) trampoline(function, i);
    return;
  }
  trampoline_ = trampoline;
  function_ = function;
  const auto n_ranges = static_cast<int64_t>(ranges_.size());
  for (int64_t i = 0; i < n_ranges; ++i) {
    Range& range = ranges_[static_cast<size_t>(i)];
    range.next.store(n_tasks / n_ranges * i + std::min(i, n_tasks % n_ranges), std::memory_order_relaxed);
    range.end = n_tasks / n_ranges * (i + 1) + std::min(i + 1, n_tasks % n_ranges);
  }
  // Sequentially consistent with the parked count: either the worker sees the new job, or this thread sees it parked.
  job_.store((job_number(job_.load()) + 1) * kOneJob + kOpen);
  if (n_parked_.load() > 0) {
    {
      std::lock_guard<std::mutex> lock(park_mutex_);
    }
    park_.notify_all();
  }
  work(0);
  job_.fetch_and(~kOpen);
  for (int spins = 0; n_joined(job_.load()) != 0; ++spins) {
    pause_cpu();
    if (spins > 1000) std::this_thread::yield();  // more threads than cores: let the others finish
  }
  if (error_) {
    std::exception_ptr error = std::move(error_);
    error_ = nullptr;
    std::rethrow_exception(error);
  }
}

}  // namespace expertree
