// Whether a draft model speaks the target's token ids.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/io/printable.h"
#include "cpp/model/arch/architecture.h"
#include "cpp/spec/drafters/model.h"

namespace expertree {
namespace {

constexpr int32_t kUnused = 5;    // tokenizer.ggml.token_type of padding
constexpr size_t kShownEntries = 5;

// Tokens of a file by id; views into the reader.
struct Vocabulary {
  std::vector<std::string_view> tokens;  // empty: the file has no tokenizer
  std::vector<bool> unused;
  int64_t n_rows = 0;  // of the embedding
};

Vocabulary read_vocabulary(const GgufReader& reader) {
  Vocabulary v;
  v.n_rows = embedding_rows(reader);
  const GgufValue* tokens = reader.find("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->type != GgufValueType::kArray || tokens->element_type != GgufValueType::kString) {
    return v;
  }
  const std::byte* cursor = tokens->data;
  for (uint64_t i = 0; i < tokens->n_elements; ++i) v.tokens.push_back(next_gguf_string(&cursor));
  v.unused.resize(v.tokens.size(), false);
  const GgufValue* types = reader.find("tokenizer.ggml.token_type");
  if (types == nullptr || types->type != GgufValueType::kArray || types->n_elements != tokens->n_elements ||
      (types->element_type != GgufValueType::kI32 && types->element_type != GgufValueType::kU32)) {
    return v;
  }
  for (size_t i = 0; i < v.unused.size(); ++i) {
    int32_t type;
    std::memcpy(&type, types->data + i * sizeof(type), sizeof(type));
    v.unused[i] = type == kUnused;
  }
  return v;
}

}  // namespace

void require_same_vocabulary(const std::string& draft_path, const std::string& target_path) {
  const GgufReader draft_reader(draft_path);
  const GgufReader target_reader(target_path);
  const Vocabulary draft = read_vocabulary(draft_reader);
  const Vocabulary target = read_vocabulary(target_reader);
  const auto refuse = [&](const std::string& difference) {
    throw Error(ErrorCode::kInvalidRequest, draft_path + ": this model cannot draft for " + target_path + ": " +
                                                difference +
                                                ". Use a draft model of the same family, with the same "
                                                "tokenizer");
  };
  if (draft.tokens.empty() || target.tokens.empty()) {
    if (draft.tokens.empty() != target.tokens.empty() || draft.n_rows != target.n_rows) {
      refuse("their vocabularies have " + std::to_string(draft.n_rows) + " and " + std::to_string(target.n_rows) +
             " entries, and " + (draft.tokens.empty() ? "the draft" : "the target") + " model's file names no tokens");
    }
    return;
  }
  const size_t n = std::max(draft.tokens.size(), target.tokens.size());
  std::string shown;
  size_t n_different = 0;
  for (size_t i = 0; i < n; ++i) {
    const bool in_draft = i < draft.tokens.size();
    const bool in_target = i < target.tokens.size();
    if (in_draft && in_target && draft.tokens[i] == target.tokens[i]) continue;
    if ((!in_draft || draft.unused[i]) && (!in_target || target.unused[i])) continue;
    if (n_different++ >= kShownEntries) continue;
    const auto text = [i](bool has, const Vocabulary& v) {
      return has ? printable(v.tokens[i], 40) : std::string("nothing");
    };
    shown += (shown.empty() ? "" : "; ") + std::to_string(i) + " is " + text(in_draft, draft) + " here and " +
             text(in_target, target) + " there";
  }
  if (n_different == 0) return;
  if (n_different > kShownEntries) shown += "; and so on";
  refuse(std::to_string(n_different) + " tokens differ: " + shown);
}

}  // namespace expertree
