// How a role of the program shows in ps, and to whom `pkill hvdrun` means.
#pragma once

namespace hvd {

// Overwrites the whole argument area and the kernel's short name. `pkill -9 -f hvdrun` must hit the
// launcher alone: keeper and agent are what ends the job then.
void set_process_name(int argc, char** argv, const char* name);

}  // namespace hvd
