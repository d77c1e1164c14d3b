// EAGLE-3 heads in GGUF: keys under "eagle3.", tensors of one block and of the encoder before it.
#include "cpp/base/error.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/draft_file.h"
#include "cpp/model/arch/draft_heads.h"

namespace expertree {
namespace {

// Layers whose inputs are the features, unless the file says which: early, middle and late.
std::vector<int32_t> read_tap_layers(const ArchKeys& keys, const Model& target) {
  const int64_t n = target.hyperparameters().n_layers;
  std::vector<int32_t> layers;
  for (const char* key : {"target_layers", "extract_layers"}) {  // the newer and the older name
    if (!keys.has(key)) continue;
    for (const int64_t layer : keys.reader().require_ints(keys.full(key), -1, 0, INT32_MAX)) {
      layers.push_back(static_cast<int32_t>(layer));
    }
    break;
  }
  if (layers.empty()) layers = {2, static_cast<int32_t>(n / 2), static_cast<int32_t>(n - 3)};
  for (const int32_t layer : layers) {
    if (layer >= 0 && layer < n) continue;
    throw_wrong_target(keys.reader(), target, "features of layer " + std::to_string(layer),
                       "layers 0 to " + std::to_string(n - 1));
  }
  constexpr size_t kMaxTaps = 64;
  if (layers.size() > kMaxTaps) {
    throw Error(ErrorCode::kModelFormat, keys.reader().paths()[0] + ": key '" + keys.full("target_layers") + "' has " +
                                             std::to_string(layers.size()) + " layers; expected at most " +
                                             std::to_string(kMaxTaps));
  }
  return layers;
}

void read_parameters(const ArchKeys& keys, const Model& target, Eagle3Head* head) {
  head->h.arch = "eagle3";
  read_common(keys, &head->h);
  head->h.rope_style = RopeStyle::kConsecutive;
  if (head->h.n_layers != 1) {
    throw Error(ErrorCode::kUnsupported, keys.reader().paths()[0] + ": key '" + keys.full("block_count") + "' is " +
                                             std::to_string(head->h.n_layers) + "; expertree runs heads of one layer");
  }
  check_layers(keys, head->h);
  head->tap_layers = read_tap_layers(keys, target);
  const int64_t target_width = target.hyperparameters().n_embd;
  const int64_t trained_width = keys.int_or("target_hidden_size", target_width);
  if (trained_width != target_width) {
    throw_wrong_target(keys.reader(), target, "target_hidden_size " + std::to_string(trained_width),
                       "hidden size " + std::to_string(target_width));
  }
  head->norm_before_residual = keys.reader().bool_or(keys.full("norm_before_residual"), false);
}

// A matrix [n_embd] wide that the target has, too.
void require_same_width(const GgufReader& reader, const Model& target, int64_t n_embd, const char* what) {
  const int64_t width = target.hyperparameters().n_embd;
  if (n_embd == width) return;
  throw_wrong_target(reader, target, "width " + std::to_string(n_embd) + " and no " + what + " of its own",
                     "width " + std::to_string(width));
}

void plan_embedding(TensorPlan* plan, const GgufReader& reader, const Model& target, Eagle3Head* head) {
  const int64_t n_vocab = target.hyperparameters().n_vocab;
  const GgufTensor* tensor = reader.find_tensor("token_embd.weight");
  if (tensor == nullptr) {
    require_same_width(reader, target, head->h.n_embd, "token_embd.weight");
    head->token_embd = target.weights().token_embd;
    return;
  }
  if (tensor->ne[1] < n_vocab) {
    throw_wrong_target(reader, target, "embeddings of " + std::to_string(tensor->ne[1]) + " tokens",
                       std::to_string(n_vocab));
  }
  plan->matrix("token_embd.weight", head->h.n_embd, tensor->ne[1], &head->token_embd);
}

void plan_output(TensorPlan* plan, const GgufReader& reader, const Model& target, Eagle3Head* head) {
  const int64_t n_vocab = target.hyperparameters().n_vocab;
  int64_t n_draft = n_vocab;
  if (reader.find_tensor("d2t") != nullptr) {
    const std::vector<int64_t> d2t = plan->integers("d2t", -1);
    head->target_ids = target_ids_from_d2t(d2t, reader.paths()[0] + ": tensor 'd2t'", n_vocab);
    n_draft = static_cast<int64_t>(d2t.size());
  }
  if (plan->optional_matrix("output.weight", head->h.n_embd, n_draft, &head->output)) return;
  require_same_width(reader, target, head->h.n_embd, "output.weight");
  if (n_draft != n_vocab) {
    throw_wrong_target(reader, target, "a draft vocabulary of " + std::to_string(n_draft) + " and no output.weight",
                       "one of " + std::to_string(n_vocab));
  }
  head->output = target.weights().output;
}

void plan_block(TensorPlan* plan, const GgufReader& reader, Eagle3Head* head) {
  const HyperParameters& h = head->h;
  const std::string block = "blk.0.";
  plan->vector(block + "attn_norm.weight", h.n_embd, &head->embedding_norm);
  const bool old_name = reader.find_tensor(block + "attn_norm_2.weight") == nullptr &&
                        reader.find_tensor(block + "hidden_norm.weight") != nullptr;
  plan->vector(block + (old_name ? "hidden_norm.weight" : "attn_norm_2.weight"), h.n_embd, &head->state_norm);
  const int64_t n_inputs = 2 * h.n_embd;
  plan->matrix(block + "attn_q.weight", n_inputs, h.n_heads * h.head_dim_k, &head->attention.q);
  plan->matrix(block + "attn_k.weight", n_inputs, h.n_kv_heads * h.head_dim_k, &head->attention.k);
  plan->matrix(block + "attn_v.weight", n_inputs, h.n_kv_heads * h.head_dim_v, &head->attention.v);
  plan->matrix(block + "attn_output.weight", h.n_heads * h.head_dim_v, h.n_embd, &head->attention.output);
  plan->vector(block + "ffn_norm.weight", h.n_embd, &head->ffn_norm);
  plan->matrix(block + "ffn_gate.weight", h.n_embd, h.n_ff, &head->feed_forward.gate);
  plan->matrix(block + "ffn_up.weight", h.n_embd, h.n_ff, &head->feed_forward.up);
  plan->matrix(block + "ffn_down.weight", h.n_ff, h.n_embd, &head->feed_forward.down);
  for (const char* name : {"blk.0.rope_freqs.weight", "rope_freqs.weight"}) {
    if (plan->optional_vector(name, h.n_rot / 2, &head->rope_factors)) break;
  }
}

}  // namespace

std::shared_ptr<const Eagle3Head> load_eagle3(const std::string& path, const Model& target) {
  const GgufReader reader(path);
  require_draft_architecture(reader, "eagle3");
  const ArchKeys keys(reader, "eagle3");
  auto head = std::make_shared<Eagle3Head>();
  head->path = path;
  read_parameters(keys, target, head.get());
  const int64_t n_features = static_cast<int64_t>(head->tap_layers.size()) * target.hyperparameters().n_embd;
  TensorPlan plan(reader);
  if (reader.bool_or(keys.full("norm_before_fc"), false)) {
    plan.vector("enc.output_norm.weight", n_features, &head->feature_norm);
  }
  plan.matrix("fc.weight", n_features, head->h.n_embd, &head->fc);
  plan.vector("output_norm.weight", head->h.n_embd, &head->output_norm);
  plan_embedding(&plan, reader, target, head.get());
  plan_output(&plan, reader, target, head.get());
  plan_block(&plan, reader, head.get());
  plan.refuse_unused();
  load_draft_weights(plan, reader, &head->arena);
  return head;
}

}  // namespace expertree
