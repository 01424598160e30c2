// hvdrun's own words on standard output, where no job writes.
#pragma once

#include <string>

namespace hvd {

// Returns errno of what could not be written, 0: all was.
int try_print(const std::string& text);
// Of an error of try_print(): who has no reader ends as SIGPIPE would end him, and anything else is
// thrown, as kUnavailable.
void check_printed(int error);
// Both.
void print(const std::string& text);

}  // namespace hvd
