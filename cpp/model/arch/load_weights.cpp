// GGUF tensor names to roles: the one place that knows them, besides the data sheets.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/io/read_source.h"
#include "cpp/model/arch/architecture.h"

namespace expertree {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kOverread = 128;  // kernels may load a whole vector at the end of the last row
constexpr uint64_t kPieceBytes = uint64_t{16} << 20;

std::string shape_text(const int64_t* ne, int n_dims) {
  std::string text = "[";
  for (int i = 0; i < n_dims; ++i) text += (i ? ", " : "") + std::to_string(ne[i]);
  return text + "]";
}

// Collects the tensors that a model needs, checks each, and reads them in one pass over an arena of known size.
class TensorPlan {
 public:
  explicit TensorPlan(const GgufReader& reader) : reader_(reader), used_(reader.tensors().size(), false) {}

  // Marks the tensor used; nullptr when absent.
  const GgufTensor* take(const std::string& name) {
    const GgufTensor* tensor = reader_.find_tensor(name);
    if (tensor != nullptr) used_[index_of(tensor)] = true;
    return tensor;
  }

  int32_t index_of(const GgufTensor* tensor) const { return static_cast<int32_t>(tensor - reader_.tensors().data()); }

  // Checks shape (fastest dimension first; trailing dimensions of 1 may be left out) and that the format runs.
  void check(const GgufTensor& tensor, std::vector<int64_t> expected) const {
    bool same = true;
    for (size_t i = 0; i < 4; ++i) same = same && tensor.ne[i] == (i < expected.size() ? expected[i] : 1);
    if (!same) {
      throw Error(ErrorCode::kModelFormat,
                  where(tensor) + " has shape " + shape_text(tensor.ne, tensor.n_dims) + "; expected " +
                      shape_text(expected.data(), static_cast<int>(expected.size())) +
                      " from the file's own keys. The file is damaged or was converted wrongly; get it again");
    }
    if (find_dtype(tensor.gguf_type) == nullptr) {
      throw Error(ErrorCode::kUnsupported, where(tensor) + " is stored as " + gguf_type_name(tensor.gguf_type) +
                                               ", a format that expertree does not run yet; use a file in another "
                                               "quantisation, for example Q4_K_M or Q8_0");
    }
  }

  const GgufTensor& require(const std::string& name) {
    const GgufTensor* tensor = take(name);
    if (tensor == nullptr) {
      throw Error(ErrorCode::kModelFormat, reader_.paths()[0] + ": tensor '" + name +
                                               "' is missing. The file is incomplete or was converted wrongly; get it "
                                               "again");
    }
    return *tensor;
  }

  // The matrix is filled in by load(): *out must stay where it is.
  void matrix(const std::string& name, int64_t k, int64_t rows, WeightMatrix* out) {
    add_matrix(require(name), k, rows, out);
  }
  bool optional_matrix(const std::string& name, int64_t k, int64_t rows, WeightMatrix* out) {
    const GgufTensor* tensor = take(name);
    if (tensor != nullptr) add_matrix(*tensor, k, rows, out);
    return tensor != nullptr;
  }
  void vector(const std::string& name, int64_t n, FloatVector* out) { add_vector(require(name), n, out); }
  void optional_vector(const std::string& name, int64_t n, FloatVector* out) {
    const GgufTensor* tensor = take(name);
    if (tensor != nullptr) add_vector(*tensor, n, out);
  }

  // A tensor that nobody took is a feature that would be left out silently.
  void refuse_unused() const {
    for (size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      throw Error(ErrorCode::kUnsupported,
                  where(reader_.tensors()[i]) +
                      " is one that this architecture does not use here; running without it would give wrong text. "
                      "The file holds a variant of the model that expertree does not know");
    }
  }

  uint64_t bytes() const { return bytes_ + kOverread; }

