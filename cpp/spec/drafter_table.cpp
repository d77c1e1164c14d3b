#include "cpp/spec/drafter_table.h"

#include <utility>

#include "cpp/base/error.h"
#include "cpp/spec/drafters/eagle3.h"
#include "cpp/spec/drafters/medusa.h"
#include "cpp/spec/drafters/merged.h"
#include "cpp/spec/drafters/model.h"
#include "cpp/spec/drafters/mtp.h"
#include "cpp/spec/drafters/ngram.h"

namespace expertree {
namespace {

std::unique_ptr<Drafter> make_ngram(const std::string&, const DrafterContext&) {
  return std::make_unique<NgramDrafter>();
}

std::unique_ptr<Drafter> make_eagle3(const std::string& argument, const DrafterContext& context) {
  return make_eagle3_drafter(argument, context.target);
}

std::unique_ptr<Drafter> make_medusa(const std::string& argument, const DrafterContext& context) {
  return make_medusa_drafter(argument, context.target);
}

std::unique_ptr<Drafter> make_model(const std::string& argument, const DrafterContext& context) {
  return make_model_drafter(argument, context.target, context.n_ctx);
}

std::unique_ptr<Drafter> make_mtp(const std::string&, const DrafterContext& context) {
  return make_mtp_drafter(context.target, context.n_ctx);
}

constexpr DrafterRow kDrafters[] = {
    {"ngram", "", "what followed the last tokens earlier in the text; needs no model", make_ngram},
    {"eagle3", "FILE", "an EAGLE-3 head trained for this model", make_eagle3},
    {"medusa", "FILE", "Medusa heads trained for this model", make_medusa},
    {"mtp", "", "the block that some models carry to predict further tokens", make_mtp},
    {"model", "FILE", "a smaller model with the same vocabulary", make_model},
};

bool begins_with_drafter(const std::string& text) {
  for (const DrafterRow& row : kDrafters) {
    const std::string name = row.name;
    if (text.compare(0, name.size(), name) != 0) continue;
    if (text.size() == name.size() || text[name.size()] == ':' || text[name.size()] == '+') return true;
  }
  return false;
}

std::string known_drafters() {
  std::string names;
  for (const DrafterRow& row : kDrafters) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    if (*row.argument != '\0') names += ":" + std::string(row.argument);
  }
  return names;
}

}  // namespace

std::span<const DrafterRow> drafter_table() { return kDrafters; }

std::vector<std::string> split_drafters(const std::string& spec) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at = spec.find('+'); at != std::string::npos; at = spec.find('+', at + 1)) {
    if (!begins_with_drafter(spec.substr(at + 1))) continue;
    parts.push_back(spec.substr(begin, at - begin));
    begin = at + 1;
  }
  parts.push_back(spec.substr(begin));
  return parts;
}

std::unique_ptr<Drafter> make_drafter(const std::string& spec, const DrafterContext& context) {
  const std::vector<std::string> parts = split_drafters(spec);
  if (parts.size() > 1) {
    std::vector<std::unique_ptr<Drafter>> drafters;
    for (const std::string& part : parts) drafters.push_back(make_drafter(part, context));
    return std::make_unique<MergedDrafter>(std::move(drafters), context.target->hyperparameters().n_embd);
  }
  const size_t colon = spec.find(':');
  const std::string name = spec.substr(0, colon);
  const std::string argument = colon == std::string::npos ? "" : spec.substr(colon + 1);
  for (const DrafterRow& row : kDrafters) {
    if (name != row.name) continue;
    const bool takes_argument = *row.argument != '\0';
    if (takes_argument == argument.empty()) {
      throw Error(ErrorCode::kInvalidRequest,
                  "drafter '" + spec.substr(0, 64) + "': " + name +
                      (takes_argument ? " needs an argument, " + name + ":" + row.argument : " takes no argument"));
    }
    return row.make(argument, context);
  }
  throw Error(ErrorCode::kInvalidRequest,
              "there is no drafter '" + spec.substr(0, 64) + "'; there are: " + known_drafters());
}

}  // namespace expertree
