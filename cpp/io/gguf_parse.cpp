#include "cpp/io/gguf_parse.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cpp/base/error.h"
#include "cpp/io/gguf_cursor.h"
#include "cpp/io/gguf_value_reading.h"
#include "cpp/io/printable.h"
#include "cpp/tensor/dtype.h"

namespace expertree {
namespace {

constexpr uint32_t kNValueTypes = 13;
constexpr char kDamaged[] = "; the file is damaged: download it again or report it to whoever made it";

uint32_t swap_bytes(uint32_t x) { return __builtin_bswap32(x); }

uint32_t read_version(GgufCursor* cursor) {
  const uint32_t version = cursor->number<uint32_t>();
  if (version == 2 || version == 3) return version;
  if (swap_bytes(version) >= 1 && swap_bytes(version) <= 0xffff) {
    cursor->unsupported("this is a big-endian GGUF file (version " + std::to_string(swap_bytes(version)) +
                        "); only little-endian ones are read: convert it with gguf-convert-endian, or download a "
                        "little-endian file");
  }
  if (version == 1) {
    cursor->unsupported(
        "this is a GGUF file of version 1, which was in use for weeks in 2023; versions 2 and 3 are "
        "read: download the model anew");
  }
  if (version > 3 && version < 100) {
    cursor->unsupported("GGUF version " + std::to_string(version) +
                        " is newer than this build, which reads 2 and 3; "
                        "use a newer expertree, or a file of version 3");
  }
  cursor->fail("version " + std::to_string(version) + " was found, 2 or 3 expected" + kDamaged);
}

void check_bools(const GgufCursor& cursor, const std::byte* bytes, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    const int value = std::to_integer<int>(bytes[i]);
    if (value > 1) cursor.fail("a bool must be 0 or 1 but is " + std::to_string(value) + kDamaged);
  }
}

GgufValueType read_value_type(GgufCursor* cursor) {
  const uint32_t type = cursor->number<uint32_t>();
  if (type >= kNValueTypes) {
    cursor->fail("value type " + std::to_string(type) + " is unknown (0 to 12 exist)" + kDamaged);
  }
  return static_cast<GgufValueType>(type);
}

// Checks that n elements of at least `min_bytes` can be in what is left of the file, before anything is kept for them.
void check_count(const GgufCursor& cursor, uint64_t n, uint64_t min_bytes, const char* what) {
  if (n > cursor.remaining() / min_bytes) {
    cursor.fail(std::to_string(n) + " " + what + " are announced but only " + std::to_string(cursor.remaining()) +
                " bytes follow; the download is incomplete or the file is damaged: download it again");
  }
}

// `value->data` is set later, when the metadata has its final place. Returns the position of the value's bytes.
uint64_t read_array(GgufCursor* cursor, GgufValue* value) {
  value->element_type = read_value_type(cursor);
  value->n_elements = cursor->number<uint64_t>();
  if (value->element_type == GgufValueType::kArray) cursor->unsupported("arrays of arrays are not read");
  const uint64_t begin = cursor->position();
  if (value->element_type == GgufValueType::kString) {
    check_count(*cursor, value->n_elements, 8, "strings");
    for (uint64_t i = 0; i < value->n_elements; ++i) cursor->text();
  } else {
    const uint64_t element_bytes = gguf_scalar_bytes(value->element_type);
    check_count(*cursor, value->n_elements, element_bytes, "elements");
    const std::byte* bytes = cursor->take(value->n_elements * element_bytes);
    if (value->element_type == GgufValueType::kBool) check_bools(*cursor, bytes, value->n_elements);
  }
  value->size_bytes = cursor->position() - begin;
  return begin;
}

uint64_t read_value(GgufCursor* cursor, GgufValue* value) {
  value->type = read_value_type(cursor);
  if (value->type == GgufValueType::kArray) return read_array(cursor, value);
  if (value->type == GgufValueType::kString) {
    value->size_bytes = cursor->text().size();
    return cursor->position() - value->size_bytes;
  }
  value->size_bytes = gguf_scalar_bytes(value->type);
  const std::byte* bytes = cursor->take(value->size_bytes);
  if (value->type == GgufValueType::kBool) check_bools(*cursor, bytes, 1);
  return cursor->position() - value->size_bytes;
}

std::string read_name(GgufCursor* cursor, uint64_t max_bytes) {
  const uint64_t size = cursor->number<uint64_t>();
  if (size == 0) cursor->fail(std::string("the name is empty") + kDamaged);
  if (size > max_bytes) {
    cursor->fail("the name has " + std::to_string(size) + " bytes, at most " + std::to_string(max_bytes) +
                 " are allowed" + kDamaged);
  }
  std::string name(reinterpret_cast<const char*>(cursor->take(size)), size);
  if (!is_plain_text(name)) {
    cursor->fail("the name " + printable(name) + " is not plain UTF-8 text" + kDamaged);
  }
  return name;
}

// Sorted, so that no choice of names can slow look-ups down.
std::vector<uint32_t> sort_keys(const GgufCursor& cursor, const std::vector<std::string>& keys) {
  std::vector<uint32_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (keys[order[i - 1]] != keys[order[i]]) continue;
    cursor.fail("key " + printable(keys[order[i]]) + " is there twice" + kDamaged);
  }
  return order;
}

