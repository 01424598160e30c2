// hvdrun's help and man page, made from the option table.
#pragma once

#include <string>

namespace hvd {

std::string short_help();  // -h: the most used options and three examples
std::string full_help();   // --help: every option, by group
std::string man_page();    // hvdrun.1, in man(7) macros

}  // namespace hvd
