#include "cpp/model/arch/architecture.h"

#include <limits>

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

constexpr const Architecture* kArchitectures[] = {
    &kLlama, &kQwen2, &kQwen3, &kQwen2Moe, &kQwen3Moe, &kOlmoe, &kQwen35, &kQwen35Moe, &kQwen3Next,
};

[[noreturn]] void throw_value(const ArchKeys& keys, const char* key, int64_t found, const std::string& expected) {
  throw Error(ErrorCode::kModelFormat, keys.reader().paths()[0] + ": key '" + keys.full(key) + "' is " +
                                           std::to_string(found) + "; expected " + expected +
                                           ". The file is damaged or was converted wrongly; get it again");
}

void read_rope(const ArchKeys& keys, HyperParameters* h) {
  h->n_rot = keys.int_or("rope.dimension_count", h->head_dim_k);
  if (h->n_rot > h->head_dim_k || h->n_rot % 2 != 0) {
    throw_value(keys, "rope.dimension_count", h->n_rot,
                "an even number up to the head size " + std::to_string(h->head_dim_k));
  }
  h->rope_base = keys.float_or("rope.freq_base", 10000.0);
  if (!(h->rope_base > 0.0 && h->rope_base < 1e30)) {
    throw_value(keys, "rope.freq_base", static_cast<int64_t>(h->rope_base), "a positive number");
  }
  const std::string scaling = keys.string_or("rope.scaling.type", "none");
  // Older files give the factor alone; it meant linear scaling.
  double factor = keys.float_or("rope.scaling.factor", keys.float_or("rope.scale_linear", 1.0));
  if (scaling == "none" && keys.has("rope.scaling.type")) factor = 1.0;
  if (scaling != "none" && scaling != "linear") {
    throw Error(ErrorCode::kUnsupported, keys.reader().paths()[0] + ": key '" + keys.full("rope.scaling.type") +
                                             "' is '" + scaling + "'; expertree runs 'none' and 'linear' for " +
                                             h->arch + ". Use a file of the model without that scaling");
  }
  if (!(factor >= 1e-3 && factor <= 1e6)) {
    throw_value(keys, "rope.scaling.factor", static_cast<int64_t>(factor), "a factor between 0.001 and 1000000");
  }
  h->rope_frequency_scale = 1.0 / factor;
}

// The number of rows of the token embedding, which the tokenizer must agree with.
void read_vocabulary_size(const GgufReader& reader, HyperParameters* h) {
  // Each layer has tensors of its own, so a file cannot promise more layers than it has tensors.
  if (h->n_layers > static_cast<int64_t>(reader.tensors().size())) {
    throw Error(ErrorCode::kModelFormat, reader.paths()[0] + ": the file says it has " + std::to_string(h->n_layers) +
                                             " layers and holds only " + std::to_string(reader.tensors().size()) +
                                             " tensors. The file is incomplete; get it again");
  }
  const GgufTensor* embedding = reader.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    throw Error(ErrorCode::kModelFormat,
                reader.paths()[0] + ": tensor 'token_embd.weight' is missing; this is not a whole language model");
  }
  h->n_vocab = embedding->ne[1];
  const GgufValue* tokens = reader.find("tokenizer.ggml.tokens");
  if (tokens != nullptr && tokens->type == GgufValueType::kArray &&
      tokens->n_elements != static_cast<uint64_t>(h->n_vocab)) {
    throw Error(ErrorCode::kModelFormat, reader.paths()[0] + ": the tokenizer has " +
                                             std::to_string(tokens->n_elements) +
                                             " tokens and the embedding has rows for " + std::to_string(h->n_vocab) +
                                             "; the file was converted wrongly; get it again");
  }
  if (h->n_vocab > kMaxInt) throw Error(ErrorCode::kUnsupported, reader.paths()[0] + ": more than 2^31 tokens");
}

}  // namespace

int64_t ArchKeys::require_int(const char* key, int64_t min) const {
  return reader_.require_int(full(key), min, kMaxInt);
}

int64_t ArchKeys::int_or(const char* key, int64_t fallback, int64_t min) const {
  return reader_.int_or(full(key), fallback, min, kMaxInt);
}

void read_common(const ArchKeys& keys, HyperParameters* h) {
  const int64_t n_blocks = keys.require_int("block_count");
  h->n_nextn_layers = keys.int_or("nextn_predict_layers", 0, 0);
  if (h->n_nextn_layers >= n_blocks) {
    throw_value(keys, "nextn_predict_layers", h->n_nextn_layers, "less than block_count " + std::to_string(n_blocks));
  }
  h->n_layers = n_blocks - h->n_nextn_layers;
  h->n_embd = keys.require_int("embedding_length");
  h->n_ctx_train = keys.require_int("context_length");
  h->n_heads = keys.require_int("attention.head_count");
  h->n_kv_heads = keys.int_or("attention.head_count_kv", h->n_heads);
  // Files of models whose every layer has experts may leave the dense width out.
  h->n_ff = keys.has("expert_feed_forward_length") ? keys.int_or("feed_forward_length", 0, 0)
                                                   : keys.require_int("feed_forward_length");
  if (h->n_heads % h->n_kv_heads != 0) {
    throw_value(keys, "attention.head_count_kv", h->n_kv_heads,
                "a divisor of attention.head_count " + std::to_string(h->n_heads));
  }
  h->head_dim_k = keys.int_or("attention.key_length", h->n_embd / h->n_heads);
  h->head_dim_v = keys.int_or("attention.value_length", h->n_embd / h->n_heads);
  if (h->head_dim_k < 1) throw_value(keys, "attention.head_count", h->n_heads, "at most embedding_length");
  const double eps = keys.require_float("attention.layer_norm_rms_epsilon");
  if (!(eps >= 0.0 && eps < 1.0)) {
    throw_value(keys, "attention.layer_norm_rms_epsilon", static_cast<int64_t>(eps), "a number from 0 to 1");
  }
  h->rms_eps = static_cast<float>(eps);
  read_rope(keys, h);
}

int64_t require_dense_width(const ArchKeys& keys, const HyperParameters& h) {
  return h.n_ff > 0 ? h.n_ff : keys.require_int("feed_forward_length");
}

void read_experts(const ArchKeys& keys, HyperParameters* h) {
  h->moe.n_experts = keys.require_int("expert_count");
  h->moe.n_used = keys.require_int("expert_used_count");
  if (h->moe.n_used > h->moe.n_experts) {
    throw_value(keys, "expert_used_count", h->moe.n_used, "at most expert_count " + std::to_string(h->moe.n_experts));
  }
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const Architecture* architecture : kArchitectures) names.emplace_back(architecture->name);
  return names;
}

int64_t embedding_rows(const GgufReader& reader) {
  const GgufTensor* embedding = reader.find_tensor("token_embd.weight");
  return embedding == nullptr ? 0 : embedding->ne[1];
}

HyperParameters read_hyperparameters(const GgufReader& reader) {
  const std::string arch = reader.require_string("general.architecture");
  for (const Architecture* architecture : kArchitectures) {
    if (arch != architecture->name) continue;
    HyperParameters h;
    h.arch = arch;
    architecture->read(ArchKeys(reader, arch), &h);
    read_vocabulary_size(reader, &h);
    return h;
  }
  std::string known;
  for (const std::string& name : architecture_names()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kUnsupported, reader.paths()[0] + ": architecture '" + arch.substr(0, 64) +
                                           "' is not one that expertree runs; it runs " + known);
}

}  // namespace expertree
