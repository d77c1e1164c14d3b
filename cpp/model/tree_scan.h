// In which order a recurrence runs over a tree, and where its state must be kept meanwhile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace expertree {

// Depth first, a node's largest subtree last, so that a tree of n rows needs at most log2(n) + 1 states at a time.
struct TreeScan {
  // Rows that follow one another without a branch: each is the only child of the one before.
  struct Segment {
    int32_t begin;  // into order
    int32_t end;
    int32_t from;     // slot of the state that the first row continues; -1: the state before the tree
    int32_t keep;     // slot in which the state after the last row is kept for its children; -1: it has none
  };
  std::vector<int32_t> order;  // rows
  std::vector<Segment> segments;
  int32_t n_slots = 0;
};

// parents: of each row an earlier one, or -1.
TreeScan plan_tree_scan(std::span<const int32_t> parents);

}  // namespace expertree
