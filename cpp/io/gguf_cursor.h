// Reads forward through the metadata of one GGUF file, never past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/io/file.h"

namespace expertree {

// Real files have up to about 40 MB of metadata (a 256k-token vocabulary with merges and scores).
constexpr uint64_t kMaxGgufMetadataBytes = uint64_t{1} << 30;

class GgufCursor {
 public:
  explicit GgufCursor(const File& file) : file_(file) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_.size() - position_; }

  // What error messages say is being read: "key 'general.name'". `name` must outlive the next reads.
  void set_subject(const char* kind, std::string_view name) { subject_ = {kind, name, 0, 0}; }
  // The same before the name is known: "key 3 of 20".
  void set_subject(const char* kind, uint64_t number, uint64_t count) { subject_ = {kind, {}, number, count}; }
  [[noreturn]] void fail(const std::string& text) const;         // kModelFormat, with file and subject
  [[noreturn]] void unsupported(const std::string& text) const;  // kUnsupported

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }

  // The next `size` bytes; valid until the next take. Fails when the file does not have them.
  const std::byte* take(uint64_t size) {
    if (size > loaded_.size() - position_) load(size);
    const std::byte* bytes = loaded_.data() + position_;
    position_ += size;
    return bytes;
  }

  // A string of 64-bit length and bytes; the view is valid until the next take.
  std::string_view text() {
    const uint64_t size = number<uint64_t>();
    return {reinterpret_cast<const char*>(take(size)), size};
  }

  // The file's first bytes, at least up to the position; valid until the next take.
  const std::byte* loaded() const { return loaded_.data(); }
  // The same cut at the position; nothing can be read afterwards.
  std::vector<std::byte> release();

 private:
  struct Subject {
    const char* kind;
    std::string_view name;
    uint64_t number;  // from 1; 0: none
    uint64_t count;
  };

  void load(uint64_t size);
  std::string subject() const;

  const File& file_;
  uint64_t position_ = 0;
  std::vector<std::byte> loaded_;  // the file's first bytes
  Subject subject_{"the header", {}, 0, 0};
};

}  // namespace expertree
