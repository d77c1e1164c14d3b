// Reads of large ranges of files, several at once, in the background.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpp/io/read_source.h"

namespace expertree {

struct ReadRequest {
  int32_t file;      // index of the reader's files
  uint64_t offset;   // bytes from the start of the file
  uint64_t size;     // > 0
  std::byte* out;    // placed as ReadSource::alignment() asks
  uint64_t ticket;   // the caller's name for it
};

// Called once per request, from a thread of the reader, without a lock held; must not throw. `error` is null, or the
// kDevice error that the request ended with: it names file and offset.
using ReadDone = std::function<void(uint64_t ticket, std::exception_ptr error)>;

class AsyncReader {
 public:
  // Waits until every request has ended.
  virtual ~AsyncReader() = default;

  // Begins a read. Any number may be under way; those beyond what the system takes wait their turn, in order.
  // Safe from any thread, ReadDone included.
  virtual void start(const ReadRequest& request) = 0;
  virtual const char* name() const = 0;

  ReadCounts counts() const {
    ReadCounts sum;
    for (const auto& source : *sources_) {
      const ReadCounts counts = source->counts();
      sum.disk_bytes += counts.disk_bytes;
      sum.overread_bytes += counts.overread_bytes;
      sum.cached_bytes += counts.cached_bytes;
    }
    return sum;
  }
  uint64_t alignment(int32_t file) const { return (*sources_)[static_cast<size_t>(file)]->alignment(); }

  using Sources = std::shared_ptr<const std::vector<std::unique_ptr<ReadSource>>>;

 protected:
  explicit AsyncReader(Sources sources) : sources_(std::move(sources)) {}
  const ReadSource& source(const ReadRequest& request) const { return *(*sources_)[static_cast<size_t>(request.file)]; }

 private:
  const Sources sources_;
};

struct AsyncReaderOptions {
  std::string backend = "auto";  // io_uring, threads; auto: io_uring where it works
  int n_threads = 4;             // of the backend "threads", and for what a ring cannot do
  bool direct = true;            // past the page cache where the file system does it,
  bool use_cached = true;        // except for what is in there already
};

// `files` must outlive the reader. Throws kInvalidRequest for an unknown backend, kUnsupported for one that does not work
// here, kDevice when the system gives no threads.
std::unique_ptr<AsyncReader> make_async_reader(const std::vector<const File*>& files, ReadDone done,
                                               const AsyncReaderOptions& options);

}  // namespace expertree
