// Asynchronous reads through io_uring: direct reads go to the system at once; what is in the page cache, and files
// without direct access, go to a few threads, which copy side by side.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "cpp/io/submission_ring.h"
#include "cpp/io/thread_reader.h"

namespace expertree {

class RingReader final : public AsyncReader {
 public:
  // io_uring works on this machine.
  static bool works();

  RingReader(Sources sources, const ReadDone& done, int n_threads);
  ~RingReader() override;

  void start(const ReadRequest& request) override;
  const char* name() const override { return "io_uring"; }

 private:
  struct Operation {
    ReadRequest request;
    ReadSource::DirectRange range;
  };

  void submit_waiting();                       // with mutex_ held
  void complete(const Operation& operation, int64_t result);
  void loop();

  const ReadDone done_;
  ThreadReader threads_;
  std::mutex mutex_;  // guards submitting, and what follows
  SubmissionRing ring_;
  std::vector<Operation> operations_;  // by user data
  std::vector<uint32_t> free_;         // of operations_
  std::deque<Operation> waiting_;
  std::condition_variable idle_;
  std::thread reaper_;
};

}  // namespace expertree
