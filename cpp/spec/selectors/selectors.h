// One per file, for the table. Each takes from the argument what it knows.
#pragma once

#include <memory>

#include "cpp/spec/selector.h"
#include "cpp/spec/selector_argument.h"

namespace expertree {

std::unique_ptr<Selector> make_all(SelectorArgument& argument);
std::unique_ptr<Selector> make_chain(SelectorArgument& argument);
std::unique_ptr<Selector> make_threshold(SelectorArgument& argument);
std::unique_ptr<Selector> make_evict(SelectorArgument& argument);
std::unique_ptr<Selector> make_ecospec(SelectorArgument& argument);
std::unique_ptr<Selector> make_ecospec_static(SelectorArgument& argument);
std::unique_ptr<Selector> make_s2moe(SelectorArgument& argument);
std::unique_ptr<Selector> make_cascade(SelectorArgument& argument);
std::unique_ptr<Selector> make_moespec(SelectorArgument& argument);
std::unique_ptr<Selector> make_residency(SelectorArgument& argument);
std::unique_ptr<Selector> make_exhaustive(SelectorArgument& argument);

}  // namespace expertree
