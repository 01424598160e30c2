// What workers are started from, as hvdrun's agents are told it.
#include "cli/messages.h"

#include "cli/agent/worker_environment.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using Entries = std::vector<std::string>;

JobSpec job(std::vector<EnvironmentSetting> environment, std::string directory = "") {
  JobSpec spec;
  spec.command = {"./train"};
  spec.environment = std::move(environment);
  spec.directory = std::move(directory);
  return spec;
}

StartState started_with(Entries environment) {
  StartState start;
  start.environment = std::move(environment);
  start.directory = "/here";
  return start;
}

Entries words(const auto& field) { return {field.begin(), field.end()}; }

}  // namespace

TEST_CASE("messages: what -x passes on but is not set here stays what hvdrun makes it") {
  const StartState start = started_with({"MASTER_PORT=7"});
  const JobSpec spec = job({{"MASTER_ADDR", {}}, {"MASTER_PORT", {}}, {"DISPLAY", {}}});
  proto::StartWorkers message = start_message(spec, start, {World{}}, 0, 1);
  CHECK(words(message.chosen()) == Entries{"MASTER_PORT"});
  WorkerPlace place;
  place.master_address = "gpu1";
  place.master_port = 5;
  const Entries all =
      worker_environment(words(message.environment()), words(message.chosen()), place);
  CHECK(value_in(all, "MASTER_ADDR", "") == "gpu1");
  CHECK(value_in(all, "MASTER_PORT", "") == "7");
}

TEST_CASE("messages: another host looks for the directory by the name that the user went by, too") {
  StartState start = started_with({});
  const auto named = [&](const std::string& directory) {
    proto::StartWorkers message;
    make_remote(job({}, directory), start, message);
    return message.directory() + " " + message.named_directory();
  };
  CHECK(named("") == "/here ");
  start.named_directory = "/by/link";
  CHECK(named("") == "/here /by/link");
  CHECK(named("d") == "/here/d /by/link/d");
  CHECK(named("../d") == "/d ");
  CHECK(named("/d") == "/d ");
}

TEST_CASE("messages: another host's session keeps what -x does not give") {
  const StartState start = started_with(
      {"HOME=/h", "DISPLAY=:1", "TMPDIR=/t", "KRB5CCNAME=FILE:/t/k", "SSH_CLIENT=::1"});
  proto::StartWorkers message;
  const auto own = [&](std::vector<EnvironmentSetting> settings) {
    const JobSpec spec = job(std::move(settings));
    message = start_message(spec, start, {World{}}, 0, 1);
    make_remote(spec, start, message);
    return words(message.own());
  };
  CHECK(own({}).size() == names_of_session().size());
  CHECK(words(message.environment()).empty());
  const Entries most = own({{"DISPLAY", {}}, {"USER", {}}, {"TMPDIR", "/x"}, {"HOME", "/y", {0}}});
  CHECK(most.size() == names_of_session().size() - 2);
  CHECK(words(message.environment()) == Entries{"DISPLAY=:1", "TMPDIR=/x"});
  own({{"SSH_CLIENT", {}}});
  CHECK(words(message.environment()) == Entries{"SSH_CLIENT=::1"});
}

TEST_CASE("messages: how many threads ranks have is told, of several hosts together") {
  CHECK(threads_note(job({}), {{0, 2}}, true) ==
        "OMP_NUM_THREADS=2 for each rank, its share of this machine's CPUs; set it to choose "
        "otherwise");
  CHECK(threads_note(job({}), {{0, 0}, {1, 4}, {2, 2}, {3, 4}}, false) ==
        "OMP_NUM_THREADS=2 to 4 for each rank, its share of its host's CPUs; set it to choose "
        "otherwise");
  EnvironmentSetting of_one{"OMP_NUM_THREADS", "1"};
  of_one.ranks = {1};
  CHECK(threads_note(job({of_one}), {{0, 2}, {1, 2}}, false) ==
        "OMP_NUM_THREADS=2 for each rank that has none of its own, its share of its host's CPUs; "
        "set it to choose otherwise");
  CHECK(threads_note(job({}), {{0, 0}}, true).empty());
}

// An agent cleans what its ranks have written; but a host may have another agent than ours.
TEST_CASE("messages: what an agent tells of a rank moves no cursor") {
  const std::string hostile = "was in \x1b[2J\n\xc2\x9bx", shown = "was in ?[2J??x";
  proto::RankEnd end;
  end.mutable_last()->set_doing(hostile);
  end.mutable_last()->set_waited_in_vain(hostile);
  end.mutable_last()->set_given_up(hostile);
  CHECK(from_proto(end).doing == shown);
  CHECK(from_proto(end).waited_in_vain == shown);
  CHECK(from_proto(end).given_up == shown);
  proto::RankStatus status;
  status.set_claimed(true);
  status.set_doing(hostile);
  CHECK(describe(status) == "rank 0 " + shown);
}

TEST_CASE("messages: what some ranks alone find goes to their host, and once") {
  std::vector<World> worlds(100);
  for (int i = 0; i < 100; ++i) worlds[size_t(i)].rank = 50 + i;
  std::vector<int> ranks(100);
  for (int i = 0; i < 100; ++i) ranks[size_t(i)] = i;
  const std::string large(90'000, 'x');
  const JobSpec spec = job({{"A", "all"}, {"A", large, ranks}, {"A", "2", {60}}, {"B", "3", {7}}});
  const proto::StartWorkers message = start_message(spec, started_with({}), worlds, 0, 1);
  REQUIRE(message.of_ranks_size() == 2);
  CHECK(message.of_ranks(0).entry() == "A=" + large);
  CHECK(message.of_ranks(0).ranks_size() == 50);
  CHECK(message.of_ranks(0).ranks(0) == 50);
  CHECK(message.of_ranks(1).entry() == "A=2");
  CHECK(message.ByteSizeLong() < 100'000);
}

TEST_CASE("messages: with --wdir PWD is that directory, unless -x gives it") {
  const StartState start = started_with({"PWD=/here"});
  CHECK(users_environment(job({}, "d"), start) == Entries{"PWD=/here/d"});
  CHECK(users_environment(job({{"PWD", {}}}, "d"), start) == Entries{"PWD=/here"});
  CHECK(users_environment(job({{"PWD", "/x"}}, "d"), start) == Entries{"PWD=/x"});
  CHECK(users_environment(job({{"PWD", {}}}, "d"), started_with({})) == Entries{"PWD=/here/d"});
}

}  // namespace hvd
