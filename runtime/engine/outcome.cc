// Outcomes as exceptions.
#include "runtime/engine/outcome.h"

#include "collectives/describe.h"
#include "runtime/base/error.h"

namespace hvd {

std::exception_ptr error_of(const Operation& operation, const EpochEnd& end) {
  const Outcome outcome = operation.outcome.load(std::memory_order_acquire);
  switch (outcome) {
    case Outcome::kComplete:
      return nullptr;
    case Outcome::kRefused:
      return std::make_exception_ptr(Error(operation.code, operation.error));
    case Outcome::kFailedUntouched:
    case Outcome::kFailedUndefined:
      return std::make_exception_ptr(CommFailure(describe(operation) + " failed: " + end.reason(),
                                                 outcome == Outcome::kFailedUntouched));
    case Outcome::kPending:
      break;
  }
  HVD_CHECK(false, "an operation that is not resolved has no outcome");
}

void tell(const std::exception_ptr& error, StatusPage& page) {
  try {
    std::rethrow_exception(error);
  } catch (const CommFailure&) {
    page.told.store(1, std::memory_order_relaxed);
    throw;
  }
}

}  // namespace hvd
