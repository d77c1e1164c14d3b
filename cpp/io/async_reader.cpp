#include "cpp/io/async_reader.h"

#include "cpp/base/error.h"
#include "cpp/io/ring_reader.h"
#include "cpp/io/thread_reader.h"

namespace expertree {

std::unique_ptr<AsyncReader> make_async_reader(const std::vector<const File*>& files, ReadDone done,
                                               const AsyncReaderOptions& options) {
  std::vector<std::unique_ptr<ReadSource>> sources;
  for (const File* file : files)
    sources.push_back(std::make_unique<ReadSource>(*file, options.direct, options.use_cached));
  auto shared = std::make_shared<const std::vector<std::unique_ptr<ReadSource>>>(std::move(sources));
  if (options.backend != "auto" && options.backend != "io_uring" && options.backend != "threads") {
    throw Error(ErrorCode::kInvalidRequest,
                "unknown reader '" + options.backend.substr(0, 32) + "'; known: auto, io_uring, threads");
  }
  if (options.backend == "io_uring" || (options.backend == "auto" && RingReader::works())) {
    return std::make_unique<RingReader>(std::move(shared), done, options.n_threads);
  }
  return std::make_unique<ThreadReader>(std::move(shared), std::move(done), options.n_threads);
}

}  // namespace expertree
