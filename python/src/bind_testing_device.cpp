// expertree._core._testing: a device's experts by themselves, without a model.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cpp/backend/device_library.h"
#include "cpp/base/error.h"
#include "cpp/experts/expert_split.h"
#include "python/src/bind_testing_kernels.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Matrix = std::tuple<std::string, int64_t, int64_t>;        // format, rows, k
using Run = std::tuple<int32_t, int32_t, std::vector<int32_t>>;  // slot, expert, rows of the inputs

// Layers have n_experts experts each; their slots form one size class.
class DeviceTrial {
 public:
  DeviceTrial(const std::string& backend, const std::vector<std::vector<Matrix>>& layers, int32_t n_experts,
              int64_t n_slots, int64_t n_embd, int64_t max_inputs, int64_t max_pairs)
      : device_(require_device(backend)) {
    plan_.n_embd = n_embd;
    plan_.max_inputs = max_inputs;
    plan_.max_pairs = max_pairs;
    plan_.slot_bytes = {256};
    plan_.n_slots = {n_slots};
    for (const std::vector<Matrix>& matrices : layers) {
      ET_CHECK(matrices.size() == kExpertMatrices);
      DeviceExpertLayer layer;
      layer.n_experts = n_experts;
      for (int m = 0; m < kExpertMatrices; ++m) {
        const auto& [format, rows, k] = matrices[static_cast<size_t>(m)];
        layer.matrices[m] = {testing_dtype(format).dtype, rows, k, nullptr, nullptr};
      }
      plan_.slot_bytes[0] = std::max(plan_.slot_bytes[0], device_->slot_bytes(layer));
      plan_.layers.push_back(layer);
    }
    experts_ = device_->make_experts(plan_);
  }

  // The three matrices in the file's layout, one behind the other.
  void copy(int32_t slot, int32_t layer, const nb::bytes& matrices) {
    const DeviceExpertLayer& shape = plan_.layers.at(static_cast<size_t>(layer));
    std::byte* staged = experts_->stage(layer);
    const char* from = matrices.c_str();
    for (int m = 0; m < kExpertMatrices; ++m) {
      std::memcpy(staged + shape.offset_of(m), from, static_cast<size_t>(shape.matrices[m].size_bytes()));
      from += shape.matrices[m].size_bytes();
    }
    experts_->copy(slot, layer);
  }

  void begin(int32_t layer, const Floats& inputs) {
    experts_->begin(layer, inputs.data(), static_cast<int64_t>(inputs.size()) / plan_.n_embd);
    n_pairs_ = 0;
  }

  void run(const std::vector<Run>& runs) {
    std::vector<DeviceRows> rows;
    for (const auto& [slot, expert, x_rows] : runs) {
      rows.push_back({slot, expert, std::ssize(x_rows), x_rows.data()});
      n_pairs_ += std::ssize(x_rows);
    }
    experts_->run(rows);
  }

  nb::object wait() {
    const float* outputs = experts_->wait();
    auto* kept = new std::vector<float>(outputs, outputs + n_pairs_ * plan_.n_embd);
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, float>(
        kept->data(), {static_cast<size_t>(n_pairs_), static_cast<size_t>(plan_.n_embd)}, owner));
  }

  DeviceExperts& experts() { return *experts_; }

 private:
  std::shared_ptr<Device> device_;
  DeviceExpertsPlan plan_;
  std::unique_ptr<DeviceExperts> experts_;
  int64_t n_pairs_ = 0;
};

}  // namespace

void bind_testing_device(nb::module_& m) {
  m.def(
      "split_experts",
      [](double run_base, double run_row, double device_base, double device_row, double copy, double stage,
         int64_t n_device_experts, int64_t n_device_rows, int64_t most, const std::vector<int64_t>& n_rows) {
        ExpertCosts costs;
        costs.run_base_seconds = run_base;
        costs.run_row_seconds = run_row;
        costs.device_base_seconds = device_base;
        costs.device_row_seconds = device_row;
        return split_experts(costs, {copy, stage, n_device_experts, n_device_rows, most}, n_rows);
      },
      "run_base"_a, "run_row"_a, "device_base"_a, "device_row"_a, "copy"_a, "stage"_a, "n_device_experts"_a,
      "n_device_rows"_a, "most"_a, "n_rows"_a, "Indices of the experts to be copied to the device.");
  nb::class_<DeviceTrial>(m, "DeviceTrial")
      .def(nb::init<const std::string&, const std::vector<std::vector<Matrix>>&, int32_t, int64_t, int64_t, int64_t,
                    int64_t>(),
           "device"_a, "layers"_a, "n_experts"_a, "n_slots"_a, "n_embd"_a, "max_inputs"_a, "max_pairs"_a)
      .def("copy", &DeviceTrial::copy, "slot"_a, "layer"_a, "matrices"_a)
      .def("begin", &DeviceTrial::begin, "layer"_a, "inputs"_a)
      .def("run", &DeviceTrial::run, "runs"_a, "(slot, expert, rows of the inputs) each.")
      .def("wait", &DeviceTrial::wait)
      .def("recover", [](DeviceTrial& trial) { return trial.experts().recover(); })
      .def_prop_ro("is_link_busy", [](DeviceTrial& trial) { return trial.experts().is_link_busy(); })
      .def("measure_link", [](DeviceTrial& trial) { return trial.experts().measure_link(); });
}

}  // namespace expertree
