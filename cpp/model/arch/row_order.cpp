#include "cpp/model/arch/row_order.h"

#include <cstring>

#include "cpp/base/error.h"

namespace expertree {

void reorder_rows(const WeightMatrix& w, const std::vector<int64_t>& order) {
  ET_CHECK(std::ssize(order) == w.rows);
  const auto row_bytes = static_cast<size_t>(w.row_bytes);
  std::vector<std::byte> sorted(order.size() * row_bytes);
  for (size_t i = 0; i < order.size(); ++i) {
    std::memcpy(sorted.data() + i * row_bytes, w.data + order[i] * w.row_bytes, row_bytes);
  }
  std::memcpy(const_cast<std::byte*>(w.data), sorted.data(), sorted.size());
}

}  // namespace expertree
