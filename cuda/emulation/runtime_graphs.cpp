// Capture of streams into graphs, and their launch. A graph's nodes keep the streams that they were captured from: a
// launch feeds them to streams of its own, so that the scheduler interleaves them as it does other work.
#include <algorithm>

#include "cuda/emulation/control.h"
#include "cuda/emulation/streams.h"

namespace emu {

namespace {

// The nodes that come before those of `tail`, and these.
std::set<int> reached_from(const std::vector<GraphNode>& nodes, const std::set<int>& tail) {
  std::set<int> reached = tail;
  for (int i = static_cast<int>(nodes.size()) - 1; i >= 0; --i) {  // a node's dependencies have smaller numbers
    if (reached.count(i))
      reached.insert(nodes[static_cast<size_t>(i)].after.begin(), nodes[static_cast<size_t>(i)].after.end());
  }
  return reached;
}

void end_capture(const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    if (device().user_streams.count(stream)) stream->capture = nullptr;
  }
  auto& captures = device().captures;
  captures.erase(std::find(captures.begin(), captures.end(), capture));
}

cudaError_t end_of(const Capture& capture, const Stream* stream) {
  if (capture.streams.front() != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture.mode != cudaStreamCaptureModeRelaxed && capture.thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
  const std::set<int> reached = reached_from(capture.nodes, stream->tail);
  for (const Stream* other : capture.streams) {
    if (!std::includes(reached.begin(), reached.end(), other->tail.begin(), other->tail.end())) {
      return cudaErrorStreamCaptureUnjoined;
    }
  }
  return cudaSuccess;
}

// The points that the nodes reach, begun after `begin`.
std::vector<PointPtr> launch_nodes(const GraphExec& exec, const PointPtr& begin, Lock& lock) {
  std::vector<PointPtr> points;
  for (const GraphNode& node : exec.graph.nodes) {
    std::vector<PointPtr> waits{begin};
    for (const int before : node.after) waits.push_back(points[static_cast<size_t>(before)]);
    points.push_back(std::make_shared<Point>());
    count((std::string("graph:") + node.what).c_str(), 1);
    enqueue(exec.lanes[static_cast<size_t>(node.lane)], node.what, node.make(), std::move(waits), points.back(), lock);
  }
  return points;
}

bool nothing() { return true; }

}  // namespace

cudaError_t forbid_while_capturing(const char* name) {
  for (const auto& capture : device().captures) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool forbids =
        capture->mode == cudaStreamCaptureModeGlobal || (capture->mode == cudaStreamCaptureModeThreadLocal && mine);
    if (!forbids) continue;
    capture->invalid = true;
    return misuse(cudaErrorStreamCaptureUnsupported, std::string(name) + " while a stream is captured");
  }
  return cudaSuccess;
}

}  // namespace emu

using namespace emu;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  EMU_BEGIN("cudaStreamBeginCapture");
  if (!stream) return misuse(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
  if (!is_stream(stream)) return misuse(cudaErrorInvalidResourceHandle, "capture of a stream that does not exist");
  if (stream->capture) return misuse(cudaErrorInvalidValue, "the stream is captured already");
  auto capture = std::make_shared<Capture>();
  capture->streams = {stream};
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  stream->capture = capture;
  stream->lane = 0;
  stream->tail.clear();
  device().captures.push_back(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  EMU_BEGIN("cudaStreamEndCapture");
  *graph = nullptr;
  if (!stream || !is_stream(stream) || !stream->capture) {
    return misuse(cudaErrorInvalidValue, "the end of a capture of a stream that is not captured");
  }
  const std::shared_ptr<Capture> capture = stream->capture;
  if (const cudaError_t error = end_of(*capture, stream)) {
    // A wrong stream or thread leaves the capture as it was.
    if (error == cudaErrorStreamCaptureInvalidated || error == cudaErrorStreamCaptureUnjoined) end_capture(capture);
    return misuse(error, std::string("cudaStreamEndCapture: ") + cudaGetErrorName(error));
  }
  end_capture(capture);
  *graph = new Graph{capture->nodes, static_cast<int>(capture->streams.size())};
  device().graphs.insert(*graph);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  EMU_BEGIN("cudaStreamIsCapturing");
  if (!is_stream(stream)) return misuse(cudaErrorInvalidResourceHandle, "a stream that does not exist");
  *status = !stream || !stream->capture ? cudaStreamCaptureStatusNone
            : stream->capture->invalid  ? cudaStreamCaptureStatusInvalidated
                                        : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  EMU_BEGIN("cudaGraphInstantiate");
  if (device().graphs.count(graph) == 0) return misuse(cudaErrorInvalidValue, "a graph that does not exist");
  *exec = new GraphExec{*graph, {}, nullptr};
  for (int lane = 0; lane < graph->n_lanes; ++lane) (*exec)->lanes.push_back(make_stream(true));
  device().execs.insert(*exec);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t given) {
  EMU_BEGIN("cudaGraphLaunch");
  if (device().execs.count(exec) == 0) return misuse(cudaErrorInvalidValue, "launch of a graph that does not exist");
  if (!is_stream(given)) return misuse(cudaErrorInvalidResourceHandle, "a stream that does not exist");
  if (given && given->capture) return misuse(cudaErrorNotSupported, "a graph is launched into a captured stream");
  Stream* stream = resolve(given);
  std::vector<PointPtr> after_last_launch;  // one exec's launches follow one another
  if (exec->last_end) after_last_launch.push_back(exec->last_end);
  const auto begin = std::make_shared<Point>();
  enqueue(stream, "graph", nothing, std::move(after_last_launch), begin, lock);
  std::vector<PointPtr> ends = launch_nodes(*exec, begin, lock);
  exec->last_end = std::make_shared<Point>();
  enqueue(stream, "graph", nothing, std::move(ends), exec->last_end, lock);
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  EMU_BEGIN("cudaGraphExecDestroy");
  if (device().execs.erase(exec) == 0) return misuse(cudaErrorInvalidValue, "a graph that does not exist is destroyed");
  if (exec->last_end) {
    const PointPtr end = exec->last_end;
    run_until(end->stream, [end] { return end->reached; }, lock);
  }
  for (Stream* lane : exec->lanes) destroy_stream(lane, lock);
  delete exec;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  EMU_BEGIN("cudaGraphDestroy");
  if (device().graphs.erase(graph) == 0)
    return misuse(cudaErrorInvalidValue, "a graph that does not exist is destroyed");
  delete graph;
  return cudaSuccess;
}
