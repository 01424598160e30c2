// Where two ranks' descriptions of an optimizer's parameters part, for an error text.
//
// Pure, and of the LibTorch layer, too. A description has a line of settings, one for each
// parameter, and a last one about all.
#pragma once

#include <string>

#include "hvd/error.h"

namespace hvd {

struct RankLayout {
  int rank = 0;
  std::string text;
};

// The first lines that differ, as both ranks have them: "rank 0 has b.bias float32 [10], parameter
// 4 of 4; rank 1 has …". Of a long line what is around the difference.
HVD_API std::string layout_difference(const RankLayout& first, const RankLayout& second);

}  // namespace hvd
