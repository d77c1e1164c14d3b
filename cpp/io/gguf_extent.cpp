// Where tensor data lies in a file, and whether it is there.
#include <algorithm>
#include <cstring>
#include <string>

#include "cpp/base/error.h"
#include "cpp/io/gguf_parse.h"
#include "cpp/io/printable.h"

namespace expertree {
namespace {

bool is_gguf_at(const File& file, uint64_t offset) {
  std::byte magic[4];
  if (offset > file.size() || file.size() - offset < sizeof(magic)) return false;
  file.read_exact(offset, sizeof(magic), magic);
  return std::memcmp(magic, "GGUF", sizeof(magic)) == 0;
}

[[noreturn]] void throw_too_short(const File& file, const GgufTensor& tensor, uint64_t end) {
  throw Error(ErrorCode::kModelFormat, printable(file.path()) + ": tensor " + printable(tensor.name) +
                                           " ends at byte " + std::to_string(end) + " but the file has only " +
                                           std::to_string(file.size()) +
                                           "; the download is incomplete or the file is damaged: download it again");
}

}  // namespace

void place_gguf_tensors(const File& file, GgufPart* part) {
  uint64_t data_end = part->data_begin;
  const GgufTensor* last = nullptr;
  for (GgufTensor& tensor : part->tensors) {
    uint64_t end = 0;
    if (__builtin_add_overflow(tensor.offset, part->data_begin, &tensor.offset) ||
        __builtin_add_overflow(tensor.offset, tensor.size_bytes, &end)) {
      throw Error(ErrorCode::kModelFormat,
                  printable(file.path()) + ": tensor " + printable(tensor.name) + " of " +
                      std::to_string(tensor.size_bytes) +
                      " bytes lies beyond what 64 bits count; the file is damaged: download it again");
    }
    if (end < data_end) continue;
    data_end = end;
    last = &tensor;
  }
  if (last != nullptr && data_end > file.size()) throw_too_short(file, *last, data_end);

  // Writers pad the last tensor; a byte splitter may have cut the padding.
  const uint64_t padded_end = (data_end + part->alignment - 1) / part->alignment * part->alignment;
  for (uint64_t at : {data_end, padded_end}) {
    if (!is_gguf_at(file, at)) continue;
    const bool is_split = part->find("split.count") != nullptr;
    throw Error(ErrorCode::kModelFormat,
                printable(file.path()) + ": a second GGUF file begins at byte " + std::to_string(at) +
                    (is_split ? "; this is a split file part with other parts joined to it by cat" : "") +
                    "; parts of a split model are not joined with cat: download the parts anew into one folder and "
                    "open the first, or join them with llama-gguf-split --merge");
  }
}

}  // namespace expertree
