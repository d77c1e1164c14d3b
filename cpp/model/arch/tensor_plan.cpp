#include "cpp/model/arch/tensor_plan.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string_view>

#include "cpp/base/error.h"
#include "cpp/io/read_source.h"

namespace expertree {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint64_t kReadBytes = uint64_t{16} << 20;
constexpr int32_t kI32 = 26;  // GGUF type numbers of plain integers
constexpr int32_t kI64 = 27;

std::string shape_text(const int64_t* ne, int n_dims) {
  std::string text = "[";
  for (int i = 0; i < n_dims; ++i) text += (i ? ", " : "") + std::to_string(ne[i]);
  return text + "]";
}

uint64_t aligned(uint64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

const GgufTensor* TensorPlan::take(const std::string& name) {
  const GgufTensor* tensor = reader_.find_tensor(name);
  if (tensor != nullptr) used_[static_cast<size_t>(index_of(tensor))] = true;
  return tensor;
}

const GgufTensor& TensorPlan::require(const std::string& name) {
  const GgufTensor* tensor = take(name);
  if (tensor == nullptr) {
    throw Error(ErrorCode::kModelFormat, reader_.paths()[0] + ": tensor '" + name +
                                             "' is missing. The file is incomplete or was converted wrongly; get it "
                                             "again");
  }
  return *tensor;
}

void TensorPlan::check_shape(const GgufTensor& tensor, const std::vector<int64_t>& expected) const {
  bool same = true;
  for (size_t i = 0; i < 4; ++i) same = same && tensor.ne[i] == (i < expected.size() ? expected[i] : 1);
  if (same) return;
  throw Error(ErrorCode::kModelFormat,
              where(tensor) + " has shape " + shape_text(tensor.ne, tensor.n_dims) + "; expected " +
                  shape_text(expected.data(), static_cast<int>(expected.size())) +
                  " from the file's own keys. The file is damaged or was converted wrongly; get it again");
}

void TensorPlan::check(const GgufTensor& tensor, std::vector<int64_t> expected) const {
  check_shape(tensor, expected);
  if (find_dtype(tensor.gguf_type) == nullptr) {
    throw Error(ErrorCode::kUnsupported, where(tensor) + " is stored as " + gguf_type_name(tensor.gguf_type) +
                                             ", a format that expertree does not run yet; use a file in another "
                                             "quantisation, for example Q4_K_M or Q8_0");
  }
}

void TensorPlan::matrix(const std::string& name, int64_t k, int64_t rows, WeightMatrix* out) {
  add_matrix(require(name), {k, rows}, out);
  add_scale(name, out);
}

void TensorPlan::matrix_stack(const std::string& name, int64_t k, int64_t rows, int64_t n, WeightMatrix* out) {
  add_matrix(require(name), {k, rows, n}, out);
}

bool TensorPlan::optional_matrix(const std::string& name, int64_t k, int64_t rows, WeightMatrix* out) {
  const GgufTensor* tensor = take(name);
  if (tensor == nullptr) return false;
  add_matrix(*tensor, {k, rows}, out);
  add_scale(name, out);
  return true;
}

void TensorPlan::vector(const std::string& name, int64_t n, FloatVector* out) { add_floats(require(name), {n}, out); }

bool TensorPlan::optional_vector(const std::string& name, int64_t n, FloatVector* out) {
  const GgufTensor* tensor = take(name);
  if (tensor != nullptr) add_floats(*tensor, {n}, out);
  return tensor != nullptr;
}

void TensorPlan::floats(const std::string& name, const std::vector<int64_t>& shape, FloatVector* out) {
  add_floats(require(name), shape, out);
}

void TensorPlan::vector_if(Presence presence, const std::string& name, int64_t n, FloatVector* out) {
  if (presence == Presence::kRequired) vector(name, n, out);
  if (presence == Presence::kOptional) optional_vector(name, n, out);
}

std::vector<int64_t> TensorPlan::integers(const std::string& name, int64_t n) {
  const GgufTensor& tensor = require(name);
  check_shape(tensor, {n < 0 ? tensor.ne[0] : n});
  if (tensor.gguf_type != kI32 && tensor.gguf_type != kI64) {
    throw Error(ErrorCode::kModelFormat, where(tensor) + " is stored as " + gguf_type_name(tensor.gguf_type) +
                                             "; expected I32 or I64. Convert the file again");
  }
  require_memory(tensor.size_bytes, "reading " + where(tensor));
  std::vector<std::byte> raw(tensor.size_bytes);
  reader_.read_tensor(tensor, 0, tensor.size_bytes, raw.data());
  std::vector<int64_t> values(static_cast<size_t>(tensor.ne[0]));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.gguf_type == kI64) {
      std::memcpy(&values[i], raw.data() + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      int32_t value;
      std::memcpy(&value, raw.data() + i * sizeof(int32_t), sizeof(int32_t));
      values[i] = value;
    }
  }
  return values;
}

std::vector<float> TensorPlan::scales(const std::string& stem, int64_t n) {
  if (const GgufTensor* input = reader_.find_tensor(stem + ".input_scale"); input != nullptr && input->ne[0] == n) {
    take(input->name);
  }
  const GgufTensor* tensor = take(stem + ".scale");
  if (tensor == nullptr) return {};
  check(*tensor, {n});
  if (tensor->gguf_type != static_cast<int32_t>(DType::kF32)) {
    throw Error(ErrorCode::kUnsupported, where(*tensor) + " is stored as " + gguf_type_name(tensor->gguf_type) +
                                             "; scales of matrices must be F32. Convert the file again");
  }
  std::vector<float> values(static_cast<size_t>(n));
  reader_.read_tensor(*tensor, 0, tensor->size_bytes, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

void TensorPlan::leave(const std::string& prefix) {
  for (size_t i = 0; i < used_.size(); ++i) {
    if (reader_.tensors()[i].name.starts_with(prefix)) used_[i] = true;
  }
}

void TensorPlan::refuse_unused_of(const std::string& prefix) const {
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i] || !reader_.tensors()[i].name.starts_with(prefix)) continue;
    throw Error(ErrorCode::kUnsupported,
                where(reader_.tensors()[i]) +
                    " is one that this architecture does not use here; running without it would give wrong text. "
                    "The file holds a variant of the model that expertree does not know");
  }
}

