// All substrings of a growing token sequence, with how often each occurs. Blumer et al., "The smallest automaton
// recognizing the subwords of a text" (1985); online, amortised constant time and at most two states per token.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace expertree {

class SuffixAutomaton {
 public:
  struct Edge {
    int32_t token;
    int32_t state;
  };

  SuffixAutomaton() { clear(); }
  void clear();
  void extend(int32_t token);

  static constexpr int32_t kRoot = 0;  // the empty string
  // The longest suffix of the sequence that also occurs earlier in it; kRoot when even the last token is new.
  int32_t repeated_suffix() const { return states_[static_cast<size_t>(last_)].link < 0 ? kRoot : state(last_).link; }
  // Tokens that follow the state's strings, by token id.
  std::span<const Edge> edges(int32_t s) const { return state(s).edges; }
  // The next shorter suffix that occurs in more places; -1 for the root.
  int32_t link(int32_t s) const { return state(s).link; }
  // Length of the state's longest string.
  int32_t length(int32_t s) const { return state(s).length; }
  // How often the state's strings occur. Exact for the kCountedSuffixes longest repeated suffixes at every token, which
  // is all of them but in text that repeats itself throughout; an underestimate for shorter ones there.
  int32_t count(int32_t s) const { return state(s).count; }

  static constexpr int kCountedSuffixes = 32;

 private:
  struct State {
    int32_t length;
    int32_t link;
    int32_t count;
    std::vector<Edge> edges;  // by token
  };
  const State& state(int32_t s) const { return states_[static_cast<size_t>(s)]; }
  State& state(int32_t s) { return states_[static_cast<size_t>(s)]; }
  // Where the token leads, or nullptr.
  Edge* find(int32_t s, int32_t token);
  int32_t split(int32_t from, int32_t token, int32_t to);

  std::vector<State> states_;
  int32_t last_ = kRoot;
};

}  // namespace expertree
