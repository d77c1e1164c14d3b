#include "cpp/backend/machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "cpp/base/clock.h"

namespace expertree {
namespace {

constexpr int64_t kPieceBytes = int64_t{2} << 20;
constexpr int64_t kRounds = 2000;

template <typename Measure>
double median_until(int64_t end_us, const Measure& measure) {
  std::vector<double> values;
  do {
    values.push_back(measure());
  } while (now_us() < end_us);
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

}  // namespace

LimitProbe::LimitProbe(CpuBackend& backend, uint64_t buffer_bytes)
    : backend_(backend), buffer_(buffer_bytes, "the memory probe") {
  // Each thread touches pieces in the order in which they are read, so that memory lies as weights do.
  backend_.pool().parallel_for(static_cast<int64_t>(buffer_bytes) / kPieceBytes, [&](int64_t i) {
    std::memset(buffer_.data() + i * kPieceBytes, 1, static_cast<size_t>(kPieceBytes));
  });
}

double LimitProbe::read_once() {
  const int64_t n_pieces = static_cast<int64_t>(buffer_.size_bytes()) / kPieceBytes;
  std::atomic<uint64_t> sink{0};
  const int64_t start = now_us();
  backend_.pool().parallel_for(n_pieces, [&](int64_t i) {
    sink += backend_.kernels().probe_read(buffer_.data() + i * kPieceBytes, kPieceBytes);
  });
  return static_cast<double>(n_pieces * kPieceBytes) * 1e-3 / static_cast<double>(now_us() - start);
}

double LimitProbe::int8_once() {
  const KernelTable& kernels = backend_.kernels();
  if (kernels.probe_int8 == nullptr) return 0.0;
  const int64_t n_tasks = 16 * backend_.pool().n_threads();
  std::atomic<uint64_t> sink{0};
  const int64_t start = now_us();
  backend_.pool().parallel_for(n_tasks, [&](int64_t) { sink += kernels.probe_int8(kRounds); });
  return static_cast<double>(n_tasks * kRounds * kernels.probe_int8_ops) * 1e-3 / static_cast<double>(now_us() - start);
}

MachineLimits LimitProbe::measure(double seconds) {
  const auto half_us = static_cast<int64_t>(seconds * 0.5e6);
  const int64_t start = now_us();
  MachineLimits limits{};
  limits.int8_gops = median_until(start + half_us, [&] { return int8_once(); });
  limits.read_gb_per_s = median_until(start + 2 * half_us, [&] { return read_once(); });
  return limits;
}

}  // namespace expertree
