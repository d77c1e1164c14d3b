// Trained parts that several sessions of a model draft with: one copy, as long as anybody has it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace expertree {

class SharedParts {
 public:
  struct Part {
    std::string purpose;  // "eagle3:head.gguf"
    uint64_t size_bytes;
  };

  // The part of this kind that was loaded from the file, as it is on disk now, or else what `load` gives. size_bytes: of
  // the memory that it takes. What `load` throws is thrown. From any thread; others wait while a part is loaded.
  template <typename T>
  std::shared_ptr<const T> get(const std::string& kind, const std::string& path,
                               const std::function<std::shared_ptr<const T>()>& load,
                               const std::function<uint64_t(const T&)>& size_bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[key_of(kind, path)];
    if (auto part = std::static_pointer_cast<const T>(entry.part.lock())) return part;
    const std::shared_ptr<const T> part = load();
    entry = {part, {kind + ":" + path, size_bytes(*part)}};
    return part;
  }

  // Those that somebody has, by purpose.
  std::vector<Part> parts() const;

 private:
  struct Entry {
    std::weak_ptr<const void> part;
    Part shown;
  };
  static std::string key_of(const std::string& kind, const std::string& path);

  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace expertree
