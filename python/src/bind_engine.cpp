// Model and Session for Python. No logic: arrays in, arrays out; the GIL is released while the core works.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <vector>

#include "cpp/backend/machine_limits.h"
#include "cpp/base/clock.h"
#include "cpp/base/memory.h"
#include "cpp/base/process_memory.h"
#include "cpp/engine/session.h"
#include "cpp/kernels/kernel_names.h"
#include "cpp/kernels/kernel_table.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/scratch_size.h"
#include "python/src/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace expertree {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const int32_t> span_of(const Ids& ids) { return {ids.data(), ids.size()}; }

// A vector as a numpy array that owns it.
template <typename T>
nb::object to_numpy(std::vector<T> values, std::vector<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(kept->data(), shape.size(), shape.data(), owner));
}

// Asks Python for a pending Ctrl-C, at most every 20 ms: the core calls this between layers.
std::function<void()> interrupt_check() {
  return [next = int64_t{0}]() mutable {
    const int64_t now = now_us();
    if (now < next) return;
    next = now + 20000;
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  };
}

LoadProgress load_progress(const nb::object& callback) {
  return [&callback, next = int64_t{0}](uint64_t done, uint64_t total) mutable {
    const int64_t now = now_us();
    if (now < next && done != total) return;
    next = now + 20000;
    nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!callback.is_none()) callback(done, total);
  };
}

nb::tuple routing_arrays(const Model& model, const ForwardResult& result, size_t n_rows) {
  const std::vector<size_t> shape = {static_cast<size_t>(model.n_moe_layers()), n_rows,
                                     static_cast<size_t>(model.hyperparameters().moe.n_used)};
  return nb::make_tuple(to_numpy(result.expert_ids, shape), to_numpy(result.expert_weights, shape));
}

void bind_sampler_options(nb::module_& m) {
  nb::class_<SamplerOptions>(m, "SamplerOptions")
      .def(nb::init<>())
      .def_rw("temperature", &SamplerOptions::temperature)
      .def_rw("top_k", &SamplerOptions::top_k)
      .def_rw("top_p", &SamplerOptions::top_p)
      .def_rw("min_p", &SamplerOptions::min_p)
      .def_rw("repeat_penalty", &SamplerOptions::repeat_penalty)
      .def_rw("presence_penalty", &SamplerOptions::presence_penalty)
      .def_rw("frequency_penalty", &SamplerOptions::frequency_penalty)
      .def_rw("penalty_last_n", &SamplerOptions::penalty_last_n)
      .def_rw("logit_bias", &SamplerOptions::logit_bias)
      .def_rw("seed", &SamplerOptions::seed);
}

