// Arithmetic with default rounding and denormals kept, whatever the program has chosen for itself.
#pragma once

#include <cfenv>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvd {

#if defined(__x86_64__)

// Two instructions when the environment is the default one.
class DefaultFloatEnvironment {
 public:
  // `x87`: long double is used too.
  explicit DefaultFloatEnvironment(bool x87) : saved_(_mm_getcsr()) {
    if ((saved_ & ~kStickyFlags) != kDefault) _mm_setcsr(kDefault);
    if (x87) {
      fegetenv(&environment_);
      fesetenv(FE_DFL_ENV);
      has_environment_ = true;
    }
  }
  ~DefaultFloatEnvironment() {
    if (has_environment_) fesetenv(&environment_);
    if ((saved_ & ~kStickyFlags) != kDefault) _mm_setcsr(saved_);
  }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  static constexpr unsigned kDefault = 0x1f80;  // nearest, no FTZ, no DAZ, no traps
  static constexpr unsigned kStickyFlags = 0x3f;
  const unsigned saved_;
  bool has_environment_ = false;
  std::fenv_t environment_;
};

#else

class DefaultFloatEnvironment {
 public:
  explicit DefaultFloatEnvironment(bool) {
    std::fegetenv(&environment_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&environment_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t environment_;
};

#endif

}  // namespace hvd
