// expertree._core._testing: the cache's bookkeeping and asynchronous reads, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/base/memory.h"
#include "cpp/experts/expert_cache.h"
#include "cpp/experts/hint_gate.h"
#include "cpp/io/async_reader.h"
#include "cpp/model/model.h"
#include "python/src/bindings.h"
#include "python/src/faulty_file.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

void bind_cache(nb::module_& m) {
  nb::enum_<SlotState>(m, "SlotState")
      .value("free", SlotState::kFree)
      .value("filling", SlotState::kFilling)
      .value("ready", SlotState::kReady)
      .value("failed", SlotState::kFailed);
  nb::enum_<FillReason>(m, "FillReason")
      .value("demand", FillReason::kDemand)
      .value("hint", FillReason::kHint)
      .value("background", FillReason::kBackground)
      .value("offer", FillReason::kOffer);
  nb::class_<ExpertCache>(m, "ExpertCache")
      .def(
          "__init__",
          [](ExpertCache* self, int32_t n_layers, int32_t n_experts, const std::vector<int32_t>& class_of_layer,
             const std::vector<int64_t>& n_slots, const std::string& policy) {
            std::vector<std::unique_ptr<CachePolicy>> policies;
            policies.push_back(make_policy(policy, {n_layers, n_experts, {}, nullptr, nullptr}));
            new (self) ExpertCache({n_layers, n_experts, class_of_layer, n_slots}, std::move(policies));
          },
          "n_layers"_a, "n_experts"_a, "class_of_layer"_a, "n_slots"_a, "policy"_a)
      .def("begin_step", &ExpertCache::begin_step)
      .def("use", &ExpertCache::use)
      .def(
          "count",
          [](ExpertCache& cache, int32_t layer, const std::vector<int32_t>& experts, int64_t n_rows) {
            cache.count(layer, experts, n_rows);
          },
          "layer"_a, "experts"_a, "n_rows"_a = 1)
      .def("find", &ExpertCache::find)
      .def("state", &ExpertCache::state)
      .def("key_in", &ExpertCache::key_in)
      .def("take",
           [](ExpertCache& cache, ExpertKey key, FillReason reason) {
             const ExpertCache::Taken taken = cache.take(key, reason);
             return std::make_pair(taken.slot, taken.evicted);
           })
      .def("filled", &ExpertCache::filled)
      .def("failed", &ExpertCache::failed)
      .def("pin", &ExpertCache::pin)
      .def("unpin", &ExpertCache::unpin)
      .def("pins", &ExpertCache::pins)
      .def("set_covered", &ExpertCache::set_covered)
      .def("clear", &ExpertCache::clear)
      .def("hints", [](const ExpertCache& cache) {
        const HintCounts& counts = cache.hints();
        return std::vector<int64_t>{counts.n_in_time, counts.n_late, counts.n_wasted};
      });
  nb::class_<HintGate>(m, "HintGate")
      .def(nb::init<>())
      .def("begin_step", [](HintGate& gate, int64_t in_time, int64_t late,
                            int64_t wasted) { gate.begin_step({in_time, late, wasted}); })
      .def_prop_ro("is_open", &HintGate::is_open)
      .def_prop_ro("n_closings", &HintGate::n_closings);
}

// What each read gave: its bytes, or the error's text.
using ReadResult = std::pair<nb::bytes, std::string>;

