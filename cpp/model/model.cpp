#include "cpp/model/model.h"

#include <thread>

#include "cpp/base/error.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/forward.h"

namespace expertree {
namespace {

const KernelTable& kernels_for(const std::string& isa) {
  if (isa.empty()) return best_kernels();
  const KernelTable* table = find_kernels(isa.c_str());
  if (table != nullptr) return *table;
  std::string here;
  for (const char* name : {"avx512", "avx2", "neon", "scalar"}) {
    if (find_kernels(name) != nullptr) here += (here.empty() ? "" : ", ") + std::string(name);
  }
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

}  // namespace

Model::Model(std::string path, const ModelOptions& options)
    : path_(std::move(path)),
      backend_(kernels_for(options.isa), thread_count(options.n_threads), options.activations) {}

Model::~Model() = default;

std::shared_ptr<Model> Model::load(const std::string& path, const ModelOptions& options, const LoadProgress& progress) {
  std::shared_ptr<Model> model(new Model(path, options));
  const GgufReader reader(path);
  model->h_ = read_hyperparameters(reader);
  uint64_t total = 0;
  for (const GgufTensor& tensor : reader.tensors()) total += tensor.size_bytes;
  uint64_t done = 0;
  const auto advance = [&](uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  model->weights_ = load_weights(reader, model->h_, &model->arena_, advance);
  model->weight_bytes_ = model->arena_.size_bytes();
  model->expert_bytes_ = ResidentExperts::bytes_needed(model->weights_.experts);
  require_memory(model->expert_bytes_, "holding the experts of " + path);
  model->experts_ = std::make_unique<ResidentExperts>(model->weights_.experts, reader, advance);
  model->rope_ = std::make_unique<Rope>(model->h_, model->weights_.rope_factors);
  model->forward_ = std::make_unique<Forward>(*model);
  return model;
}

void Model::forward(SequenceState& state, const TokenBatch& batch, const ForwardRequest& request,
                    ForwardResult* result) {
  std::lock_guard<std::mutex> lock(mutex_);
  forward_->run(state, batch, request, result);
}

}  // namespace expertree
