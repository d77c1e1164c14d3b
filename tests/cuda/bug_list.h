// The planted bugs by name, for planted_bugs_main.cpp. Internal to that program.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cuda/gpu/gpu.h"

struct PlantedBug {
  std::string name;
  std::function<bool(bool fixed)> is_noticed;  // by a wrong result or an error; sanitizers end the process
};

std::vector<PlantedBug> kernel_bugs();
std::vector<PlantedBug> stream_bugs();

// Device and pinned memory and streams of one test, given back at its end. Ends the process on an error.
void must(cudaError_t error);

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t n) { must(cudaMalloc(&data_, n * sizeof(T))); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

template <class T>
class PinnedArray {
 public:
  explicit PinnedArray(size_t n) { must(cudaMallocHost(&data_, n * sizeof(T))); }
  ~PinnedArray() { cudaFreeHost(data_); }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  T* data() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
};

class OwnStream {
 public:
  OwnStream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class OwnEvent {
 public:
  OwnEvent() { must(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~OwnEvent() { cudaEventDestroy(event_); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};
