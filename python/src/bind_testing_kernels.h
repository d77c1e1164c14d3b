// Parts of `expertree._core._testing` that deal with kernels.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/kernels/kernel_table.h"
#include "cpp/tensor/dtype.h"

namespace expertree {

// Called by bind_testing_kernels.
void bind_testing_attention(nanobind::module_& m);
void bind_testing_kernel_timing(nanobind::module_& m);    // time_matmul, machine limits
void bind_testing_sequence_timing(nanobind::module_& m);  // time_attend, time_delta_scan

// By name; both throw kUnsupported for a name that does not exist or does not run here.
const KernelTable& testing_kernels(const std::string& isa);
const DTypeInfo& testing_dtype(const std::string& name);

template <typename T>
using In1 = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using In2 = nanobind::ndarray<const T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Out = nanobind::ndarray<nanobind::numpy, T>;
using Indices = std::optional<In1<int32_t>>;

// A NaN no arithmetic makes: what an output holds before a kernel writes it.
constexpr uint32_t kUntouchedBits = 0x7fc5e771u;

// A fresh numpy array of the given shape that owns a copy of `source`.
template <typename T>
Out<T> to_numpy(const T* source, std::initializer_list<size_t> shape) {
  size_t count = 1;
  for (size_t extent : shape) count *= extent;
  T* data = new T[std::max<size_t>(count, 1)];
  if (count > 0) std::memcpy(data, source, count * sizeof(T));
  nanobind::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Out<T>(data, shape, owner);
}

inline float untouched() {
  float value;
  std::memcpy(&value, &kUntouchedBits, 4);
  return value;
}

inline bool is_untouched(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits == kUntouchedBits;
}

// y [rows][columns] with guard columns after each row and a guard row before and after.
class GuardedOutput {
 public:
  GuardedOutput(int64_t rows, int64_t columns)
      : rows_(rows), columns_(columns), data_(static_cast<size_t>((rows + 2) * stride()), untouched()) {}

  int64_t stride() const { return columns_ + kGuard; }
  float* data() { return data_.data() + stride(); }

  Out<float> take() {
    std::vector<float> inner;
    for (int64_t r = -1; r <= rows_; ++r) {
      for (int64_t c = 0; c < stride(); ++c) {
        const float value = data()[r * stride() + c];
        if (r >= 0 && r < rows_ && c < columns_) {
          inner.push_back(value);
        } else if (!is_untouched(value)) {
          throw Error(ErrorCode::kInternal, "the kernel wrote outside its output, at row " + std::to_string(r) +
                                                ", column " + std::to_string(c));
        }
      }
    }
    return to_numpy(inner.data(), {static_cast<size_t>(rows_), static_cast<size_t>(columns_)});
  }

 private:
  static constexpr int64_t kGuard = 19;
  int64_t rows_;
  int64_t columns_;
  std::vector<float> data_;
};

}  // namespace expertree
