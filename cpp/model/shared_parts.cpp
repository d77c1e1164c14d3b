#include "cpp/model/shared_parts.h"

#include <filesystem>
#include <system_error>

namespace expertree {

// With size and time: a file that was written anew is another part.
std::string SharedParts::key_of(const std::string& kind, const std::string& path) {
  std::error_code error;
  const std::filesystem::path file(path);
  const std::filesystem::path whole = std::filesystem::weakly_canonical(file, error);
  const auto size = std::filesystem::file_size(file, error);
  const auto time = std::filesystem::last_write_time(file, error).time_since_epoch().count();
  return kind + ":" + (whole.empty() ? path : whole.string()) + ":" + std::to_string(size) + ":" + std::to_string(time);
}

std::vector<SharedParts::Part> SharedParts::parts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Part> found;
  for (const auto& [key, entry] : entries_) {
    if (!entry.part.expired()) found.push_back(entry.shown);
  }
  return found;
}

}  // namespace expertree
