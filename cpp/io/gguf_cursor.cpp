#include "cpp/io/gguf_cursor.h"

#include <algorithm>
#include <utility>

#include "cpp/base/error.h"
#include "cpp/io/printable.h"

namespace expertree {

std::string GgufCursor::subject() const {
  std::string text = printable(file_.path()) + ": " + subject_.kind;
  if (!subject_.name.empty()) text += " " + printable(subject_.name);
  if (subject_.number > 0) text += " " + std::to_string(subject_.number) + " of " + std::to_string(subject_.count);
  return text;
}

void GgufCursor::fail(const std::string& text) const { throw Error(ErrorCode::kModelFormat, subject() + ": " + text); }

void GgufCursor::unsupported(const std::string& text) const {
  throw Error(ErrorCode::kUnsupported, subject() + ": " + text);
}

void GgufCursor::load(uint64_t size) {
  if (size > remaining()) {
    fail(std::to_string(size) + " bytes are expected at byte " + std::to_string(position_) + " but the file ends at " +
         std::to_string(file_.size()) + "; the download is incomplete or the file is damaged: download it again");
  }
  if (size > kMaxGgufMetadataBytes - std::min(position_, kMaxGgufMetadataBytes)) {
    unsupported("the metadata is larger than " + std::to_string(kMaxGgufMetadataBytes) +
                " bytes, far more than any model's; the file is damaged or hostile: get it from another source");
  }
  constexpr uint64_t kFirstBytes = uint64_t{1} << 20;
  const uint64_t old_size = loaded_.size();
  uint64_t new_size = std::max({position_ + size, old_size * 2, kFirstBytes});
  new_size = std::min({new_size, file_.size(), kMaxGgufMetadataBytes});
  loaded_.resize(new_size);
  file_.read_exact(old_size, new_size - old_size, loaded_.data() + old_size);
}

std::vector<std::byte> GgufCursor::release() {
  loaded_.resize(position_);
  loaded_.shrink_to_fit();
  return std::move(loaded_);
}

}  // namespace expertree
