// The part after the colon of a selector's name on the command line: an optional value, then KEY=VALUE options, all
// separated by commas ("8,eps=0.5").
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace expertree {

// Every getter may be called once; what nobody asked for is an error. All throw kInvalidRequest, naming the selector.
class SelectorArgument {
 public:
  SelectorArgument(std::string selector, const std::string& text);

  const std::string& selector() const { return selector_; }
  // The whole text, for a selector that takes another one's name. Nothing else may be asked for then.
  std::string take_text();
  // The leading value, `otherwise` when there is none.
  int64_t take_integer(int64_t otherwise, int64_t least, int64_t most);
  double take_number(double otherwise, double above, double most);  // in (above, most]
  double take_option(const std::string& key, double otherwise, double above, double most);
  // One of the words, the first when the option was not given.
  std::string take_option(const std::string& key, std::initializer_list<const char*> words);
  void check_all_taken() const;

 private:
  double number(const std::string& text, const std::string& what, double above, double most) const;

  std::string selector_;
  std::string text_;
  std::string value_;
  std::vector<std::pair<std::string, std::string>> options_;
};

}  // namespace expertree
