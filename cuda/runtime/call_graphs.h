// Calls that come again, as CUDA graphs: one launch in the place of every copy and kernel of the call.
//
// What a graph does was fixed when it was captured: its kernels, their grids, and every argument, pointers included. So a
// call's shape has all that these depend on; what else differs from call to call lies in memory whose place never changes,
// and is copied to the device by the graph itself.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "cuda/runtime/owned.h"

namespace expertree::cuda {

// None where there is no memory for it. After an error the stream is as it was.
GraphExec capture_graph(cudaStream_t stream, const std::function<void()>& enqueue);

// Shape: ordered by all that it has; size() says how much its calls do, in layers or thereabouts.
template <typename Shape>
class CallGraphs {
 public:
  // Does to the stream what enqueue does for a call of this shape, which nothing but the shape may change. The first call of
  // a shape is plain, so that one that never comes again costs nothing more; the second is captured.
  void run(const Shape& shape, cudaStream_t stream, const std::function<void()>& enqueue) {
    const auto found = entries_.find(shape);
    if (found == entries_.end()) {
      enqueue();
      return add(shape);
    }
    Entry& entry = found->second;
    entry.last_use = ++n_uses_;
    if (entry.graph.get() == nullptr && has_memory_) {
      entry.graph = capture_graph(stream, enqueue);
      has_memory_ = entry.graph.get() != nullptr;
    }
    if (entry.graph.get() == nullptr) return enqueue();
    CUDA_CHECK(cudaGraphLaunch(entry.graph.get(), stream));
  }

 private:
  // Of all shapes that are remembered. What a graph takes grows with its nodes, some 25 for a layer: this is room for ten
  // widths of a model of a hundred layers in one call, and for five where each is a call.
  static constexpr int64_t kMostSize = 1024;

  struct Entry {
    GraphExec graph;  // none: not captured yet
    int64_t last_use;
  };

  // In the place of those that were not used for longest.
  void add(const Shape& shape) {
    size_ += shape.size();
    while (size_ > kMostSize && !entries_.empty()) {
      const auto oldest =
          std::ranges::min_element(entries_, {}, [](const auto& entry) { return entry.second.last_use; });
      size_ -= oldest->first.size();
      entries_.erase(oldest);
    }
    entries_.emplace(shape, Entry{{}, ++n_uses_});
  }

  std::map<Shape, Entry> entries_;
  int64_t size_ = 0;
  int64_t n_uses_ = 0;
  bool has_memory_ = true;  // for further graphs
};

}  // namespace expertree::cuda
