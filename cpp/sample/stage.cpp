#include "cpp/sample/stage.h"

#include <algorithm>

namespace expertree {

void Candidates::sort_best(int64_t n) {
  n = std::min(n, size);
  if (sorted) return;
  if (n < size) std::nth_element(data, data + n, data + size, is_better);
  std::sort(data, data + n, is_better);
  sorted = n == size;
}

void Candidates::keep_best(int64_t n) {
  if (n >= size) return;
  if (!sorted && n < size / 8) {
    // The front of the array collects what beats the n-th best so far, and is cut back to n whenever it holds 2 n.
    int64_t filled = n;
    Candidate worst = *std::max_element(data, data + n, is_better);
    for (int64_t i = n; i < size; ++i) {
      if (!is_better(data[i], worst)) continue;
      data[filled++] = data[i];
      if (filled == 2 * n) {
        std::nth_element(data, data + n - 1, data + filled, is_better);
        worst = data[n - 1];
        filled = n;
      }
    }
    size = filled;
  }
  sort_best(n);
  size = n;
  sorted = true;
}

}  // namespace expertree
