// A part of a test that runs as a rank, in a process of its own: the test binary started again.
//
//   const RankProgram program("sums", [] { hvd::init(); …; return 0; });   // at file scope
#pragma once

namespace hvd {

struct RankProgram {
  RankProgram(const char* name, int (*program)());
};

}  // namespace hvd
