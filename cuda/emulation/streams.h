// Streams as queues of operations that a deterministic scheduler runs on the threads that call the API. Internal to the
// emulation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/emulation/runtime_api.h"

namespace emu {

struct Stream;

// A point in a stream's work, reached or not yet.
struct Point {
  bool reached = false;
  char token = 0;
  Stream* stream = nullptr;
  std::chrono::steady_clock::time_point time;
};
using PointPtr = std::shared_ptr<Point>;

// One step of an operation; true when it was the last. A graph runs its operations again, so each run makes its own.
using Step = std::function<bool()>;
using MakeStep = std::function<Step()>;

struct Operation {
  const char* what;  // "kernel", "copy", ..
  Step step;
  std::vector<PointPtr> waits;
  PointPtr reaches;
  char token = 0;
};

struct GraphNode {
  const char* what;
  MakeStep make;
  std::set<int> after;
  int lane;  // number of the captured stream
};

struct Capture {
  std::vector<GraphNode> nodes;
  std::vector<Stream*> streams;  // the first one began it
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
};

struct Stream {
  std::deque<std::shared_ptr<Operation>> queue;
  bool nonblocking = false, busy = false;
  void* tsan_fiber = nullptr;
  char done_token = 0;
  std::shared_ptr<Capture> capture;
  int lane = 0;
  std::set<int> tail;  // what the next captured node comes after
};

struct Event {
  PointPtr point;
  std::weak_ptr<Capture> capture;  // when recorded in a captured stream
  bool captured = false;
  std::set<int> after;
};

struct Graph {
  std::vector<GraphNode> nodes;
  int n_lanes;
};

struct GraphExec {
  Graph graph;
  std::vector<Stream*> lanes;
  PointPtr last_end;  // of its last launch
};

// What the API's functions share; each holds the lock for its whole length.
struct Device {
  std::mutex mutex;
  std::condition_variable changed;
  bool executing = false;  // one operation at a time, on whichever thread asked
  std::thread::id executor;
  std::vector<Stream*> streams;  // those of graphs included
  std::set<Stream*> user_streams;
  std::set<Event*> events;
  std::set<Graph*> graphs;
  std::set<GraphExec*> execs;
  std::vector<std::shared_ptr<Capture>> captures;
  Stream* legacy = nullptr;  // the default stream
  char ended_token = 0;  // reached by the work of destroyed streams
  cudaError_t sticky = cudaSuccess;
  cudaError_t last = cudaSuccess;
};
Device& device();
using Lock = std::unique_lock<std::mutex>;

// Counts the call and gives the error that it must return at once: an injected one or the device's sticky one.
cudaError_t begin_call(const char* name);
void count(const char* what, uint64_t n);  // for n_calls()
// Whether work of this kind fails as it runs; see control.h.
cudaError_t injected_run_error(const char* what);
cudaError_t failed(cudaError_t error);  // notes it as the last error and returns it
cudaError_t misuse(cudaError_t error, const std::string& text);  // reports it as well
// cudaErrorStreamCaptureUnsupported where a capture forbids calls that wait or may wait; it ends the capture.
cudaError_t forbid_while_capturing(const char* name);

Stream* make_stream(bool nonblocking);
void destroy_stream(Stream* stream, Lock& lock);
bool is_stream(Stream* stream);
Stream* resolve(Stream* stream);  // nullptr is the legacy default stream

// Adds an operation to the stream, or a node to its capture.
cudaError_t submit(Stream* stream, const char* what, MakeStep make, Lock& lock);
void enqueue(Stream* stream, const char* what, Step step, std::vector<PointPtr> waits, PointPtr reaches, Lock& lock);
// Runs work until done() holds; with a stream given, lazy mode runs only what that stream needs.
cudaError_t run_until(Stream* stream, const std::function<bool()>& done, Lock& lock);
cudaError_t finish(Stream* stream, Lock& lock);
void step_any(Lock& lock);  // at most one step of any stream

#define EMU_BEGIN(name)                    \
  ::emu::Lock lock(::emu::device().mutex); \
  if (const cudaError_t refused = ::emu::begin_call(name)) return refused

}  // namespace emu
