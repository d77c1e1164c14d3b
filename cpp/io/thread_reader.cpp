#include "cpp/io/thread_reader.h"

#include <system_error>

#include "cpp/base/error.h"

namespace expertree {

ThreadReader::ThreadReader(Sources sources, ReadDone done, int n_threads)
    : AsyncReader(std::move(sources)), done_(std::move(done)) {
  ET_CHECK(n_threads >= 1);
  try {
    for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this] { loop(); });
  } catch (const std::system_error& error) {
    stop();
    throw Error(ErrorCode::kDevice, std::string("cannot start threads that read the model (") + error.what() +
                                        "); close other programs or raise ulimit -u");
  }
}

ThreadReader::~ThreadReader() { stop(); }

void ThreadReader::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadReader::start(const ReadRequest& request) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(request);
  }
  work_.notify_one();
}

void ThreadReader::loop() {
  for (;;) {
    ReadRequest request;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      work_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
      if (waiting_.empty()) return;  // stopped, and nothing is left to do
      request = waiting_.front();
      waiting_.pop_front();
    }
    std::exception_ptr error;
    try {
      source(request).read(request.offset, request.size, request.out);
    } catch (...) {
      error = std::current_exception();
    }
    done_(request.ticket, std::move(error));
  }
}

}  // namespace expertree
