#include "cli/job_record.h"

#include <cerrno>

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("job record: what an agent advises is shown cleaned and cut") {
  JobSpec spec;
  spec.size = 1;
  spec.command = {"./train"};
  JobRecord record(spec, assign_slots(std::vector<Host>{{"h1", "", 1}}, 1), Clock::now());
  proto::SpawnFailed failure;
  failure.set_error(ENOENT);
  failure.set_step("exec");
  failure.set_advice("look:\x1b[2J\n" + std::string(1u << 20, 'x'));
  const std::vector<Event> events = record.note(failure);
  REQUIRE(events.size() == 1);
  const std::string words = std::get<event::RankEnded>(events[0]).how;
  CHECK_THAT(words, Catch::Contains("exec of ./train: No such file or directory): look:?[2J?xxx"));
  CHECK(words.size() < 1000);
}
