// expertree._core._testing: dense matrices on a device by themselves, without a model.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/backend/device_library.h"
#include "python/src/bind_testing_kernels.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Matrix = std::tuple<std::string, int64_t, int64_t>;  // format, rows, k

class DenseTrial {
 public:
  DenseTrial(const std::string& backend, const std::vector<Matrix>& matrices, int64_t max_rows)
      : device_(require_device(backend)) {
    plan_.max_rows = max_rows;
    plan_.mixed_units = true;
    int64_t width = 0;
    for (const auto& [format, rows, k] : matrices) {
      plan_.matrices.push_back({testing_dtype(format).dtype, rows, k});
      plan_.max_k = std::max(plan_.max_k, k);
      plan_.max_hidden = std::max(plan_.max_hidden, rows);
      width += rows;
    }
    plan_.max_outputs = max_rows * width;
    dense_ = device_->make_dense(plan_);
  }

  void load(int32_t matrix, const nb::bytes& rows) {
    dense_->load(matrix, reinterpret_cast<const std::byte*>(rows.c_str()));
  }

  void begin(const Rows& x) {
    n_rows_ = static_cast<int64_t>(x.shape(0));
    widths_.clear();
    dense_->begin(x.data(), n_rows_, static_cast<int64_t>(x.shape(1)));
  }

  void product(int32_t matrix) {
    dense_->product(matrix);
    widths_.push_back(plan_.matrices[static_cast<size_t>(matrix)].rows);
  }

  void feed_forward(int32_t gate, int32_t up, int32_t down) {
    dense_->feed_forward(gate, up, down);
    widths_.push_back(plan_.matrices[static_cast<size_t>(down)].rows);
  }

  void run() { dense_->run(); }

  nb::object wait() {
    const float* outputs = dense_->wait();
    auto* kept = new std::vector<float>;
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    for (const int64_t width : widths_) {
      kept->insert(kept->end(), outputs, outputs + n_rows_ * width);
      outputs += rows_with_room(n_rows_, plan_.max_rows) * width;
    }
    return nb::cast(nb::ndarray<nb::numpy, float>(kept->data(), {kept->size()}, owner));
  }

 private:
  std::shared_ptr<Device> device_;
  DeviceDensePlan plan_;
  std::unique_ptr<DeviceDense> dense_;
  int64_t n_rows_ = 0;
  std::vector<int64_t> widths_;  // of the call's outputs
};

}  // namespace

void bind_testing_dense(nb::module_& m) {
  nb::class_<DenseTrial>(m, "DenseTrial")
      .def(nb::init<const std::string&, const std::vector<Matrix>&, int64_t>(), "device"_a, "matrices"_a, "max_rows"_a)
      .def("load", &DenseTrial::load, "matrix"_a, "rows"_a, "In the file's layout.")
      .def("begin", &DenseTrial::begin, "x"_a)
      .def("product", &DenseTrial::product, "matrix"_a)
      .def("feed_forward", &DenseTrial::feed_forward, "gate"_a, "up"_a, "down"_a)
      .def("run", &DenseTrial::run)
      .def("wait", &DenseTrial::wait, "All outputs, product after product.");
}

}  // namespace expertree
