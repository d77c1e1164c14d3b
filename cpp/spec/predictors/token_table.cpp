// Per layer and token id, how often each expert was used: learned as the model runs. A token not seen yet will use what
// the last verified token used.
#include <algorithm>
#include <unordered_map>

#include "cpp/spec/predictors/predictors.h"

namespace expertree {
namespace {

constexpr size_t kMaxBytes = size_t{32} << 20;
constexpr uint16_t kMaxCount = 60000;

struct Entry {
  uint16_t expert;
  uint16_t count;
};

class TokenTable final : public Predictor {
 public:
  explicit TokenTable(const PredictorShape& shape)
      : shape_(shape),
        n_entries_(std::min(2 * shape.n_used, shape.n_experts)),
        row_entries_(static_cast<size_t>(shape.n_layers) * static_cast<size_t>(n_entries_)),
        max_rows_(std::max<size_t>(1, kMaxBytes / std::max<size_t>(1, row_entries_ * sizeof(Entry)))) {}
  const char* name() const override { return "token-table"; }

  ExpertSets predict(int32_t root_token, const TokenTree& tree) override {
    ExpertSets sets = {shape_.n_layers, shape_.n_experts, shape_.n_used, {}};
    if (last_.empty()) return sets;
    sets.ids.reserve(static_cast<size_t>(tree.size() + 1) * last_.size());
    append(root_token, &sets.ids);
    for (const int32_t token : tree.tokens) append(token, &sets.ids);
    return sets;
  }

  void observe(std::span<const int32_t> tokens, const ExpertSets& used) override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t at = row_of(tokens[i]);  // may move the entries
      Entry* row = entries_.data() + at * row_entries_;
      for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
        Entry* entries = row + static_cast<size_t>(layer) * static_cast<size_t>(n_entries_);
        for (const int32_t expert : used.of(static_cast<int64_t>(i), layer)) count(entries, expert);
      }
    }
    if (tokens.empty()) return;
    const auto n = static_cast<std::ptrdiff_t>(shape_.n_layers) * shape_.n_used;
    const auto end = used.ids.begin() + static_cast<std::ptrdiff_t>(tokens.size()) * n;
    last_.assign(end - n, end);
  }

 private:
  // Rows hold at least the n_used experts of their first observation.
  void append(int32_t token, std::vector<int32_t>* ids) const {
    const auto found = rows_.find(token);
    if (found == rows_.end()) {
      ids->insert(ids->end(), last_.begin(), last_.end());
      return;
    }
    const Entry* row = entries_.data() + found->second * row_entries_;
    for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      const Entry* entries = row + static_cast<size_t>(layer) * static_cast<size_t>(n_entries_);
      for (int32_t i = 0; i < shape_.n_used; ++i) ids->push_back(entries[i].expert);
    }
  }

  // The token's row; a full table gives up the one that was made first.
  size_t row_of(int32_t token) {
    const auto [found, is_new] = rows_.try_emplace(token, tokens_.size());
    if (!is_new) return found->second;
    if (tokens_.size() < max_rows_) {
      tokens_.push_back(token);
      entries_.resize(entries_.size() + row_entries_, Entry{0, 0});
      return tokens_.size() - 1;
    }
    const size_t row = oldest_;
    oldest_ = (oldest_ + 1) % max_rows_;
    found->second = row;
    rows_.erase(tokens_[row]);
    tokens_[row] = token;
    std::fill_n(entries_.begin() + static_cast<std::ptrdiff_t>(row * row_entries_), row_entries_, Entry{0, 0});
    return row;
  }

  // Entries stay in order of count, the latest first among equals; a new expert takes the last place.
  void count(Entry* entries, int32_t expert) const {
    int32_t at = 0;
    while (at < n_entries_ - 1 && entries[at].count > 0 && entries[at].expert != expert) ++at;
    Entry entry = entries[at];
    if (entry.count == 0 || entry.expert != expert) entry = {static_cast<uint16_t>(expert), 0};
    ++entry.count;
    for (; at > 0 && entries[at - 1].count <= entry.count; --at) entries[at] = entries[at - 1];
    entries[at] = entry;
    if (entry.count < kMaxCount) return;
    for (int32_t i = 0; i < n_entries_; ++i) entries[i].count = static_cast<uint16_t>((entries[i].count + 1) / 2);
  }

  PredictorShape shape_;
  int32_t n_entries_;  // per layer and token
  size_t row_entries_;  // per token
  size_t max_rows_;
  std::vector<int32_t> last_;  // [n_layers][n_used]
  std::unordered_map<int32_t, size_t> rows_;
  std::vector<int32_t> tokens_;  // of each row
  std::vector<Entry> entries_;  // [rows][n_layers][n_entries_]
  size_t oldest_ = 0;
};

}  // namespace

std::unique_ptr<Predictor> make_token_table_predictor(const PredictorShape& shape) {
  return std::make_unique<TokenTable>(shape);
}

}  // namespace expertree
