#include "cpp/model/tree_scan.h"

#include <algorithm>

namespace expertree {
namespace {

using Children = std::vector<std::vector<int32_t>>;  // of row r at r + 1; of the state before the tree at 0

Children children_by_size(std::span<const int32_t> parents) {
  std::vector<int32_t> size(parents.size(), 1);
  for (size_t r = parents.size(); r-- > 0;) {
    if (parents[r] >= 0) size[static_cast<size_t>(parents[r])] += size[r];
  }
  Children children(parents.size() + 1);
  for (size_t r = 0; r < parents.size(); ++r) {
    children[static_cast<size_t>(parents[r] + 1)].push_back(static_cast<int32_t>(r));
  }
  for (auto& list : children) {
    std::ranges::stable_sort(list, {}, [&](int32_t row) { return size[static_cast<size_t>(row)]; });
  }
  return children;
}

}  // namespace

TreeScan plan_tree_scan(std::span<const int32_t> parents) {
  const Children children = children_by_size(parents);
  TreeScan scan;
  // A subtree to run: from the state in a slot, with the slots from `free` on at its disposal.
  struct Task {
    int32_t row;
    int32_t from;
    int32_t free;
  };
  std::vector<Task> stack;
  // The last child to run, and so the first to be pushed, may overwrite the slot that it started from.
  const auto push = [&](int32_t row, int32_t slot, int32_t free) {
    const std::vector<int32_t>& list = children[static_cast<size_t>(row + 1)];
    for (auto it = list.rbegin(); it != list.rend(); ++it) {
      const bool last = it == list.rbegin();
      stack.push_back({*it, slot, last && slot >= 0 ? slot : free});
    }
  };
  push(-1, -1, 0);
  while (!stack.empty()) {
    const Task task = stack.back();
    stack.pop_back();
    TreeScan::Segment segment{static_cast<int32_t>(scan.order.size()), 0, task.from, -1};
    int32_t row = task.row;
    scan.order.push_back(row);
    while (children[static_cast<size_t>(row + 1)].size() == 1) {
      row = children[static_cast<size_t>(row + 1)][0];
      scan.order.push_back(row);
    }
    segment.end = static_cast<int32_t>(scan.order.size());
    if (!children[static_cast<size_t>(row + 1)].empty()) {
      segment.keep = task.free;
      scan.n_slots = std::max(scan.n_slots, task.free + 1);
      push(row, task.free, task.free + 1);
    }
    scan.segments.push_back(segment);
  }
  return scan;
}

}  // namespace expertree
