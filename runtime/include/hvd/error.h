// The errors that the public API throws.
//
// Three types: Error (something asked for cannot be done), CommFailure (the world is broken),
// WorldChanged (the world is to be joined again, nothing is lost). Messages: lower case, no full
// stop; what was tried, on what, what to try next.
#pragma once

#include <stdexcept>
#include <string>

#if defined(__GNUC__)
#define HVD_API __attribute__((visibility("default")))
#define HVD_HIDDEN __attribute__((visibility("hidden")))
#else
#define HVD_API
#define HVD_HIDDEN
#endif

namespace hvd {

enum class ErrorCode {
  kInvalidArgument,  // the caller's mistake; the world lives
  kTimeout,          // a deadline passed; the text names who was waited for
  kUnavailable,      // not there now: not initialised, no launcher, a peer that left
  kUnsupported,      // cannot be done by this build or not yet; the text says what to use instead
  kInternal,         // our fault
};

class HVD_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// A peer died, or somebody gave up: every later operation of this epoch fails too. What is said
// here is the same on all survivors. `memory_untouched()`: the operation's buffers hold what they
// held before it. It is about the call that throws: on a GPU an earlier one may have returned with
// its result under way, and what that was to write may hold anything, other things on each rank.
class HVD_API CommFailure : public Error {
 public:
  CommFailure(const std::string& message, bool memory_untouched)
      : Error(ErrorCode::kUnavailable, message), memory_untouched_(memory_untouched) {}
  bool memory_untouched() const { return memory_untouched_; }

 private:
  bool memory_untouched_;
};

// Ranks were added or removed: elastic training joins the next epoch and keeps its state.
class HVD_API WorldChanged : public Error {
 public:
  using Error::Error;
};

}  // namespace hvd
