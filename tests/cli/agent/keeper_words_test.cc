// How a keeper tells of its agent's end.
#include "cli/agent/keeper_words.h"

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("keeper words: how its agent ended is read from its line") {
  constexpr std::string_view kLine =
      "keeper: the agent (pid 71) was killed by SIGKILL; ended 2 processes that it left";
  CHECK(how_agent_ended(kLine, 71) == "was killed by SIGKILL");
  CHECK(how_agent_ended(kLine, 0) == "was killed by SIGKILL");
  CHECK(how_agent_ended(agents_end(71, "exited with code 3"), 71) == "exited with code 3");
}

TEST_CASE("keeper words: no other line, and none of another agent, tells how an agent ended") {
  for (const char* line :
       {"", "keeper: the agent (pid ", "keeper: the agent (pid 71", "keeper: the agent (pid 71)",
        "keeper: the agent (pid ) was lost", "keeper: the agent (pid 7x) was lost",
        "keeper: the agent (pid 99999999999) was lost", "keeper: cannot start the agent: no room",
        "agent: keeper: the agent (pid 71) was lost", "keeper: the agent (pid 72) was lost"})
    CHECK(how_agent_ended(line, 71).empty());
}