void read_keys(GgufCursor* cursor, uint64_t n_keys, GgufPart* part, std::vector<uint64_t>* value_begin) {
  for (uint64_t i = 0; i < n_keys; ++i) {
    cursor->set_subject("key", i + 1, n_keys);
    part->keys.push_back(read_name(cursor, kMaxGgufKeyBytes));
    cursor->set_subject("key", part->keys.back());
    GgufValue value{};
    value_begin->push_back(read_value(cursor, &value));
    part->values.push_back(value);
  }
  cursor->set_subject("the header", {});
  part->keys_order = sort_keys(*cursor, part->keys);
}

void read_shape(GgufCursor* cursor, GgufTensor* tensor) {
  const uint32_t n_dims = cursor->number<uint32_t>();
  if (n_dims < 1 || n_dims > 4) {
    cursor->fail("the tensor has " + std::to_string(n_dims) + " dimensions, 1 to 4 are allowed" + kDamaged);
  }
  tensor->n_dims = static_cast<int32_t>(n_dims);
  std::fill(std::begin(tensor->ne), std::end(tensor->ne), int64_t{1});
  int64_t n_elements = 1;
  for (uint32_t i = 0; i < n_dims; ++i) {
    const uint64_t ne = cursor->number<uint64_t>();
    if (ne == 0) cursor->fail("dimension " + std::to_string(i) + " of the tensor is 0" + kDamaged);
    if (ne > INT64_MAX || __builtin_mul_overflow(n_elements, static_cast<int64_t>(ne), &n_elements)) {
      cursor->fail("dimension " + std::to_string(i) + " of the tensor is " + std::to_string(ne) +
                   ", its elements are more than 64 bits count" + kDamaged);
    }
    tensor->ne[i] = static_cast<int64_t>(ne);
  }
}

void read_type(GgufCursor* cursor, GgufTensor* tensor) {
  const uint32_t number = cursor->number<uint32_t>();
  int32_t block_size = 0;
  int32_t block_bytes = 0;
  if (number > INT32_MAX || !gguf_type_layout(static_cast<int32_t>(number), &block_size, &block_bytes)) {
    const std::string name =
        number > INT32_MAX ? "unknown type " + std::to_string(number) : gguf_type_name(static_cast<int32_t>(number));
    cursor->unsupported("the tensor's format is " + name + " (number " + std::to_string(number) +
                        "); use a file in another format, or a newer expertree");
  }
  tensor->gguf_type = static_cast<int32_t>(number);
  if (tensor->ne[0] % block_size != 0) {
    cursor->fail("rows of " + std::to_string(tensor->ne[0]) + " elements are not whole blocks of " +
                 gguf_type_name(tensor->gguf_type) + " (" + std::to_string(block_size) + " elements)" + kDamaged);
  }
  uint64_t size = static_cast<uint64_t>(tensor->ne[0] / block_size);
  const int64_t factors[] = {block_bytes, tensor->ne[1], tensor->ne[2], tensor->ne[3]};
  for (int64_t factor : factors) {
    if (__builtin_mul_overflow(size, static_cast<uint64_t>(factor), &size)) {
      cursor->fail(std::string("the tensor's bytes are more than 64 bits count") + kDamaged);
    }
  }
  tensor->size_bytes = size;
}

