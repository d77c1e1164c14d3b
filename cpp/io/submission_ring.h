// The two rings of io_uring (Linux 5.6 or later) by system calls alone. Not thread-safe; see the methods.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace expertree {

class SubmissionRing {
 public:
  // available() is false where the system has no io_uring, forbids it, or does not know its read operation.
  explicit SubmissionRing(uint32_t n_entries);
  ~SubmissionRing();
  SubmissionRing(const SubmissionRing&) = delete;
  SubmissionRing& operator=(const SubmissionRing&) = delete;

  bool available() const { return fd_ >= 0; }

  // Hands one operation to the system: 0 or -errno. One caller at a time, and at most n_entries operations whose
  // completion has not been taken.
  int read(int descriptor, uint64_t offset, uint32_t size, std::byte* out, uint64_t user_data);
  int no_operation(uint64_t user_data);

  struct Completion {
    uint64_t user_data;
    int32_t result;  // bytes, or -errno
  };
  // Waits for the next completion; one caller at a time, which may be another than read()'s. 0 or -errno.
  int wait(Completion* completion);

 private:
  struct Operation;
  int submit(const Operation& operation);
  bool map_rings(const void* parameters);
  bool knows_read() const;

  int fd_ = -1;
  void* sq_ring_ = nullptr;
  void* cq_ring_ = nullptr;
  void* entries_ = nullptr;
  uint64_t sq_bytes_ = 0;
  uint64_t cq_bytes_ = 0;
  uint64_t entries_bytes_ = 0;
  uint32_t* sq_tail_ = nullptr;
  uint32_t* sq_array_ = nullptr;
  uint32_t sq_mask_ = 0;
  uint32_t* cq_head_ = nullptr;
  uint32_t* cq_tail_ = nullptr;
  uint32_t cq_mask_ = 0;
  const void* completions_ = nullptr;
};

}  // namespace expertree
