#include "cpp/spec/selector_argument.h"

#include <charconv>
#include <sstream>

#include "cpp/base/error.h"

namespace expertree {
namespace {

std::string shown(double value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kInvalidRequest, message); }

}  // namespace

SelectorArgument::SelectorArgument(std::string selector, const std::string& text)
    : selector_(std::move(selector)), text_(text) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, comma - begin);
    const size_t equals = part.find('=');
    if (equals != std::string::npos) {
      options_.emplace_back(part.substr(0, equals), part.substr(equals + 1));
    } else if (begin == 0) {
      value_ = part;
    } else {
      refuse("selector '" + selector_ + "': '" + part.substr(0, 32) + "' is no option; write KEY=VALUE");
    }
    begin = comma + 1;
  }
}

std::string SelectorArgument::take_text() {
  value_.clear();
  options_.clear();
  return std::move(text_);
}

double SelectorArgument::number(const std::string& text, const std::string& what, double above, double most) const {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value > above && value <= most) return value;
  refuse("selector '" + selector_ + "': " + what + " must be a number above " + shown(above) + " and at most " +
         shown(most) + ", not '" + text.substr(0, 32) + "'");
}

int64_t SelectorArgument::take_integer(int64_t otherwise, int64_t least, int64_t most) {
  if (value_.empty()) return otherwise;
  const std::string text = std::exchange(value_, "");
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  refuse("selector '" + selector_ + "': its value must be an integer from " + std::to_string(least) + " to " +
         std::to_string(most) + ", not '" + text.substr(0, 32) + "'");
}

double SelectorArgument::take_number(double otherwise, double above, double most) {
  if (value_.empty()) return otherwise;
  return number(std::exchange(value_, ""), "its value", above, most);
}

double SelectorArgument::take_option(const std::string& key, double otherwise, double above, double most) {
  for (size_t i = 0; i < options_.size(); ++i) {
    if (options_[i].first != key) continue;
    const std::string text = options_[i].second;
    options_.erase(options_.begin() + static_cast<std::ptrdiff_t>(i));
    return number(text, key, above, most);
  }
  return otherwise;
}

std::string SelectorArgument::take_option(const std::string& key, std::initializer_list<const char*> words) {
  for (size_t i = 0; i < options_.size(); ++i) {
    if (options_[i].first != key) continue;
    const std::string text = options_[i].second;
    options_.erase(options_.begin() + static_cast<std::ptrdiff_t>(i));
    std::string known;
    for (const char* word : words) {
      if (text == word) return text;
      known += (known.empty() ? "" : " or ") + std::string(word);
    }
    refuse("selector '" + selector_ + "': " + key + " must be " + known + ", not '" + text.substr(0, 32) + "'");
  }
  return *words.begin();
}

void SelectorArgument::check_all_taken() const {
  if (!value_.empty()) {
    refuse("selector '" + selector_ + "' takes no value, and was given '" + value_.substr(0, 32) + "'; leave it out");
  }
  if (!options_.empty()) {
    refuse("selector '" + selector_ + "' has no option '" + options_.front().first.substr(0, 32) +
           "', or was given it twice; leave it out");
  }
}

}  // namespace expertree
