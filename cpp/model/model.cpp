#include "cpp/model/model.h"

#include <algorithm>
#include <thread>

#include "cpp/base/error.h"
#include "cpp/base/memory.h"
#include "cpp/kernels/kernel_names.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/forward.h"
#include "cpp/model/scratch_size.h"
#include "cpp/profile/profiler.h"

namespace expertree {
namespace {

const KernelTable& kernels_for(const std::string& isa) {
  if (isa.empty()) return best_kernels();
  const KernelTable* table = find_kernels(isa.c_str());
  if (table != nullptr) return *table;
  std::string here;
  for (const std::string& name : kernel_names()) here += (here.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kInvalidRequest,
              "instruction set '" + isa.substr(0, 32) + "' does not run here; this machine has " + here);
}

int thread_count(int requested) {
  constexpr int kMaxThreads = 1024;
  if (requested < 0 || requested > kMaxThreads) {
    throw Error(ErrorCode::kInvalidRequest, "threads is " + std::to_string(requested) + "; expected 1 to " +
                                                std::to_string(kMaxThreads) + ", or 0 for one per core");
  }
  if (requested > 0) return requested;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// What the system keeps to itself beside everything that expertree takes: a tenth of what is free, 256 MiB to 1 GiB.
uint64_t system_margin(uint64_t available) {
  return std::clamp(available / 10, uint64_t{256} << 20, uint64_t{1} << 30);
}

// Interpreter, its libraries, and what the heap cannot give back.
constexpr uint64_t kProcessBytes = uint64_t{192} << 20;

PagerOptions pager_options(const Model& model, const ModelOptions& options) {
  PagerOptions experts = options.experts;
  const uint64_t available = available_memory_bytes();
  if (!options.leave_margin || available == 0) return experts;
  const int64_t n_ctx = options.n_ctx > 0 ? options.n_ctx : model.default_context();
  const uint64_t taken = system_margin(available) + kProcessBytes + model.state_bytes(n_ctx) +
                         scratch_bytes(model.hyperparameters(), n_ctx) + options.reserve_bytes;
  if (available <= taken && !model.weights().experts.empty()) {
    throw Error(ErrorCode::kOutOfMemory, "no memory is left for experts: a context of " + std::to_string(n_ctx) +
                                             " tokens takes " + format_bytes(model.state_bytes(n_ctx)) + ", drafting " +
                                             format_bytes(options.reserve_bytes) + " and all besides experts " +
                                             format_bytes(taken) + " of " + format_bytes(available) +
                                             "; take a smaller context (--ctx) or another drafter, or set --ram");
  }
  experts.budget_bytes = std::min(experts.budget_bytes, available > taken ? available - taken : 0);
  return experts;
}

}  // namespace

Model::Model(std::string path, std::shared_ptr<const GgufReader> file, std::shared_ptr<CpuBackend> backend,
             CacheTypes cache_types)
    : path_(std::move(path)),
      file_(std::move(file)),
      cache_types_(cache_types),
      backend_(std::move(backend)),
      products_(*backend_) {}

Model::~Model() = default;

int64_t Model::default_context() const {
  const int64_t n_ctx = std::min(kDefaultContext, h_.n_ctx_train);
  if (weights_.rope_factors_long.empty()) return n_ctx;
  return std::min(n_ctx, static_cast<int64_t>(h_.yarn.n_ctx_original));
}

void Model::set_parts(ModelParts parts) {
  h_ = std::move(parts.h);
  weights_ = std::move(parts.weights);
  arena_ = std::move(parts.arena);
}

void Model::start(const PagerOptions& experts) {
  if (!weights_.experts.empty()) experts_ = std::make_unique<ExpertPager>(weights_.experts, file_, experts);
  const ModelWeights& w = weights_;
  rope_ = std::make_unique<Rope>(h_, w.rope_factors);
  if (!w.rope_factors_long.empty()) rope_long_ = std::make_unique<Rope>(h_, w.rope_factors_long);
  rope_windowed_ = std::make_unique<Rope>(h_, w.rope_factors, true);
  forward_ = std::make_unique<Forward>(*this);
}

std::shared_ptr<Model> Model::load(const std::string& path, const ModelOptions& options, const LoadProgress& progress) {
  auto backend =
      std::make_shared<CpuBackend>(kernels_for(options.isa), thread_count(options.n_threads), options.activations);
  auto file = std::make_shared<const GgufReader>(path, options.open);
  std::shared_ptr<Model> model(new Model(path, std::move(file), std::move(backend), options.cache_types));
  if (options.experts.policy != "auto") find_policy(options.experts.policy);  // of a dense model, too
  ModelParts parts;
  parts.h = read_hyperparameters(model->file());
  parts.weights = load_weights(model->file(), parts.h, &parts.arena, progress);
  model->set_parts(std::move(parts));
  model->start(pager_options(*model, options));
  // All has been read: what is left to do can still be stopped.
  const auto check_stop = [&] {
    if (progress) progress(model->weight_bytes(), model->weight_bytes());
  };
  const int64_t n_ctx = options.n_ctx > 0 ? options.n_ctx : model->default_context();
  model->open_vram(options.vram, options.experts, n_ctx, check_stop);
  return model;
}

std::shared_ptr<Model> Model::from_parts(const Model& host, ModelParts parts) {
  std::shared_ptr<Model> model(new Model(host.path_, host.file_, host.backend_, host.cache_types_));
  model->set_parts(std::move(parts));
  model->start({});
  return model;
}

std::shared_ptr<Profiler> Model::start_profile(int64_t max_events) {
  const std::lock_guard<std::mutex> lock(profiler_mutex_);
  if (profiler_ != nullptr) {
    throw Error(ErrorCode::kInvalidRequest, "a profile of this model is running already; end it first");
  }
  const ProfileShape shape{h_.n_layers, n_moe_layers(), n_moe_layers() > 0 ? h_.moe.n_experts : 0,
                           n_moe_layers() > 0 ? h_.moe.n_used : 0};
  if (experts_ != nullptr) experts_->start_activity();
  profiler_ = std::make_shared<Profiler>(shape, max_events);
  profiling_.store(true);
  return profiler_;
}

void Model::stop_profile() {
  const std::lock_guard<std::mutex> lock(profiler_mutex_);
  profiling_.store(false);
  if (profiler_ != nullptr) profiler_->close();
  profiler_.reset();
}

std::shared_ptr<Profiler> Model::profiler() const {
  if (!profiling_.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard<std::mutex> lock(profiler_mutex_);
  return profiler_;
}

void Model::forward(SequenceState& state, const TokenBatch& batch, const ForwardRequest& request,
                    ForwardResult* result) {
  const SequencePass pass{&state, &batch, &request, result};
  forward({&pass, 1});
}

void Model::forward(std::span<const SequencePass> sequences) {
  std::lock_guard<std::mutex> lock(mutex_);
  forward_->run(sequences);
}

void Model::count_uses(int32_t moe_layer, std::span<const int32_t> experts, int64_t n_rows) {
  experts_->count(moe_layer, experts, n_rows);
  if (vram_ != nullptr) vram_->count(moe_layer, experts, n_rows);
}

void Model::keep_rows(std::span<const int32_t> expert_ids, int64_t n_rows, std::span<const int32_t> rows) {
  if (rows.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const int64_t n_used = h_.moe.n_used;
  std::vector<int32_t> experts;
  for (int64_t layer = 0; layer < n_moe_layers(); ++layer) {
    experts.clear();
    for (const int32_t row : rows) {
      const auto first = expert_ids.begin() + (layer * n_rows + row) * n_used;
      experts.insert(experts.end(), first, first + n_used);
    }
    count_uses(static_cast<int32_t>(layer), experts, std::ssize(rows));
  }
}

}  // namespace expertree
