#include "cpp/io/ring_reader.h"

#include <cerrno>
#include <system_error>

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr uint32_t kEntries = 32;  // reads under way at once, more than any disk needs at these sizes
constexpr uint64_t kStop = ~uint64_t{0};
constexpr uint64_t kMaxOperationBytes = uint64_t{1} << 30;  // a result is 32 bits

}  // namespace

bool RingReader::works() { return SubmissionRing(2).available(); }

RingReader::RingReader(Sources sources, const ReadDone& done, int n_threads)
    : AsyncReader(sources),
      done_(done),
      threads_(std::move(sources), done, n_threads),
      ring_(kEntries + 1),
      operations_(kEntries) {
  if (!ring_.available()) throw Error(ErrorCode::kUnsupported, "io_uring does not work here; use the reader 'threads'");
  for (uint32_t i = 0; i < kEntries; ++i) free_.push_back(i);
  try {
    reaper_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kDevice, std::string("cannot start a thread that reads the model (") + error.what() +
                                        "); close other programs or raise ulimit -u");
  }
}

RingReader::~RingReader() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    idle_.wait(lock, [&] { return waiting_.empty() && free_.size() == kEntries; });
    while (ring_.no_operation(kStop) != 0) std::this_thread::yield();
  }
  reaper_.join();
}

void RingReader::start(const ReadRequest& request) {
  Operation operation{request, {}};
  if (!source(request).direct_range(request.offset, request.size, request.out, &operation.range) ||
      operation.range.size > kMaxOperationBytes) {
    threads_.start(request);
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  waiting_.push_back(operation);
  submit_waiting();
}

void RingReader::submit_waiting() {
  while (!waiting_.empty() && !free_.empty()) {
    const uint32_t index = free_.back();
    const Operation& operation = operations_[index] = waiting_.front();
    const ReadSource::DirectRange& range = operation.range;
    const int error = ring_.read(range.descriptor, range.offset, static_cast<uint32_t>(range.size), range.out, index);
    waiting_.pop_front();
    if (error == 0) {
      free_.pop_back();
    } else {  // out of some resource of the system: a thread can wait for it
      threads_.start(operation.request);
    }
  }
}

void RingReader::complete(const Operation& operation, int64_t result) {
  const ReadRequest& request = operation.request;
  const File& file = source(request).file();
  result = file.descriptor_result(operation.range.offset, operation.range.out, result);
  const bool complete = result >= static_cast<int64_t>(operation.range.needed_bytes);
  if (result > 0) source(request).count_direct(operation.range, static_cast<uint64_t>(result), complete);
  if (!complete) {
    if (result >= 0 || result == -EINTR || result == -EAGAIN) {
      threads_.start(request);  // cut short: by a signal, or the file is; a thread reads it again and says which
      return;
    }
    if (result == -EINVAL || result == -EOPNOTSUPP) {
      source(request).give_up_direct();
      threads_.start(request);
      return;
    }
  }
  std::exception_ptr error;
  try {
    if (result < 0) file.throw_read_failed(request.offset, request.size, static_cast<int>(-result));
    file.check_unchanged();
  } catch (...) {
    error = std::current_exception();
  }
  done_(request.ticket, std::move(error));
}

void RingReader::loop() {
  for (;;) {
    SubmissionRing::Completion completion{};
    if (ring_.wait(&completion) != 0) {
      std::this_thread::yield();  // the system is short of memory: it keeps completions for later
      continue;
    }
    if (completion.user_data == kStop) return;
    // The operation stays taken until its request has been answered or handed on: the destructor waits for that.
    const auto index = static_cast<uint32_t>(completion.user_data);
    Operation operation;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      operation = operations_[index];
    }
    complete(operation, completion.result);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      free_.push_back(index);
      submit_waiting();
      if (free_.size() == kEntries && waiting_.empty()) idle_.notify_all();
    }
  }
}

}  // namespace expertree
