// Text from files and paths made safe to put in a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace expertree {

// 'text' in single quotes: bytes of control and invisible characters and those that are not UTF-8 become \xNN, so the
// result is one line of UTF-8. Of text over `max_bytes` the middle is left out: a path keeps the name of its file.
std::string printable(std::string_view text, size_t max_bytes = 300);

// Length in bytes of the UTF-8 character that `text` starts with, 0 when it is not one (overlong forms, surrogates
// and numbers above U+10FFFF are not).
size_t utf8_length(std::string_view text);

// Not empty, UTF-8, and without control or invisible characters.
bool is_plain_text(std::string_view text);

}  // namespace expertree
