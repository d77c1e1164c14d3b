// Asynchronous reads by a few threads that wait for the system: works everywhere.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "cpp/io/async_reader.h"

namespace expertree {

class ThreadReader final : public AsyncReader {
 public:
  ThreadReader(Sources sources, ReadDone done, int n_threads);
  ~ThreadReader() override;

  void start(const ReadRequest& request) override;
  const char* name() const override { return "threads"; }

 private:
  void loop();
  void stop();

  const ReadDone done_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<ReadRequest> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace expertree
