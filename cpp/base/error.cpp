#include "cpp/base/error.h"

namespace expertree {

void throw_check_failed(const char* condition, const char* file, int line) {
  throw Error(ErrorCode::kInternal, std::string("internal check failed: ") + condition + " at " + file + ":" +
                                        std::to_string(line) + "; please report this with the model and the command");
}

}  // namespace expertree
