// What to do when no file descriptor is left.
#pragma once

namespace hvd {

inline constexpr char kRaiseOpenFiles[] = "raise the limit on open files (ulimit -n)";

}  // namespace hvd
