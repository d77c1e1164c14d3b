#include "cpp/io/printable.h"

#include <cstdint>

namespace expertree {
namespace {

// The code point of one valid character.
uint32_t code_point(std::string_view character) {
  constexpr uint32_t kFirstByteMask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  uint32_t code = static_cast<uint8_t>(character[0]) & kFirstByteMask[character.size()];
  for (char c : character.substr(1)) code = (code << 6) | (static_cast<uint8_t>(c) & 0x3f);
  return code;
}

struct Range {
  uint32_t first;
  uint32_t last;
};

// What a terminal may obey or that makes text look like other text.
constexpr Range kControls[] = {
    {0x00, 0x1f},       // C0
    {0x7f, 0x9f},       // DEL, C1
    {0x200b, 0x200f},   // zero width, writing direction
    {0x2028, 0x202e},   // line separators, writing direction
    {0x2060, 0x206f},   // invisible operators, writing direction
    {0xfeff, 0xfeff},   // byte order mark
    {0xfff9, 0xfffb},   // annotations
    {0xe0000, 0xe0fff}  // tags
};

bool is_control(std::string_view character) {
  const uint32_t code = code_point(character);
  for (const Range& range : kControls) {
    if (code >= range.first && code <= range.last) return true;
  }
  return false;
}

void append_safe(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (n > 0 && !is_control(text.substr(0, n))) {
      out->append(text.substr(0, n));
      text.remove_prefix(n);
      continue;
    }
    const uint8_t byte = static_cast<uint8_t>(text[0]);
    out->append("\\x");
    out->push_back(kHex[byte >> 4]);
    out->push_back(kHex[byte & 15]);
    text.remove_prefix(1);
  }
}

}  // namespace

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const uint8_t first = static_cast<uint8_t>(text[0]);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = static_cast<uint8_t>(text[1]);
  if (first == 0xe0 && second < 0xa0) return 0;  // overlong
  if (first == 0xed && second > 0x9f) return 0;  // surrogates
  if (first == 0xf0 && second < 0x90) return 0;  // overlong
  if (first == 0xf4 && second > 0x8f) return 0;  // above U+10FFFF
  return n;
}

bool is_plain_text(std::string_view text) {
  if (text.empty()) return false;
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    if (n == 0 || is_control(text.substr(0, n))) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out = "'";
  if (text.size() <= max_bytes) {
    append_safe(text, &out);
  } else {
    append_safe(text.substr(0, max_bytes / 3), &out);
    out.append("...");
    append_safe(text.substr(text.size() - max_bytes * 2 / 3), &out);
  }
  out.push_back('\'');
  return out;
}

}  // namespace expertree
