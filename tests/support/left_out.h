// A case of a test that has no right to what it needs, or a machine that lacks it.
#pragma once

#include <fstream>
#include <iostream>
#include <string>

#include "runtime/base/env.h"

namespace hvd {

inline constexpr const char* kNotRoot = "only root can give a file to another user";

// scripts/test lists them, and in CI takes none: what could not be judged must not hide behind a
// test that passes.
inline void note_left_out(const std::string& what, const std::string& why) {
  std::cout << "left out: " << what << ": " << why << '\n';
  if (const auto path = env::get("HVD_TESTS_LEFT_OUT"))
    std::ofstream(*path, std::ios::app) << what << ": " << why << '\n';
}

}  // namespace hvd
