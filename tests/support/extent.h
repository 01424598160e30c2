// How much of what it could run a test does run.
#pragma once

#include "runtime/base/env.h"

namespace hvd {

// In the long run of scripts/test nearly everything: deaths at every step, but for those that take
// seconds each.
inline bool thorough() { return env::get("HVD_TEST_LONG").has_value(); }

// With a sanitizer everything takes up to ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Of what is alike to a sanitizer every k-th is enough, where nothing is to be left out every one.
inline int every(int k) { return kSanitized && !thorough() ? k : 1; }

// Ranks as threads that spin on few CPUs: worlds of more than four cost a sanitizer more than all
// others together, and what they add is in the plain build.
inline int ranks_max() { return kSanitized && !thorough() ? 4 : 8; }

}  // namespace hvd