  void load(PageBuffer* arena, const std::function<void(uint64_t, uint64_t)>& progress) const {
    *arena = PageBuffer(bytes(), "the weights");
    uint64_t total = 0;
    for (const MatrixEntry& entry : matrices_) total += entry.tensor->size_bytes;
    for (const VectorEntry& entry : vectors_) total += entry.tensor->size_bytes;
    uint64_t done = 0;
    const auto advance = [&](uint64_t bytes) {
      done += bytes;
      if (progress) progress(done, total);
    };
    std::vector<std::unique_ptr<ReadSource>> files;
    for (size_t i = 0; i < reader_.paths().size(); ++i) {
      files.push_back(std::make_unique<ReadSource>(reader_.file(static_cast<int32_t>(i)), true, true));
    }
    PageBuffer bounce;
    const auto read = [&](const GgufTensor& tensor, uint64_t offset, uint64_t size, std::byte* out) {
      files[static_cast<size_t>(tensor.file_index)]->read_anywhere(tensor.offset + offset, size, out, &bounce);
      advance(size);
    };
    std::byte* next = arena->data();
    for (const MatrixEntry& entry : matrices_) {
      for (uint64_t offset = 0; offset < entry.tensor->size_bytes; offset += kPieceBytes) {
        const uint64_t size = std::min(kPieceBytes, entry.tensor->size_bytes - offset);
        read(*entry.tensor, offset, size, next + offset);
      }
      entry.out->data = next;
      next += aligned(entry.tensor->size_bytes);
    }
    for (const VectorEntry& entry : vectors_) {
      entry.out->resize(static_cast<size_t>(entry.n));
      read(*entry.tensor, 0, entry.tensor->size_bytes, reinterpret_cast<std::byte*>(entry.out->data()));
    }
  }

 private:
  struct MatrixEntry {
    const GgufTensor* tensor;
    WeightMatrix* out;
  };
  struct VectorEntry {
    const GgufTensor* tensor;
    int64_t n;
    FloatVector* out;
  };

