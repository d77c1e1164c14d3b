// What keeping each expert is worth, as somebody outside says: what the policy "values" goes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cpp/base/error.h"

namespace expertree {

// From any thread.
class ExpertValues {
 public:
  explicit ExpertValues(size_t n_experts) : values_(std::make_shared<const std::vector<float>>(n_experts, 0.0f)) {}

  // [n_layers * n_experts]. Throws kInvalidRequest for another number than before.
  void set(std::vector<float> values) {
    if (values.size() != get()->size()) {
      throw Error(ErrorCode::kInvalidRequest,
                  std::to_string(values.size()) + " values of experts; expected " + std::to_string(get()->size()));
    }
    auto fresh = std::make_shared<const std::vector<float>>(std::move(values));
    const std::lock_guard<std::mutex> lock(mutex_);
    values_.swap(fresh);
  }
  std::shared_ptr<const std::vector<float>> get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return values_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const std::vector<float>> values_;
};

// Where what was said was not recorded.
inline std::shared_ptr<const ExpertValues> all_alike(int32_t n_layers, int32_t n_experts) {
  return std::make_shared<const ExpertValues>(static_cast<size_t>(n_layers) * static_cast<size_t>(n_experts));
}

}  // namespace expertree
