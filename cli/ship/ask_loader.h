// Runs a program's dynamic loader, which lists what the program needs and does not run it.
#pragma once

#include <string>

#include "cli/ship/loader_answer.h"

namespace hvd {

struct LoaderQuestion {
  std::string loader, program;  // paths
  std::string libraries;        // folders to look in first, with colons; empty: none
};

// Call as spawn(). Takes 20 s at most. Throws kUnavailable when the loader cannot be run, or does
// not end.
LoaderAnswer ask_loader(const LoaderQuestion& question);

}  // namespace hvd
