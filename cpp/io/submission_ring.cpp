#include "cpp/io/submission_ring.h"

#include <cerrno>
#include <cstring>
#include <vector>

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define EXPERTREE_HAS_IO_URING 1
#endif

namespace expertree {

#ifdef EXPERTREE_HAS_IO_URING

struct SubmissionRing::Operation {
  uint8_t opcode;
  int descriptor;
  uint64_t offset;
  void* address;
  uint32_t size;
  uint64_t user_data;
};

namespace {

void* map_ring(int fd, uint64_t bytes, uint64_t offset) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
  return p == MAP_FAILED ? nullptr : p;
}

int enter(int fd, uint32_t n_submit, uint32_t n_wait, uint32_t flags) {
  const long n = ::syscall(__NR_io_uring_enter, fd, n_submit, n_wait, flags, nullptr, 0);
  return n < 0 ? -errno : static_cast<int>(n);
}

}  // namespace

SubmissionRing::SubmissionRing(uint32_t n_entries) {
  io_uring_params parameters{};
  fd_ = static_cast<int>(::syscall(__NR_io_uring_setup, n_entries, &parameters));
  if (fd_ < 0) return;
  if (map_rings(&parameters) && knows_read()) return;
  ::close(fd_);
  fd_ = -1;
}

SubmissionRing::~SubmissionRing() {
  if (entries_ != nullptr) ::munmap(entries_, entries_bytes_);
  if (cq_ring_ != nullptr) ::munmap(cq_ring_, cq_bytes_);
  if (sq_ring_ != nullptr) ::munmap(sq_ring_, sq_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

bool SubmissionRing::map_rings(const void* parameters) {
  const auto& p = *static_cast<const io_uring_params*>(parameters);
  sq_bytes_ = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
  cq_bytes_ = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
  entries_bytes_ = p.sq_entries * sizeof(io_uring_sqe);
  sq_ring_ = map_ring(fd_, sq_bytes_, IORING_OFF_SQ_RING);
  cq_ring_ = map_ring(fd_, cq_bytes_, IORING_OFF_CQ_RING);
  entries_ = map_ring(fd_, entries_bytes_, IORING_OFF_SQES);
  if (sq_ring_ == nullptr || cq_ring_ == nullptr || entries_ == nullptr) return false;
  const auto at = [](void* ring, uint32_t offset) {
    return reinterpret_cast<uint32_t*>(static_cast<std::byte*>(ring) + offset);
  };
  sq_tail_ = at(sq_ring_, p.sq_off.tail);
  sq_array_ = at(sq_ring_, p.sq_off.array);
  sq_mask_ = *at(sq_ring_, p.sq_off.ring_mask);
  cq_head_ = at(cq_ring_, p.cq_off.head);
  cq_tail_ = at(cq_ring_, p.cq_off.tail);
  cq_mask_ = *at(cq_ring_, p.cq_off.ring_mask);
  completions_ = at(cq_ring_, p.cq_off.cqes);
  return true;
}

bool SubmissionRing::knows_read() const {
  constexpr size_t kMaxOperations = 256;
  std::vector<uint64_t> room((sizeof(io_uring_probe) + kMaxOperations * sizeof(io_uring_probe_op) + 7) / 8, 0);
  auto* probe = reinterpret_cast<io_uring_probe*>(room.data());
  if (::syscall(__NR_io_uring_register, fd_, IORING_REGISTER_PROBE, probe, kMaxOperations) < 0) return false;
  return probe->ops_len > IORING_OP_READ && (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) != 0;
}

int SubmissionRing::submit(const Operation& operation) {
  const uint32_t tail = *sq_tail_;  // written by this side alone
  const uint32_t index = tail & sq_mask_;
  io_uring_sqe& entry = static_cast<io_uring_sqe*>(entries_)[index];
  std::memset(&entry, 0, sizeof(entry));
  entry.opcode = operation.opcode;
  entry.fd = operation.descriptor;
  entry.off = operation.offset;
  entry.addr = reinterpret_cast<uint64_t>(operation.address);
  entry.len = operation.size;
  entry.user_data = operation.user_data;
  sq_array_[index] = index;
  std::atomic_ref<uint32_t>(*sq_tail_).store(tail + 1, std::memory_order_release);
  int n;
  do {
    n = enter(fd_, 1, 0, 0);
  } while (n == -EINTR);
  if (n == 1) return 0;
  std::atomic_ref<uint32_t>(*sq_tail_).store(tail, std::memory_order_release);  // it was not taken
  return n < 0 ? n : -EAGAIN;
}

int SubmissionRing::read(int descriptor, uint64_t offset, uint32_t size, std::byte* out, uint64_t user_data) {
  return submit({IORING_OP_READ, descriptor, offset, out, size, user_data});
}

int SubmissionRing::no_operation(uint64_t user_data) { return submit({IORING_OP_NOP, -1, 0, nullptr, 0, user_data}); }

int SubmissionRing::wait(Completion* completion) {
  const uint32_t head = *cq_head_;  // written by this side alone
  while (std::atomic_ref<uint32_t>(*cq_tail_).load(std::memory_order_acquire) == head) {
    const int n = enter(fd_, 0, 1, IORING_ENTER_GETEVENTS);
    if (n < 0 && n != -EINTR) return n;
  }
  const io_uring_cqe& entry = static_cast<const io_uring_cqe*>(completions_)[head & cq_mask_];
  *completion = {entry.user_data, entry.res};
  std::atomic_ref<uint32_t>(*cq_head_).store(head + 1, std::memory_order_release);
  return 0;
}

#else

SubmissionRing::SubmissionRing(uint32_t) {}
SubmissionRing::~SubmissionRing() = default;
int SubmissionRing::read(int, uint64_t, uint32_t, std::byte*, uint64_t) { return -ENOSYS; }
int SubmissionRing::no_operation(uint64_t) { return -ENOSYS; }
int SubmissionRing::wait(Completion*) { return -ENOSYS; }

#endif

}  // namespace expertree
