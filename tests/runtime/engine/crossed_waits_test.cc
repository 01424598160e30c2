// Who waits for whom across calls and the log, by literals.
#include "runtime/engine/crossed_waits.h"

#include <vector>

#include "runtime/engine/log_words.h"
#include "runtime/engine/text_hash.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

RankWait in_call(const char* name, uint64_t number) { return {text_hash(name), number}; }
RankWait in_log(const char* name, uint64_t calls) {
  return {text_hash(name), LogWords::kInLog | calls};
}
RankWait in_step(uint64_t calls = 0, uint32_t steps = 1) {
  return {calls, LogWords::kOfList | 7, steps};
}
RankWait in_call(uint64_t number, uint32_t steps) { return {0, number, steps}; }
const RankWait kComputing{};

std::optional<CrossedWaits> find(const std::vector<WaitingName>& waiting,
                                 const std::vector<RankWait>& waits) {
  return find_crossed_waits(waiting, waits);
}

std::optional<CrossedStep> find_step(const std::vector<RankWait>& waits) {
  return find_crossed_step(waits);
}

}  // namespace

TEST_CASE("crossed waits: who calls and who submits one name and waits are both named") {
  const std::vector<WaitingName> waiting = {{"other", 0, {1}}, {"x", 4, {0, 2}}};
  CHECK(find(waiting, {kComputing, in_log("x", 8), in_call("x", 9)}) ==
        CrossedWaits{"x", "", 2, 1});
  CHECK(find(waiting, {in_call("x", 9), in_log("x", 8), in_step()}) == CrossedWaits{"x", "", 0, 1});
}

TEST_CASE(
    "crossed waits: the submitter may wait for something else that the caller has not asked") {
  CHECK(find({{"x", 0, {0}}, {"y", 0, {0}}}, {in_call("x", 2), in_log("y", 1)}) ==
        CrossedWaits{"x", "", 0, 1});
  // The caller has asked for it, another one has not: that one may come.
  CHECK_FALSE(
      find({{"x", 0, {0, 2}}, {"y", 0, {2}}}, {in_call("x", 2), in_log("y", 1), kComputing}));
}

TEST_CASE("crossed waits: who has made that call, too, shows that the caller's word is old") {
  const std::vector<WaitingName> waiting = {{"x", 0, {0}}};
  CHECK(find(waiting, {in_call("x", 9), in_log("x", 8)}));
  CHECK_FALSE(find(waiting, {in_call("x", 9), in_log("x", 9)}));
  CHECK_FALSE(find(waiting, {in_call("x", 9), in_log("x", 20)}));
}

TEST_CASE("crossed waits: who is on its way is not in anybody's") {
  const std::vector<WaitingName> waiting = {{"x", 0, {0}}};
  CHECK_FALSE(find(waiting, {in_call("x", 9), kComputing}));
  CHECK_FALSE(find(waiting, {in_call("x", 9), in_step()}));
  CHECK_FALSE(find(waiting, {in_call("x", 9), in_call("x", 8)}));
  CHECK_FALSE(find(waiting, {in_call("y", 9), in_log("x", 8)}));
  CHECK_FALSE(find(waiting, {in_log("x", 9), in_log("x", 8)}));
  CHECK_FALSE(find(waiting, {in_step(), in_log("x", 8)}));
  // What it waits for is decided, or it has not asked for it: its own word is old.
  CHECK_FALSE(find(waiting, {in_call("x", 9), in_log("y", 8)}));
  CHECK_FALSE(find({{"x", 0, {0}}, {"y", 0, {0, 1}}}, {in_call("x", 9), in_log("y", 8)}));
  CHECK_FALSE(find({}, {in_call("x", 9), in_log("x", 8)}));
}

TEST_CASE("crossed waits: what has no name, on a GPU here, is no call of another rank") {
  const char* const name = "allreduce.noname.4";
  const std::vector<WaitingName> waiting = {{name, 0, {0}, {}, "allreduce float32 [3] on a GPU"}};
  const auto found = find(waiting, {in_call(9, 0), in_log(name, 8)});
  CHECK(found == CrossedWaits{name, waiting[0].asked, 0, 1});
  CHECK(find(waiting, {in_call("x", 9), in_log(name, 8)}));  // whatever that one is called
  CHECK_FALSE(find(waiting, {in_call(9, 0), in_log(name, 9)}));
  CHECK_FALSE(find(waiting, {in_call(9, 0), in_log("allreduce.noname.5", 8)}));
  CHECK_FALSE(find(waiting, {in_call(9, 0), kComputing}));
  CHECK_FALSE(find(waiting, {in_step(), in_log(name, 8)}));
  CHECK(crossed_text(*found, "broadcast float32 [2]", "rank 0", "rank 1") ==
        "rank 0 waits in broadcast float32 [2], rank 1 in allreduce float32 [3] on a GPU; make the "
        "same calls, in the same order and on the same kind of device, on all ranks");
}

TEST_CASE("crossed waits: one name on a GPU here and on the CPU there is said to be") {
  CHECK(crossed_text({"x", "broadcast \"x\" float32 [3] on a GPU from rank 0", 0, 1}, "", "rank 0",
                     "rank 1") ==
        "\"x\" is on the CPU on rank 0 and on a GPU on rank 1; have it on the same kind of device "
        "on all ranks");
}

TEST_CASE("crossed waits: a call and a step, each before the other") {
  CHECK(find_step({kComputing, in_step(3, 8), in_call(4, 7)}) == CrossedStep{1, 2});
  CHECK(find_step({in_call(9, ~0u), in_step(3, 0)}) == CrossedStep{1, 0});  // steps start over
}

TEST_CASE("crossed waits: two lists' steps, each before the other") {
  const RankWait other{3, LogWords::kOfList | 8, 8};
  CHECK(find_step({kComputing, in_step(3, 8), other}) == CrossedStep{1, 2});
  CHECK_FALSE(find_step({in_step(3, 9), other}));  // it has left the other's behind
  CHECK_FALSE(find_step({in_step(3, 7), other}));
}

TEST_CASE("crossed waits: who is behind or ahead in both calls and steps is in nobody's way") {
  for (const RankWait& step : {in_step(4, 8), in_step(5, 8), in_step(3, 7), in_step(3, 1)})
    CHECK_FALSE(find_step({step, in_call(4, 7)}));
  CHECK_FALSE(find_step({in_call(9, 0), in_step(9, ~0u)}));
  CHECK_FALSE(find_step({in_call(4, 7), in_call(5, 8), kComputing}));
  CHECK_FALSE(find_step({in_step(4, 7), in_step(5, 8), kComputing}));
  CHECK_FALSE(find_step({in_step(4, 7), in_step(4, 7)}));
  // What is waited for in the log may come from another thread.
  CHECK_FALSE(find_step({in_log("x", 4), in_step(3, 8)}));
}
