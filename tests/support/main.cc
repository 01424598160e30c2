// main() of every Catch2 test program.
#define CATCH_CONFIG_MAIN
#include "tests/support/catch.h"
