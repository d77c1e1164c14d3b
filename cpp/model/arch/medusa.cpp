// Medusa heads in GGUF, in expertree's own form (models/README.md).
#include <cstring>

#include "cpp/base/error.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/draft_file.h"
#include "cpp/model/arch/draft_heads.h"

namespace expertree {
namespace {

constexpr int64_t kMaxHeads = 64;

// The target's output rows of the draft vocabulary, side by side, so that they are one product.
void copy_output_rows(const WeightMatrix& output, MedusaHeads* heads) {
  const auto n = static_cast<int64_t>(heads->target_ids.size());
  const uint64_t size = static_cast<uint64_t>(n * output.row_bytes) + kOverreadBytes;
  require_memory(size, "the output rows of " + heads->path);
  heads->output_rows = PageBuffer(size, "the output rows of a draft vocabulary");
  for (int64_t i = 0; i < n; ++i) {
    std::memcpy(heads->output_rows.data() + i * output.row_bytes,
                output.data + heads->target_ids[static_cast<size_t>(i)] * output.row_bytes,
                static_cast<size_t>(output.row_bytes));
  }
  heads->output = {output.dtype, heads->output_rows.data(), n, output.k, output.row_bytes};
}

}  // namespace

std::shared_ptr<const MedusaHeads> load_medusa(const std::string& path, const Model& target) {
  const GgufReader reader(path);
  require_draft_architecture(reader, "medusa");
  const ArchKeys keys(reader, "medusa");
  const HyperParameters& h = target.hyperparameters();
  const int64_t width = keys.int_or("embedding_length", h.n_embd);
  if (width != h.n_embd) {
    throw_wrong_target(reader, target, "width " + std::to_string(width), "width " + std::to_string(h.n_embd));
  }
  auto heads = std::make_shared<MedusaHeads>();
  heads->path = path;
  heads->heads.resize(static_cast<size_t>(reader.require_int(keys.full("head_count"), 1, kMaxHeads)));
  TensorPlan plan(reader);
  if (reader.find_tensor("draft_ids") != nullptr) {
    heads->target_ids = checked_target_ids(plan.integers("draft_ids", -1), path + ": tensor 'draft_ids'", h.n_vocab);
  }
  for (size_t i = 0; i < heads->heads.size(); ++i) {
    const std::string name = "head." + std::to_string(i);
    plan.matrix(name + ".weight", h.n_embd, h.n_embd, &heads->heads[i].weight);
    plan.vector(name + ".bias", h.n_embd, &heads->heads[i].bias);
  }
  plan.refuse_unused();
  load_draft_weights(plan, reader, &heads->arena);
  if (heads->target_ids.empty()) {
    heads->output = target.weights().output;
  } else {
    copy_output_rows(target.weights().output, heads.get());
  }
  return heads;
}

}  // namespace expertree
