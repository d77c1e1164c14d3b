// The drafters by name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/model/model.h"
#include "cpp/spec/drafter.h"

namespace expertree {

struct DrafterContext {
  std::shared_ptr<Model> target;
  int64_t n_ctx = 0;  // of the session; 0: the target's trained context, at most 4096
};

struct DrafterRow {
  const char* name;
  const char* argument;  // "" or what it means
  const char* summary;
  std::unique_ptr<Drafter> (*make)(const std::string& argument, const DrafterContext& context);
};
std::span<const DrafterRow> drafter_table();

// spec: NAME or NAME:ARGUMENT, as on the command line ("ngram", "eagle3:head.gguf"), or several of them with + in
// between, whose trees are merged. Throws kInvalidRequest, naming what there is, and what a drafter throws for its
// argument.
// The parts of a spec. A + divides where a drafter's name follows, with nothing behind it or a colon or another +: other
// ones belong to the name of a file.
std::vector<std::string> split_drafters(const std::string& spec);

std::unique_ptr<Drafter> make_drafter(const std::string& spec, const DrafterContext& context);

}  // namespace expertree
