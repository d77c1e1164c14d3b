// One persistent pool of worker threads. The caller works too, so a pool of n has n - 1 workers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace expertree {

class ThreadPool {
 public:
  // n_threads >= 1. Throws kDevice when the system gives no more threads.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls function(i) for every i in [0, n_tasks). Each thread begins with a range of its own, in order, so that what
  // tasks read in a row one thread reads in a row; a thread that is through takes tasks of others one by one.
  // Returns when all are done; the first exception of a task is rethrown. One caller at a time; not reentrant.
  template <typename Function>
  void parallel_for(int64_t n_tasks, const Function& function) {
    run(n_tasks, [](const void* f, int64_t i) { (*static_cast<const Function*>(f))(i); }, &function);
  }

 private:
  using Trampoline = void (*)(const void* function, int64_t task);

  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  void run(int64_t n_tasks, Trampoline trampoline, const void* function);
  void work(int thread);
  void call(int64_t task);
  void worker_loop(int thread);

  std::vector<std::thread> workers_;
  Trampoline trampoline_ = nullptr;
  const void* function_ = nullptr;
  std::vector<Range> ranges_;  // one per thread
  // Job number in the high half; in the low half kOpen while the job can be joined, plus the number of workers in it.
  // A worker that comes too late, because the system ran something else meanwhile, is not waited for.
  alignas(64) std::atomic<uint64_t> job_{0};
  std::atomic<int> n_parked_{0};
  std::atomic<bool> stop_{false};
  std::mutex park_mutex_;
  std::condition_variable park_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace expertree
