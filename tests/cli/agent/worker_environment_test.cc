// What a worker finds in its environment.
#include "cli/agent/worker_environment.h"

#include <algorithm>

#include "cli/help.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

WorkerPlace place() {
  WorkerPlace place;
  place.world = {.epoch = 0,
                 .rank = 3,
                 .size = 4,
                 .local_rank = 1,
                 .local_size = 2,
                 .cross_rank = 1,
                 .cross_size = 2,
                 .host = "gpu1"};
  place.job = "job-1";
  place.agent_address = "@address";
  place.master_address = "127.0.0.1";
  place.master_port = 1234;
  place.threads_each = 2;
  place.group_rank = 5;
  place.group_size = 6;
  return place;
}

using Entries = std::vector<std::string>;

int count_of(const Entries& entries, const std::string& name) {
  return int(std::count_if(entries.begin(), entries.end(), [&](const std::string& entry) {
    return entry.rfind(name + "=", 0) == 0;
  }));
}

}  // namespace

TEST_CASE(
    "worker environment: says where the worker stands, in hvdrun's, Horovod's and torchrun's "
    "words") {
  const Entries all = worker_environment({}, {}, place());
  const std::pair<const char*, const char*> wanted[] = {
      {"HVD_AGENT", "@address"},
      {"HVD_RANK", "3"},
      {"HVD_SIZE", "4"},
      {"HVD_LOCAL_RANK", "1"},
      {"HVD_LOCAL_SIZE", "2"},
      {"HVD_CROSS_RANK", "1"},
      {"HVD_CROSS_SIZE", "2"},
      {"HOROVOD_RANK", "3"},
      {"HOROVOD_SIZE", "4"},
      {"HOROVOD_LOCAL_RANK", "1"},
      {"HOROVOD_LOCAL_SIZE", "2"},
      {"HOROVOD_CROSS_RANK", "1"},
      {"HOROVOD_CROSS_SIZE", "2"},
      {"HOROVOD_HOSTNAME", "gpu1"},
      {"RANK", "3"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "4"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"GROUP_RANK", "5"},
      {"GROUP_WORLD_SIZE", "6"},
      {"ROLE_RANK", "3"},
      {"ROLE_WORLD_SIZE", "4"},
      {"TORCHELASTIC_RUN_ID", "job-1"},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "1234"},
      {"OMP_NUM_THREADS", "2"},
      {"NCCL_LAUNCH_ORDER_IMPLICIT", "1"},
      {"PYTHONUNBUFFERED", "1"},
  };
  for (const auto& [name, value] : wanted) {
    CAPTURE(name);
    CHECK(value_in(all, name, "(none)") == value);
    CHECK(count_of(all, name) == 1);
  }
  CHECK_FALSE(is_set_in(all, "TORCHELASTIC_USE_AGENT_STORE"));
  CHECK_FALSE(is_set_in(all, "HOROVOD_GLOO_RENDEZVOUS_ADDR"));
}

TEST_CASE("worker environment: what another launcher left is replaced, the rest stays") {
  const Entries users = {"PATH=/bin",
                         "RANK=77",
                         "MASTER_PORT=1",
                         "HVD_AGENT=@outer",
                         "TORCHELASTIC_USE_AGENT_STORE=True",
                         "EMPTY=",
                         "BASH_FUNC_x%%=() { :; }"};
  const Entries all = worker_environment(users, {}, place());
  CHECK(value_in(all, "RANK", "") == "3");
  CHECK(count_of(all, "RANK") == 1);
  CHECK(value_in(all, "MASTER_PORT", "") == "1234");
  CHECK(value_in(all, "HVD_AGENT", "") == "@address");
  CHECK_FALSE(is_set_in(all, "TORCHELASTIC_USE_AGENT_STORE"));
  CHECK(value_in(all, "PATH", "") == "/bin");
  CHECK(is_set_in(all, "EMPTY"));
  CHECK(is_set_in(all, "BASH_FUNC_x%%"));
}