uint64_t TensorPlan::bytes() const { return bytes_ + kOverreadBytes; }

void TensorPlan::load(PageBuffer* arena, const std::function<void(uint64_t, uint64_t)>& progress) const {
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
    for (uint64_t offset = 0; offset < entry.tensor->size_bytes; offset += kReadBytes) {
      const uint64_t size = std::min(kReadBytes, entry.tensor->size_bytes - offset);
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

std::string TensorPlan::where(const GgufTensor& tensor) const {
  return reader_.paths()[static_cast<size_t>(tensor.file_index)] + ": tensor '" + tensor.name + "'";
}

void TensorPlan::add_matrix(const GgufTensor& tensor, const std::vector<int64_t>& shape, WeightMatrix* out) {
  check(tensor, shape);
  const int64_t k = shape[0];
  int64_t rows = 1;
  for (size_t i = 1; i < shape.size(); ++i) rows *= shape[i];
  const auto dtype = static_cast<DType>(tensor.gguf_type);
  *out = {dtype, nullptr, rows, k, row_bytes(dtype, k)};
  matrices_.push_back({&tensor, out});
  bytes_ += aligned(tensor.size_bytes);
}

void TensorPlan::add_scale(const std::string& name, WeightMatrix* out) {
  const std::string_view weight = ".weight";
  const bool may_have_one = name.starts_with("blk.") || name == "output.weight";
  if (!may_have_one || !name.ends_with(weight)) return;
  const std::string stem = name.substr(0, name.size() - weight.size());
  const GgufTensor* tensor = reader_.find_tensor(stem + ".scale");
  // A longer one is something else (gemma4 scales what goes into its router), for the architecture to know.
  if (tensor != nullptr && tensor->n_dims == 1 && tensor->ne[0] > 1) return;
  const std::vector<float> values = scales(stem, 1);
  if (!values.empty()) out->scale = values[0];
}

void TensorPlan::add_floats(const GgufTensor& tensor, const std::vector<int64_t>& shape, FloatVector* out) {
  check(tensor, shape);
  if (static_cast<DType>(tensor.gguf_type) != DType::kF32) {
    throw Error(ErrorCode::kUnsupported, where(tensor) + " is stored as " + gguf_type_name(tensor.gguf_type) +
                                             "; norms and biases must be F32. Convert the file again");
  }
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  vectors_.push_back({&tensor, n, out});
}

}  // namespace expertree
