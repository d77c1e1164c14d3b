// Errors that leave the library. See docs/decisions.md, "Errors".
#pragma once

#include <stdexcept>
#include <string>

namespace expertree {

// One code per Python exception class (python/expertree/errors.py).
enum class ErrorCode {
  kModelFormat,     // the file is damaged or says something impossible
  kUnsupported,     // a valid file or request that this build does not do
  kOutOfMemory,     // the machine has not enough memory
  kDevice,          // a device or the operating system failed
  kInvalidRequest,  // the caller asked for something that makes no sense
  kCancelled,       // the caller asked to stop
  kInternal,        // a bug in expertree: a check failed
};

// Message: which file, tensor or key; what was expected; what was found; what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

[[noreturn]] void throw_check_failed(const char* condition, const char* file, int line);

}  // namespace expertree

// For programmer errors only; no input may reach one.
#define ET_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::expertree::throw_check_failed(#condition, __FILE__, __LINE__))