TEST_CASE(
    "worker environment: the interface is named where there are other hosts, and none is set") {
  WorkerPlace several = place();
  several.interface = "ens5";
  const Entries all = worker_environment({}, {}, several);
  CHECK(value_in(all, "NCCL_SOCKET_IFNAME", "") == "=ens5");
  CHECK(value_in(all, "GLOO_SOCKET_IFNAME", "") == "ens5");
  const Entries users = {"NCCL_SOCKET_IFNAME=eth", "GLOO_SOCKET_IFNAME="};
  const Entries set = worker_environment(users, {}, several);
  CHECK(value_in(set, "NCCL_SOCKET_IFNAME", "") == "eth");
  CHECK(value_in(set, "GLOO_SOCKET_IFNAME", "x").empty());
  CHECK_FALSE(is_set_in(worker_environment({}, {}, place()), "GLOO_SOCKET_IFNAME"));
  CHECK_FALSE(is_set_in(all, "NCCL_SOCKET_FAMILY"));
  several.interface_by_ipv6 = true;
  CHECK(value_in(worker_environment({}, {}, several), "NCCL_SOCKET_FAMILY", "") == "AF_INET6");
  const Entries family = {"NCCL_SOCKET_FAMILY=AF_INET"};
  CHECK(value_in(worker_environment(family, {}, several), "NCCL_SOCKET_FAMILY", "") == "AF_INET");
  WorkerPlace alone = place();
  alone.interface = "lo";
  CHECK(value_in(worker_environment({}, {}, alone), "NCCL_SOCKET_IFNAME", "") == "=lo");
  const Entries chosen = {"MASTER_ADDR"};
  const Entries elsewhere = {"MASTER_ADDR=10.0.0.1"};
  CHECK_FALSE(is_set_in(worker_environment(elsewhere, chosen, alone), "NCCL_SOCKET_IFNAME"));
  CHECK(is_set_in(worker_environment(elsewhere, chosen, several), "NCCL_SOCKET_IFNAME"));
}

TEST_CASE("worker environment: the user's own choices stay") {
  const Entries users = {"OMP_NUM_THREADS=7",
                         "NCCL_LAUNCH_ORDER_IMPLICIT=0",
                         "PYTHONUNBUFFERED=",
                         "MASTER_ADDR=10.0.0.1",
                         "MASTER_PORT=5",
                         "RANK=9",
                         "TORCHELASTIC_USE_AGENT_STORE=True"};
  const Entries chosen = {"MASTER_ADDR", "MASTER_PORT", "RANK", "TORCHELASTIC_USE_AGENT_STORE"};
  const Entries all = worker_environment(users, chosen, place());
  CHECK(value_in(all, "OMP_NUM_THREADS", "") == "7");
  CHECK(value_in(all, "NCCL_LAUNCH_ORDER_IMPLICIT", "") == "0");
  CHECK(value_in(all, "PYTHONUNBUFFERED", "x").empty());
  CHECK(value_in(all, "MASTER_ADDR", "") == "10.0.0.1");
  CHECK(value_in(all, "MASTER_PORT", "") == "5");
  CHECK(value_in(all, "TORCHELASTIC_USE_AGENT_STORE", "") == "True");
  CHECK(value_in(all, "RANK", "") == "3");  // a rank is not a matter of choice
}

TEST_CASE("worker environment: without a port of ours or the user's there is no master") {
  WorkerPlace lonely = place();
  lonely.master_port = 0;
  lonely.threads_each = 0;
  lonely.agent_address.clear();
  const Entries all = worker_environment({}, {}, lonely);
  CHECK_FALSE(is_set_in(all, "MASTER_PORT"));
  CHECK_FALSE(is_set_in(all, "MASTER_ADDR"));
  const Entries users = {"MASTER_PORT=5"}, chosen = {"MASTER_PORT"};
  const Entries own = worker_environment(users, chosen, lonely);
  CHECK(value_in(own, "MASTER_PORT", "") == "5");
  CHECK(value_in(own, "MASTER_ADDR", "") == lonely.master_address);
  CHECK_FALSE(is_set_in(all, "OMP_NUM_THREADS"));
  CHECK_FALSE(is_set_in(all, "HVD_AGENT"));
}

TEST_CASE("worker environment: the help names every variable that a worker finds set") {
  std::string words = full_help();
  for (char& letter : words)
    if (letter == ',' || letter == '\n') letter = ' ';
  for (const std::string& entry : worker_environment({}, {}, place())) {
    CAPTURE(entry);
    CHECK(words.find(" " + entry.substr(0, entry.find('=')) + " ") != std::string::npos);
  }
}

TEST_CASE("worker environment: -x NAME=V replaces what the user had, -x NAME brings it back") {
  const Entries users = {"A=1", "B=2", "AB=3", "D=4"};
  const std::vector<EnvironmentSetting> settings = {
      {"A", "new=value"},  {"B", std::nullopt},      {"C", ""},     {"D", "file"},
      {"D", std::nullopt}, {"E", std::nullopt},      {"F", "file"}, {"F", std::nullopt},
      {"G", "1", {0}},     {"AB", std::nullopt, {0}}};
  CHECK(with_settings(users, settings) ==
        Entries{"AB=3", "A=new=value", "B=2", "C=", "D=4", "F=file"});
  CHECK(chosen_names(users, settings) == Entries{"A", "B", "C", "D", "D", "F"});
}

TEST_CASE("worker environment: of several values the last one counts") {
  const Entries entries = {"A=1", "AB=2", "A=3"};
  CHECK(value_in(entries, "A", "") == "3");
  CHECK(value_in(entries, "B", "none") == "none");
}

}  // namespace hvd
