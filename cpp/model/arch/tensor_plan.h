// The tensors that a file must have: each is found, checked and read in one pass over an arena of known size.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cpp/base/memory.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

class TensorPlan {
 public:
  explicit TensorPlan(const GgufReader& reader) : reader_(reader), used_(reader.tensors().size(), false) {}

  // Marks the tensor used; nullptr when absent.
  const GgufTensor* take(const std::string& name);
  const GgufTensor& require(const std::string& name);
  bool has(const std::string& name) const { return reader_.find_tensor(name) != nullptr; }
  int32_t index_of(const GgufTensor* tensor) const { return static_cast<int32_t>(tensor - reader_.tensors().data()); }

  // Checks shape (fastest dimension first; trailing dimensions of 1 may be left out) and that the format runs.
  void check(const GgufTensor& tensor, std::vector<int64_t> expected) const;
  void check_shape(const GgufTensor& tensor, const std::vector<int64_t>& expected) const;

  // The matrix is filled in by load(): *out must stay where it is. Of a block's matrix and of the output's the tensor
  // NAME.scale [1], which FP4 files have, becomes the matrix's scale.
  void matrix(const std::string& name, int64_t k, int64_t rows, WeightMatrix* out);
  bool optional_matrix(const std::string& name, int64_t k, int64_t rows, WeightMatrix* out);
  // A matrix per head, [k, rows, n] in the file: all rows one under the other.
  void matrix_stack(const std::string& name, int64_t k, int64_t rows, int64_t n, WeightMatrix* out);
  void vector(const std::string& name, int64_t n, FloatVector* out);
  bool optional_vector(const std::string& name, int64_t n, FloatVector* out);
  // Floats of any shape, fastest dimension first.
  void floats(const std::string& name, const std::vector<int64_t>& shape, FloatVector* out);
  void vector_if(Presence presence, const std::string& name, int64_t n, FloatVector* out);
  // An I32 or I64 tensor [n], read at once. n < 0: of any length.
  std::vector<int64_t> integers(const std::string& name, int64_t n);

  // Tensors whose names begin so are for others to load.
  void leave(const std::string& prefix);
  // The F32 tensor STEM.scale [n], read at once: what multiplies the products of n matrices. Empty without one.
  // STEM.input_scale is taken with it and not used: it says how to round activations to FP4, and here they are int8.
  std::vector<float> scales(const std::string& stem, int64_t n);

  // A tensor that nobody took is a feature that would be left out silently.
  void refuse_unused() const { refuse_unused_of(""); }
  // The same for tensors whose names begin so.
  void refuse_unused_of(const std::string& prefix) const;

  uint64_t bytes() const;
  void load(PageBuffer* arena, const std::function<void(uint64_t done, uint64_t total)>& progress) const;

  // "FILE: tensor 'NAME'"
  std::string where(const GgufTensor& tensor) const;

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

  void add_matrix(const GgufTensor& tensor, const std::vector<int64_t>& shape, WeightMatrix* out);
  void add_floats(const GgufTensor& tensor, const std::vector<int64_t>& shape, FloatVector* out);
  void add_scale(const std::string& name, WeightMatrix* out);

  const GgufReader& reader_;
  std::vector<bool> used_;
  std::vector<MatrixEntry> matrices_;
  std::vector<VectorEntry> vectors_;
  uint64_t bytes_ = 0;
};

}  // namespace expertree