// Reads all ranges at once and waits; the guard bytes around each place must stay as they were.
nb::tuple read_ranges(const std::string& path, const std::vector<std::pair<uint64_t, uint64_t>>& ranges,
                      const std::string& backend, bool direct, const Faults& faults) {
  const std::unique_ptr<File> file = with_faults(open_file(path), faults);
  std::mutex mutex;
  std::condition_variable changed;
  size_t n_done = 0;
  std::vector<std::string> errors(ranges.size());
  std::vector<std::string> bytes(ranges.size());
  std::string name;
  uint64_t alignment = 0;
  {
    nb::gil_scoped_release released;
    const auto done = [&](uint64_t ticket, const std::exception_ptr& error) {
      const std::lock_guard<std::mutex> lock(mutex);
      try {
        if (error) std::rethrow_exception(error);
      } catch (const Error& e) {
        errors[ticket] = e.what();
      }
      ++n_done;
      changed.notify_all();
    };
    const std::unique_ptr<AsyncReader> reader = make_async_reader({file.get()}, done, {backend, 2, direct, true});
    name = reader->name();
    alignment = reader->alignment(0);
    std::vector<PageBuffer> buffers;
    std::vector<std::byte*> places;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto [offset, size] = ranges[i];
      buffers.emplace_back(size + 3 * alignment, "a test");
      places.push_back(buffers.back().data() + alignment + offset % alignment);
      reader->start({0, offset, size, places.back(), i});
    }
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return n_done == ranges.size(); });
    for (size_t i = 0; i < ranges.size(); ++i) {
      bytes[i].assign(reinterpret_cast<const char*>(places[i]), ranges[i].second);
    }
  }
  nb::list results;
  for (size_t i = 0; i < ranges.size(); ++i) {
    results.append(nb::make_tuple(nb::bytes(bytes[i].data(), bytes[i].size()), errors[i]));
  }
  return nb::make_tuple(results, name, alignment);
}

// A model whose experts' reads meet faults once it is loaded.
std::shared_ptr<Model> load_paged(const std::string& path, int threads, const std::string& isa, uint64_t budget,
                                  const std::string& policy, const std::string& reader, const Faults& faults,
                                  bool background, bool direct, bool use_cached, bool read_ahead, uint64_t vram,
                                  const std::string& device, FetchRule fetch, int64_t max_pairs, bool vram_auto,
                                  bool experts_only, int64_t n_ctx, const std::string& cache_type_name,
                                  int64_t measured_runs) {
  ModelOptions options;
  options.n_threads = threads;
  options.isa = isa;
  options.experts.budget_bytes = budget;
  options.experts.policy = policy;
  options.experts.poison = true;
  options.experts.background_fill = background;
  options.experts.read_ahead = read_ahead;
  options.experts.reader = {reader, 4, direct, use_cached};
  options.vram = {vram, vram_auto, device, fetch, max_pairs, experts_only, measured_runs};
  options.n_ctx = n_ctx;
  options.cache_types = {cache_type(cache_type_name), cache_type(cache_type_name)};
  options.open = [&faults](const std::string& part) { return with_faults(open_file(part), faults); };
  return Model::load(path, options, {});
}

}  // namespace

void bind_testing_pager(nb::module_& m) {
  bind_cache(m);
  nb::enum_<FetchRule>(m, "FetchRule")
      .value("by_cost", FetchRule::kByCost)
      .value("always", FetchRule::kAlways)
      .value("never", FetchRule::kNever)
      .value("shuffled", FetchRule::kShuffled);
  m.def("load_paged", &load_paged, "path"_a, "threads"_a = 1, "isa"_a = "", "budget"_a = kAllExperts,
        "policy"_a = "auto", "reader"_a = "auto", "faults"_a = Faults(), "background"_a = false, "direct"_a = true,
        "use_cached"_a = true, "read_ahead"_a = false, "vram"_a = 0, "device"_a = "emulated",
        "fetch"_a = FetchRule::kByCost, "max_pairs"_a = 0, "vram_auto"_a = false, "experts_only"_a = false,
        "n_ctx"_a = 0, "cache_type"_a = "f32", "measured_runs"_a = 0, nb::call_guard<nb::gil_scoped_release>(),
        "A core Model with poisoned slots and faulty files.");
  m.def("read_ranges", &read_ranges, "path"_a, "ranges"_a, "backend"_a, "direct"_a, "faults"_a,
        "([(bytes, error text)], reader's name, alignment)");
  m.def(
      "is_cached",
      [](const std::string& path, uint64_t offset, uint64_t size) { return open_file(path)->is_cached(offset, size); },
      "path"_a, "offset"_a, "size"_a);
}

}  // namespace expertree
