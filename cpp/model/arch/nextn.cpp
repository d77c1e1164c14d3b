// The block behind the last layer that predicts one token further (MTP, "NextN" in GGUF): a layer of the model's own
// kind, read from the model's own file.
#include <string>

#include "cpp/base/error.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/model/arch/draft_heads.h"
#include "cpp/model/arch/layer_weights.h"
#include "cpp/model/arch/tensor_plan.h"

namespace expertree {
namespace {

[[noreturn]] void throw_unsupported(const Model& target, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, target.path() + ": " + what + ". Use another drafter, for example ngram");
}

// Of the one layer: the model's, as its block after the last one has them.
HyperParameters block_parameters(const Model& target) {
  HyperParameters h = target.hyperparameters();
  h.layers = h.nextn_layers;
  h.nextn_layers.clear();
  h.recurrent = {};
  h.n_layers = 1;
  h.n_nextn_layers = 0;
  return h;
}

}  // namespace

std::shared_ptr<const NextnBlock> load_nextn(const Model& target) {
  const HyperParameters& h = target.hyperparameters();
  const int64_t n_embd = h.n_embd;
  if (h.n_nextn_layers == 0) {
    throw Error(
        ErrorCode::kInvalidRequest,
        target.path() + ": the model has no block that predicts further tokens (key '" + h.arch +
            ".nextn_predict_layers'), so there is nothing to draft with. Use another drafter, for example ngram");
  }
  if (h.n_nextn_layers != 1) {
    throw_unsupported(target, "the model has " + std::to_string(h.n_nextn_layers) +
                                  " blocks that predict further tokens; expertree drafts with one");
  }
  const std::string block = "blk." + std::to_string(h.n_layers) + ".";
  auto nextn = std::make_shared<NextnBlock>();
  TensorPlan plan(target.file());
  if (!plan.has(block + "nextn.eh_proj.weight")) {
    throw_unsupported(target, "the file leaves out the block that predicts further tokens ('" + block + "*')");
  }
  ModelParts parts;
  parts.h = block_parameters(target);
  ModelWeights& w = parts.weights;
  w.layers.resize(1);
  plan_layer(&plan, h.n_layers, parts.h, 0, &w.experts, w.layers.data());
  plan.vector(block + "nextn.enorm.weight", n_embd, &nextn->embedding_norm);
  plan.vector(block + "nextn.hnorm.weight", n_embd, &nextn->state_norm);
  plan.matrix(block + "nextn.eh_proj.weight", 2 * n_embd, n_embd, &nextn->input);
  const bool own_embedding =
      plan.optional_matrix(block + "nextn.embed_tokens.weight", n_embd, h.n_vocab, &nextn->token_embd);
  const bool own_norm = plan.optional_vector(block + "nextn.shared_head_norm.weight", n_embd, &w.output_norm);
  const bool own_output = plan.optional_matrix(block + "nextn.shared_head_head.weight", n_embd, h.n_vocab, &w.output);
  plan.refuse_unused_of(block);
  require_memory(plan.bytes(), "loading the MTP block of " + target.path());
  plan.load(&parts.arena, nullptr);
  finish_layer(parts.h, 0, w.layers.data(), &w.computed);
  if (!own_embedding) nextn->token_embd = target.weights().token_embd;
  if (!own_norm) w.output_norm = target.weights().output_norm;
  if (!own_output) w.output = target.weights().output;
  w.token_embd = nextn->token_embd;
  w.rope_factors = target.weights().rope_factors;
  nextn->layer = Model::from_parts(target, std::move(parts));
  return nextn;
}

}  // namespace expertree
