// What --dry-run prints.
#include "cli/plan.h"

#include "cli/host_choice.h"

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("plan: a line a rank, the command as it would be typed, and names without values") {
  JobSpec spec;
  spec.command = {"./train", "--name", "a b"};
  spec.directory = "/data/run 1";
  spec.hosts = {{"localhost", "", 1}, {"gpu-12", "", 2, true}};
  const std::vector<std::string> variables = {"HVD_RANK", "TOKEN"};
  CHECK(plan_text(spec, assign_slots(spec.hosts, 3), variables) ==
        "rank    host       local rank\n"
        "0       localhost  0 of 1\n"
        "1       gpu-12     0 of 2\n"
        "2       gpu-12     1 of 2\n"
        "command: ./train --name 'a b'\n"
        "directory: '/data/run 1'\n"
        "not checked: 1 other host, which a dry run does not reach, and the command there\n"
        "variables: HVD_RANK TOKEN\n");
}

TEST_CASE("plan: hosts that count their GPUs are told") {
  JobSpec spec;
  spec.command = {"true"};
  spec.hosts = {{"localhost", "", 1}, {"gpu1", "", 1, true, 1}, {"gpu2", "", 1, true, 1}};
  const auto told = [&](int size, bool open) {
    spec.size_open = open;
    const std::string text = plan_text(spec, plan_slots(spec.hosts, size), {});
    const size_t at = text.find("not counted: ");
    return at == text.npos ? "" : text.substr(at, text.find('\n', at) - at);
  };
  CHECK(told(3, true) ==
        "not counted: the GPUs of 2 other hosts, each of which is a slot where none are given: "
        "there may be more ranks");
  CHECK(told(2, false) ==
        "not counted: the GPUs of 1 other host, each of which is a slot where none are given: "
        "ranks may be spread otherwise");
  CHECK(told(1, false).empty());
}

TEST_CASE("plan: what some ranks alone find has a line of its own") {
  JobSpec spec;
  spec.command = {"true"};
  spec.environment = {{"A", "1", {}}, {"B", "secret", {0, 2, 3, 4, 7}}, {"C", "", {1}}};
  spec.hosts = {{"h", "", 8}, {"gpu-12", "", 1, true}};
  const std::string text =
      plan_text(spec, assign_slots(spec.hosts, 8), std::vector<std::string>{"A"});
  CHECK(text.find("not checked") == text.npos);  // no rank is there
  CHECK(text.ends_with("variables: A\nvariable of ranks 0,2-4,7: B\nvariable of rank 1: C\n"));
}

TEST_CASE("plan: where GPUs are named each rank has one") {
  JobSpec spec;
  spec.command = {"true"};
  spec.hosts = {{"h", "", 3}};
  spec.gpus.devices = parse_gpu_list("", "4,1");
  CHECK_THAT(plan_text(spec, assign_slots(spec.hosts, 3), std::vector<std::string>{}),
             Catch::StartsWith("rank    host  local rank    GPU\n"
                               "0       h     0 of 3        4\n"
                               "1       h     1 of 3        1\n"
                               "2       h     2 of 3        4\n"));
}

TEST_CASE("plan: what an option about GPUs sets is shown, as to be typed") {
  JobSpec spec;
  spec.command = {"true"};
  spec.environment = {{"A", "1", {}, true}, {"C", "a b", {}, true}, {"B", "2", {1}, true}};
  spec.hosts = {{"h", "", 2}};
  const std::string text =
      plan_text(spec, assign_slots(spec.hosts, 2), std::vector<std::string>{"A"});
  CHECK(text.ends_with("variables: A\nset for GPUs: A=1 C='a b'\nset for GPUs of rank 1: B=2\n"));
}

TEST_CASE("plan: only variables that a rank would not have anyway are named") {
  const std::vector<std::string> before = {"HOME=/root", "RANK=7", "A=1", "B=1"};
  const std::vector<std::string> after = {"HOME=/root", "RANK=0", "A=1", "B=2", "X=", "B=3"};
  CHECK(changed_names(before, after) == std::vector<std::string>{"B", "RANK", "X"});
}
