#include "cuda/runtime/call_graphs.h"

#include "cuda/runtime/call.h"

namespace expertree::cuda {
namespace {

void give_up_capture(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess || status == cudaStreamCaptureStatusNone) return;
  Graph graph;
  static_cast<void>(cudaStreamEndCapture(stream, graph.receive()));
}

}  // namespace

GraphExec capture_graph(cudaStream_t stream, const std::function<void()>& enqueue) {
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Graph graph;
  try {
    enqueue();
    CUDA_CHECK(cudaStreamEndCapture(stream, graph.receive()));
  } catch (...) {
    give_up_capture(stream);
    throw;
  }
  GraphExec exec;
  const cudaError_t status = cudaGraphInstantiate(exec.receive(), graph.get(), 0);
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return {};
  }
  check(status, "cudaGraphInstantiate");
  return exec;
}

}  // namespace expertree::cuda