void bind_model(nb::module_& m) {
  nb::class_<Model>(m, "Model")
      .def_static(
          "load",
          [](const std::string& path, int threads, const std::string& isa, bool reference, const nb::object& progress,
             std::optional<uint64_t> expert_budget, bool leave_margin, int64_t n_ctx, const std::string& policy,
             const std::vector<float>& profile, const std::string& cache_type_k, const std::string& cache_type_v,
             uint64_t reserve_bytes, std::optional<uint64_t> vram_budget, bool vram_auto, const std::string& device) {
            ModelOptions options;
            options.cache_types = {cache_type(cache_type_k), cache_type(cache_type_v)};
            options.n_threads = threads;
            options.isa = isa;
            options.activations = reference ? ActivationMode::kReference : ActivationMode::kInt8;
            options.experts.budget_bytes = expert_budget.value_or(kAllExperts);
            options.experts.policy = policy;
            options.experts.profile = profile;
            options.leave_margin = leave_margin;
            options.n_ctx = n_ctx;
            options.reserve_bytes = reserve_bytes;
            options.vram = {vram_budget.value_or(kAllExperts), vram_auto, device};
            const LoadProgress report = load_progress(progress);
            nb::gil_scoped_release released;
            return Model::load(path, options, report);
          },
          "path"_a, "threads"_a = 0, "isa"_a = "", "reference"_a = false, "progress"_a = nb::none(),
          "expert_budget"_a = nb::none(), "leave_margin"_a = false, "n_ctx"_a = 0, "policy"_a = "auto",
          "profile"_a = std::vector<float>(), "cache_type_k"_a = "f32", "cache_type_v"_a = "f32", "reserve_bytes"_a = 0,
          "vram_budget"_a = 0, "vram_auto"_a = false, "device"_a = "cuda")
      .def_prop_ro("path", [](const Model& model) { return model.path(); })
      .def_prop_ro("file", &Model::file, nb::rv_policy::reference_internal)
      .def_prop_ro("arch", [](const Model& model) { return model.hyperparameters().arch; })
      .def_prop_ro("n_layers", [](const Model& model) { return model.hyperparameters().n_layers; })
      .def_prop_ro("n_embd", [](const Model& model) { return model.hyperparameters().n_embd; })
      .def_prop_ro("n_vocab", [](const Model& model) { return model.hyperparameters().n_vocab; })
      .def_prop_ro("n_ctx_train", [](const Model& model) { return model.hyperparameters().n_ctx_train; })
      .def_prop_ro("default_context", &Model::default_context)
      .def_prop_ro("n_experts", [](const Model& model) { return model.hyperparameters().moe.n_experts; })
      .def_prop_ro("n_experts_used", [](const Model& model) { return model.hyperparameters().moe.n_used; })
      .def_prop_ro("n_moe_layers", &Model::n_moe_layers)
      .def_prop_ro(
          "moe_layers",
          [](const Model& model) {
            std::vector<int64_t> layers(static_cast<size_t>(model.n_moe_layers()));
            for (int64_t i = 0; i < std::ssize(model.weights().layers); ++i) {
              const int64_t moe_layer = model.weights().layers[static_cast<size_t>(i)].moe.moe_layer;
              if (moe_layer >= 0) layers[static_cast<size_t>(moe_layer)] = i;
            }
            return layers;
          },
          "The layer of each MoE layer.")
      .def_prop_ro("isa", &Model::isa)
      .def_prop_ro("threads", &Model::n_threads)
      .def_prop_ro("experts", &Model::experts, nb::rv_policy::reference_internal, "None for a dense model.")
      .def_prop_ro("gpu", &device_use, "What is on a device, and what it did; None: nothing is.")
      .def_prop_ro("vram_note", &Model::vram_note, "Why nothing is, where that was left to the model.")
      .def(
          "load_experts",
          [](Model& model) {
            nb::gil_scoped_release released;
            model.load_experts([] {
              nb::gil_scoped_acquire gil;
              if (PyErr_CheckSignals() != 0) throw nb::python_error();
            });
          },
          "Waits until every expert that has room is in memory, and on the device.")
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro(
          "drafting_parts",
          [](Model& model) {
            nb::list list;
            for (const SharedParts::Part& part : model.parts().parts()) {
              list.append(nb::make_tuple(part.purpose, part.size_bytes));
            }
            return list;
          },
          "(purpose, bytes) of what sessions of this model draft with.")
      .def(
          "scratch_bytes",
          [](const Model& model, int64_t n_ctx) { return scratch_bytes(model.hyperparameters(), n_ctx); }, "n_ctx"_a)
      .def_prop_ro("cache_types",
                   [](const Model& model) {
                     const CacheTypes types = model.cache_types();
                     return std::make_pair(cache_type_name(types.keys), cache_type_name(types.values));
                   })
      .def("kv_bytes", &Model::state_bytes, "n_ctx"_a);
}

void bind_limits(nb::module_& m) {
  nb::class_<LimitProbe>(m, "LimitProbe", "What this machine can do at most, on a model's threads.")
      .def(
          "__init__", [](LimitProbe* self, Model& model) { new (self) LimitProbe(model.backend()); }, "model"_a,
          nb::keep_alive<1, 2>())
      .def(
          "measure",
          [](LimitProbe& probe, double seconds) {
            nb::gil_scoped_release released;
            const MachineLimits limits = probe.measure(seconds);
            return std::make_pair(limits.read_gb_per_s, limits.int8_gops);
          },
          "seconds"_a, "(GB/s read from memory, int8 GOPS).");
}

std::pair<double, double> measure_limits(const std::string& isa, int n_threads, double seconds) {
  const KernelTable* kernels = find_kernels(isa.c_str());
  if (kernels == nullptr) throw Error(ErrorCode::kInvalidRequest, "instruction set '" + isa + "' does not run here");
  nb::gil_scoped_release released;
  CpuBackend backend(*kernels, n_threads, ActivationMode::kInt8);
  const MachineLimits limits = LimitProbe(backend, uint64_t{256} << 20).measure(seconds);
  return {limits.read_gb_per_s, limits.int8_gops};
}

