// The drafters by name.
#pragma once

#include <memory>
#include <span>
#include <string>

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

// spec: NAME or NAME:ARGUMENT, as on the command line ("ngram", "eagle3:head.gguf"). Throws kInvalidRequest, naming what
// there is, and what the drafter throws for its argument.
std::unique_ptr<Drafter> make_drafter(const std::string& spec, const DrafterContext& context);

}  // namespace expertree