void read_tensors(GgufCursor* cursor, uint64_t n_tensors, GgufPart* part) {
  for (uint64_t i = 0; i < n_tensors; ++i) {
    cursor->set_subject("tensor", i + 1, n_tensors);
    GgufTensor& tensor = part->tensors.emplace_back();
    tensor.name = read_name(cursor, kMaxGgufTensorNameBytes);
    cursor->set_subject("tensor", tensor.name);
    tensor.file_index = 0;
    read_shape(cursor, &tensor);
    read_type(cursor, &tensor);
    tensor.offset = cursor->number<uint64_t>();
    if (tensor.offset % part->alignment != 0) {
      cursor->fail("the tensor's offset " + std::to_string(tensor.offset) + " is not a multiple of the alignment " +
                   std::to_string(part->alignment) + kDamaged);
    }
  }
  cursor->set_subject("the header", {});
}

uint64_t read_alignment(const File& file, const GgufPart& part) {
  const GgufValue* value = part.find("general.alignment");
  if (value == nullptr) return 32;
  const std::string where = printable(file.path()) + ": key 'general.alignment'";
  if (value->type != GgufValueType::kU32) {
    throw Error(ErrorCode::kModelFormat,
                where + " must be a uint32 but is of type " + gguf_value_type_name(value->type) + kDamaged);
  }
  uint32_t alignment = 0;
  std::memcpy(&alignment, value->data, sizeof(alignment));
  if (alignment < kMinGgufAlignment || alignment > kMaxGgufAlignment || (alignment & (alignment - 1)) != 0) {
    throw Error(ErrorCode::kModelFormat, where + " is " + std::to_string(alignment) + ", a power of two from " +
                                             std::to_string(kMinGgufAlignment) + " to " +
                                             std::to_string(kMaxGgufAlignment) + " is expected" + kDamaged);
  }
  return alignment;
}

// Points the values at the bytes' present place.
void place_values(const std::byte* bytes, const std::vector<uint64_t>& value_begin, GgufPart* part) {
  for (size_t i = 0; i < part->values.size(); ++i) part->values[i].data = bytes + value_begin[i];
}

}  // namespace

const GgufValue* GgufPart::find(std::string_view key) const {
  const auto at = std::lower_bound(keys_order.begin(), keys_order.end(), key,
                                   [&](uint32_t i, std::string_view wanted) { return keys[i] < wanted; });
  return at != keys_order.end() && keys[*at] == key ? &values[*at] : nullptr;
}

GgufPart parse_gguf(const File& file) {
  GgufCursor cursor(file);
  std::byte magic[4] = {};
  file.read_exact(0, std::min<uint64_t>(file.size(), sizeof(magic)), magic);
  if (std::memcmp(magic, "GGUF", sizeof(magic)) != 0) throw_not_gguf(file);
  cursor.take(sizeof(magic));

  GgufPart part;
  part.version = read_version(&cursor);
  const uint64_t n_tensors = cursor.number<uint64_t>();
  const uint64_t n_keys = cursor.number<uint64_t>();
  // The smallest tensor and key have no name (refused later, with its own message), one dimension, a 1-byte value.
  check_count(cursor, n_tensors, 8 + 4 + 8 + 4 + 8, "tensors");
  check_count(cursor, n_keys, 8 + 4 + 1, "metadata keys");
  if (n_tensors > kMaxGgufTensors || n_keys > kMaxGgufKeys) {
    cursor.unsupported(std::to_string(n_tensors) + " tensors and " + std::to_string(n_keys) +
                       " metadata keys are announced, at most " + std::to_string(kMaxGgufTensors) + " and " +
                       std::to_string(kMaxGgufKeys) + " are read; get the file from another source");
  }
  std::vector<uint64_t> value_begin;
  read_keys(&cursor, n_keys, &part, &value_begin);
  place_values(cursor.loaded(), value_begin, &part);
  part.alignment = read_alignment(file, part);
  read_tensors(&cursor, n_tensors, &part);
  part.data_begin = (cursor.position() + part.alignment - 1) / part.alignment * part.alignment;
  part.metadata = cursor.release();
  place_values(part.metadata.data(), value_begin, &part);
  place_gguf_tensors(file, &part);
  return part;
}

}  // namespace expertree