  static uint64_t aligned(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

  std::string where(const GgufTensor& tensor) const {
    return reader_.paths()[static_cast<size_t>(tensor.file_index)] + ": tensor '" + tensor.name + "'";
  }

  void add_matrix(const GgufTensor& tensor, int64_t k, int64_t rows, WeightMatrix* out) {
    check(tensor, {k, rows});
    const auto dtype = static_cast<DType>(tensor.gguf_type);
    *out = {dtype, nullptr, rows, k, row_bytes(dtype, k)};
    matrices_.push_back({&tensor, out});
    bytes_ += aligned(tensor.size_bytes);
  }

  void add_vector(const GgufTensor& tensor, int64_t n, FloatVector* out) {
    check(tensor, {n});
    if (static_cast<DType>(tensor.gguf_type) != DType::kF32) {
      throw Error(ErrorCode::kUnsupported, where(tensor) + " is stored as " + gguf_type_name(tensor.gguf_type) +
                                               "; norms and biases must be F32. Convert the file again");
    }
    vectors_.push_back({&tensor, n, out});
  }

  const GgufReader& reader_;
  std::vector<bool> used_;
  std::vector<MatrixEntry> matrices_;
  std::vector<VectorEntry> vectors_;
  uint64_t bytes_ = 0;
};

void plan_attention(TensorPlan* plan, const std::string& block, const HyperParameters& h, AttentionWeights* w) {
  const int64_t n_q = h.n_heads * h.head_dim_k;
  const int64_t n_k = h.n_kv_heads * h.head_dim_k;
  const int64_t n_v = h.n_kv_heads * h.head_dim_v;
  plan->matrix(block + "attn_q.weight", h.n_embd, n_q, &w->q);
  plan->matrix(block + "attn_k.weight", h.n_embd, n_k, &w->k);
  plan->matrix(block + "attn_v.weight", h.n_embd, n_v, &w->v);
  plan->matrix(block + "attn_output.weight", h.n_heads * h.head_dim_v, h.n_embd, &w->output);
  plan->optional_vector(block + "attn_q.bias", n_q, &w->q_bias);
  plan->optional_vector(block + "attn_k.bias", n_k, &w->k_bias);
  plan->optional_vector(block + "attn_v.bias", n_v, &w->v_bias);
  plan->optional_vector(block + "attn_output.bias", h.n_embd, &w->output_bias);
  if (h.qk_norm != QkNorm::kNone) {
    const bool per_head = h.qk_norm == QkNorm::kPerHead;
    plan->vector(block + "attn_q_norm.weight", per_head ? h.head_dim_k : n_q, &w->q_norm);
    plan->vector(block + "attn_k_norm.weight", per_head ? h.head_dim_k : n_k, &w->k_norm);
  }
}

void plan_feed_forward(TensorPlan* plan, const std::string& block, const char* suffix, int64_t n_embd, int64_t n_ff,
                       FeedForwardWeights* w) {
  plan->matrix(block + "ffn_gate" + suffix + ".weight", n_embd, n_ff, &w->gate);
  plan->matrix(block + "ffn_up" + suffix + ".weight", n_embd, n_ff, &w->up);
  plan->matrix(block + "ffn_down" + suffix + ".weight", n_ff, n_embd, &w->down);
}

// One merged tensor [k, rows, n_experts], or in old files one tensor [k, rows] per expert.
ExpertLayer::Projection plan_projection(TensorPlan* plan, const std::string& block, const char* name, int64_t k,
                                        int64_t rows, int64_t n_experts) {
  const std::string stem = block + name;
  ExpertLayer::Projection projection;
  projection.rows = rows;
  projection.k = k;
  const GgufTensor* merged = plan->take(stem + "_exps.weight");
  if (merged != nullptr) {
    plan->check(*merged, {k, rows, n_experts});
    projection.dtype = static_cast<DType>(merged->gguf_type);
    const uint64_t size = merged->size_bytes / static_cast<uint64_t>(n_experts);
    for (int64_t e = 0; e < n_experts; ++e) {
      projection.experts.push_back({plan->index_of(merged), size * static_cast<uint64_t>(e), size});
    }
    return projection;
  }
  if (plan->take(stem + ".0.weight") == nullptr) plan->require(stem + "_exps.weight");  // says what is missing
  for (int64_t e = 0; e < n_experts; ++e) {
    const GgufTensor& tensor = plan->require(stem + "." + std::to_string(e) + ".weight");
    plan->check(tensor, {k, rows});
    const auto dtype = static_cast<DType>(tensor.gguf_type);
    if (e > 0 && dtype != projection.dtype) {
      throw Error(ErrorCode::kUnsupported, "tensor '" + tensor.name + "' is stored as " +
                                               gguf_type_name(tensor.gguf_type) + " and that of expert 0 as " +
                                               dtype_info(projection.dtype).name +
                                               "; all experts of a layer must have one format per projection");
    }
    projection.dtype = dtype;
    projection.experts.push_back({plan->index_of(&tensor), 0, tensor.size_bytes});
  }
  return projection;
}

void plan_moe(TensorPlan* plan, const std::string& block, int64_t layer, const HyperParameters& h, ExpertIndex* index,
              MoeWeights* w) {
  const MoeParameters& moe = h.moe;
  plan->matrix(block + "ffn_gate_inp.weight", h.n_embd, moe.n_experts, &w->router);
  ExpertLayer experts;
  experts.layer = static_cast<int32_t>(layer);
  experts.projections[kGate] = plan_projection(plan, block, "ffn_gate", h.n_embd, moe.n_ff, moe.n_experts);
  experts.projections[kUp] = plan_projection(plan, block, "ffn_up", h.n_embd, moe.n_ff, moe.n_experts);
  experts.projections[kDown] = plan_projection(plan, block, "ffn_down", moe.n_ff, h.n_embd, moe.n_experts);
  w->moe_layer = static_cast<int64_t>(index->size());
  index->push_back(std::move(experts));
  if (moe.shared == SharedExpert::kSigmoidGate) {
    plan_feed_forward(plan, block, "_shexp", h.n_embd, moe.n_ff_shared, &w->shared);
    plan->matrix(block + "ffn_gate_inp_shexp.weight", h.n_embd, 1, &w->shared_gate);
  }
}

}  // namespace

ModelWeights load_weights(const GgufReader& reader, const HyperParameters& h, PageBuffer* arena,
                          const std::function<void(uint64_t, uint64_t)>& progress) {
  TensorPlan plan(reader);
  ModelWeights w;
  plan.matrix("token_embd.weight", h.n_embd, h.n_vocab, &w.token_embd);
  plan.vector("output_norm.weight", h.n_embd, &w.output_norm);
  const bool tied = !plan.optional_matrix("output.weight", h.n_embd, h.n_vocab, &w.output);
  plan.optional_vector("rope_freqs.weight", h.n_rot / 2, &w.rope_factors);
  w.layers.resize(static_cast<size_t>(h.n_layers));
  for (int64_t i = 0; i < h.n_layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    LayerWeights& layer = w.layers[static_cast<size_t>(i)];
    plan.vector(block + "attn_norm.weight", h.n_embd, &layer.attn_norm);
    plan_attention(&plan, block, h, &layer.attention);
    plan.vector(block + "ffn_norm.weight", h.n_embd, &layer.ffn_norm);
    if (h.is_moe()) {
      plan_moe(&plan, block, i, h, &w.experts, &layer.moe);
    } else {
      plan_feed_forward(&plan, block, "", h.n_embd, h.n_ff, &layer.dense);
    }
  }
  plan.refuse_unused();
  require_memory(plan.bytes(), "loading the weights of " + reader.paths()[0]);
  plan.load(arena, progress);
  if (tied) w.output = w.token_embd;
  return w;
}

}  // namespace expertree
