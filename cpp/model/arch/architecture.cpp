#include "cpp/model/arch/architecture.h"

#include <limits>

#include "cpp/base/error.h"

namespace expertree {
namespace {

constexpr const Architecture* kArchitectures[] = {
    &kLlama,      &kQwen2,       &kQwen3,     &kQwen2Moe, &kQwen3Moe,     &kOlmoe,     &kGptOss,    &kDeepSeek2,
    &kGlm4Moe,    &kGraniteMoe,  &kPhiMoe,    &kGemma3,   &kGemma4,       &kMiniMaxM2, &kLlama4,    &kErnie45Moe,
    &kHunyuanMoe, &kBailingMoe2, &kDots1,     &kDeepSeek, &kSmallThinker, &kGrok,      &kExaoneMoe, &kMiMo2,
    &kQwen35,     &kQwen35Moe,   &kQwen3Next, &kLfm2Moe,  &kDbrx,
};

// The number of rows of the token embedding, which the tokenizer must agree with.
void read_vocabulary_size(const GgufReader& reader, HyperParameters* h) {
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
    const ArchKeys keys(reader, arch);
    architecture->read(keys, &h);
    check_layers(keys, h);
    read_vocabulary_size(reader, &h);
    return h;
  }
  std::string known;
  for (const std::string& name : architecture_names()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kUnsupported, reader.paths()[0] + ": architecture '" + arch.substr(0, 64) +
                                           "' is not one that expertree runs; it runs " + known);
}

}  // namespace expertree