void bind_session(nb::module_& m) {
  nb::class_<Session>(m, "Session")
      .def(
          "__init__",
          [](Session* self, std::shared_ptr<Model> model, int64_t n_ctx, const SamplerOptions& options) {
            new (self) Session(std::move(model), n_ctx, options);
            self->set_interrupt_check(interrupt_check());
          },
          "model"_a, "n_ctx"_a, "sampler"_a)
      .def_prop_ro("n_ctx", &Session::n_ctx)
      .def_prop_ro("id", &Session::id, "Unique among the model's sessions.")
      .def_prop_ro("tokens", [](const Session& s) { return s.tokens(); })
      .def_prop_ro("n_tokens", [](const Session& s) { return s.n_tokens(); })
      .def_prop_ro("stats",
                   [](const Session& s) {
                     const SessionStats stats = s.stats();
                     nb::dict d;
                     d["prefill_tokens"] = stats.n_prefill_tokens;
                     d["decode_tokens"] = stats.n_decode_tokens;
                     d["prefill_seconds"] = static_cast<double>(stats.prefill_us) * 1e-6;
                     d["decode_seconds"] = static_cast<double>(stats.decode_us) * 1e-6;
                     d["steps"] = stats.n_steps;
                     d["drafted"] = stats.n_drafted;
                     d["selected"] = stats.n_selected;
                     d["accepted"] = stats.n_accepted;
                     d["draft_seconds"] = static_cast<double>(stats.draft_us) * 1e-6;
                     d["select_seconds"] = static_cast<double>(stats.select_us) * 1e-6;
                     d["drafter_bytes"] = stats.drafter_bytes;
                     return d;
                   })
      .def(
          "prefill",
          [](Session& s, const Ids& tokens) {
            nb::gil_scoped_release released;
            s.prefill(span_of(tokens));
          },
          "tokens"_a)
      .def(
          "step",
          [](Session& s, std::optional<int64_t> max_tokens, const std::vector<int32_t>& end_tokens) {
            StepRequest request{.end_tokens = end_tokens};
            if (max_tokens) request.max_tokens = *max_tokens;
            nb::gil_scoped_release released;
            return s.step(request);
          },
          "max_tokens"_a = nb::none(), "end_tokens"_a = std::vector<int32_t>())
      .def_prop_ro("speculates", &Session::speculates)
      .def_prop_ro("lossless", &Session::lossless)
      .def(
          "evaluate",
          [](Session& s, const Ids& tokens, const Ids& parents, bool routing, bool hidden) {
            ForwardResult result;
            {
              nb::gil_scoped_release released;
              result = s.evaluate(span_of(tokens), span_of(parents), routing, hidden);
            }
            const auto n_vocab = static_cast<size_t>(s.model().hyperparameters().n_vocab);
            nb::object routed = nb::none();
            if (routing) routed = routing_arrays(s.model(), result, tokens.size());
            nb::object states = nb::none();
            if (hidden) {
              const auto n_embd = static_cast<size_t>(s.model().hyperparameters().n_embd);
              states = to_numpy(std::move(result.last_hidden), {tokens.size(), n_embd});
            }
            return nb::make_tuple(to_numpy(std::move(result.logits), {tokens.size(), n_vocab}), routed, states);
          },
          "tokens"_a, "parents"_a, "routing"_a = false, "hidden"_a = false)
      .def(
          "commit", [](Session& s, const Ids& path) { s.commit(span_of(path)); }, "path"_a)
      .def("rollback", &Session::rollback)
      .def("truncate", &Session::truncate, "length"_a)
      .def("branch",
           [](const Session& s) {
             std::unique_ptr<Session> copy = s.branch();
             copy->set_interrupt_check(interrupt_check());
             return copy;
           })
      .def("set_sampler", &Session::set_sampler, "sampler"_a)
      .def("cancel", &Session::cancel);
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_sampler_options(m);
  bind_model(m);
  bind_limits(m);
  m.def("measure_limits", &measure_limits, "isa"_a, "threads"_a, "seconds"_a,
        "What LimitProbe measures, with so many threads; takes 256 MiB.");
  bind_session(m);
  m.def("isa_names", &kernel_names, "Instruction sets that run on this machine, best first.");
  m.def("architecture_names", &architecture_names, "general.architecture values that this build runs.");
  m.def("available_memory_bytes", &available_memory_bytes);
  m.def("process_resident_bytes", &process_resident_bytes, "Of this process now; 0 when the system does not say.");
  m.attr("RECURRENT_STATES") = static_cast<int>(RecurrentState::kStates);
  m.attr("RECURRENT_TERMS") = static_cast<int>(RecurrentState::kUsualTerms);
}

}  // namespace expertree
