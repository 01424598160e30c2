#include "cli/host_choice.h"

#include <algorithm>

#include "cli/quoted.h"
#include "cli/read_file.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kExampleBytesMax = 60;  // of a command in a message

// Another user of this machine is reached as on another one: by ssh.
bool is_here(const GivenHost& host, const ThisMachine& machine) {
  const auto& ours = machine.users;
  return is_this_machine(host.name, machine) &&
         (host.user.empty() || std::find(ours.begin(), ours.end(), host.user) != ours.end());
}

// What to say when several entries came to be one host.
std::string merge_note(const std::vector<std::string>& names, int slots) {
  const std::string sum = std::to_string(slots) + " together";
  const auto other = std::find_if(names.begin(), names.end(),
                                  [&](const std::string& name) { return name != names[0]; });
  if (other == names.end()) {
    return "host " + in_quotes(names[0]) + " is given " + std::to_string(names.size()) +
           " times: its slots are added, " + sum;
  }
  return "hosts " + in_quotes(names[0]) + " and " + in_quotes(*other) +
         " are both this machine: their slots are added, " + sum;
}

// A host given twice is one host. What GPUs it has is told by its agent, unless they are named.
void add_remote(HostChoice& choice, const GivenHost& host, int named_gpus) {
  const int slots = host.slots.value_or(std::max(named_gpus, 1));
  const int per_gpu = host.slots || named_gpus > 0 ? 0 : 1;
  const auto same = std::find_if(choice.hosts.begin(), choice.hosts.end(), [&](const Host& one) {
    return one.remote && one.name == host.name && one.user == host.user;
  });
  if (same == choice.hosts.end())
    return choice.hosts.push_back({host.name, host.user, slots, true, per_gpu});
  if (same->slots + slots > kSlotsMax) {
    throw Error(ErrorCode::kInvalidArgument, "host " + in_quotes(host.name) + " is given " +
                                                 std::to_string(same->slots + slots) +
                                                 " slots; a host has at most 65535");
  }
  same->slots += slots;
  same->per_gpu += per_gpu;
  choice.notes.push_back(
      "host " + in_quotes(host.name) + " is given more than once: its slots are added" +
      (same->per_gpu > 0 ? "" : ", " + std::to_string(same->slots) + " together"));
}

// "ann@gpu7": of one that is given with its user, who tells it from the same name without.
std::string shown(const Host& host) {
  return in_quotes((host.user.empty() ? "" : host.user + "@") + host.name);
}

// And by nothing else.
bool differ_by_user(const HostIdentity& one, const HostIdentity& other) {
  HostIdentity same = one;
  same.user = other.user;
  return one.user != other.user && is_one_host(same, other);
}

HostChoice merge(std::span<const GivenHost> given, const ThisMachine& machine, int named_gpus) {
  HostChoice choice;
  int64_t slots = 0;
  std::vector<std::string> local_names;
  size_t local = 0;  // index of this machine in choice.hosts, once it has a name
  for (const GivenHost& host : given) {
    if (!is_here(host, machine)) {
      add_remote(choice, host, named_gpus);
      continue;
    }
    const int gpus = named_gpus > 0 ? named_gpus : machine.gpus;
    const int64_t count = host.slots.value_or(std::max(gpus, 1));
    choice.by_gpus |= !host.slots && gpus > 0;
    if (local_names.empty()) {
      local = choice.hosts.size();
      choice.hosts.push_back({host.name, host.user, 0});
    }
    local_names.push_back(host.name);
    slots += count;
  }
  if (slots > kSlotsMax) {
    throw Error(ErrorCode::kInvalidArgument, "this machine is given " + std::to_string(slots) +
                                                 " slots; a host has at most 65535");
  }
  if (!local_names.empty()) choice.hosts[local].slots = static_cast<int>(slots);
  if (local_names.size() > 1) {
    choice.notes.push_back(merge_note(local_names, static_cast<int>(slots)));
  }
  for (const Host& host : choice.hosts) choice.size += host.slots;
  return choice;
}

HostChoice one_rank_per_gpu(const ThisMachine& machine, std::span<const std::string> command,
                            int named_gpus) {
  if (named_gpus > 0)
    return {.hosts = {{"localhost", "", named_gpus}},
            .size = named_gpus,
            .notes = {"-np is not given: starting " + std::to_string(named_gpus) +
                      (named_gpus == 1 ? " rank, for the GPU" : " ranks, one for each GPU") +
                      " of --devices"},
            .by_gpus = true};
  if (machine.gpus == 0) {
    if (std::find(command.begin(), command.end(), "-np") != command.end())
      throw Error(ErrorCode::kInvalidArgument,
                  "how many ranks to start is not said: -np stands behind the command " +
                      in_quotes(command[0]) +
                      ", which gets it; put hvdrun's options first, as in " + "hvdrun -np 2 " +
                      shell_word(command[0]));
    throw Error(ErrorCode::kInvalidArgument,
                "how many ranks to start is not said, and there is no GPU here to count; try: "
                "hvdrun -np 2 " +
                    shell_words(command, kExampleBytesMax));
  }
  return {.hosts = {{"localhost", "", machine.gpus}},
          .size = machine.gpus,
          .notes = {"-np is not given: starting " + std::to_string(machine.gpus) +
                    (machine.gpus == 1 ? " rank, for the GPU" : " ranks, one for each GPU") +
                    " of this machine"},
          .by_gpus = true};
}

// By -x, or as here.
std::optional<std::string> visible_to_ranks(const JobSpec& spec) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  std::optional<std::string> value = env::get(kVisible);
  for (const EnvironmentSetting& one : spec.environment)
    if (one.name == kVisible && one.ranks.empty() && one.value) value = one.value;
  return value;
}

// How many ranks they get. Who pretends hosts wants each of them in the job: more ranks than slots
// are refused with those of hosts that exist.
int fill_pretended(std::span<const Host> hosts, int size) {
  const int slots = hosts[0].slots, count = static_cast<int>(hosts.size());
  const int sum = slots * count;
  if (size == 0) return sum;
  if (size <= sum - slots) {
    const std::string asked = std::to_string(count) + "x" + std::to_string(slots);
    throw Error(ErrorCode::kInvalidArgument,
                "--pretend-hosts " + asked + " takes " + std::to_string(sum) + " ranks, and -np " +
                    std::to_string(size) + " leaves hosts without any; give -np " +
                    std::to_string(sum) + ", or pretend fewer hosts");
  }
  return size;
}

}  // namespace

HostChoice choose_hosts(std::span<const GivenHost> given, int size, const ThisMachine& machine,
                        std::span<const std::string> command, int named_gpus) {
  if (given.empty()) {
    if (size == 0) return one_rank_per_gpu(machine, command, named_gpus);
    return {.hosts = {{"localhost", "", size}}, .size = size, .notes = {}};
  }
  HostChoice choice = merge(given, machine, named_gpus);
  if (size > 0) {
    choice.size = size;
  } else if (choice.size == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "the hosts have no slots at all; write localhost:2 for two ranks");
  } else {
    choice.size_open = counts_gpus(choice.hosts);
  }
  return choice;
}

std::vector<Slot> plan_slots(std::span<const Host> hosts, int size) {
  std::vector<Host> planned(hosts.begin(), hosts.end());
  int64_t lacking = size, uncounted = 0;
  for (const Host& host : hosts) {
    lacking -= host.slots;
    uncounted += host.per_gpu > 0;
  }
  if (lacking > 0 && uncounted > 0)
    for (Host& host : planned)
      if (host.per_gpu > 0) host.slots += int((lacking + uncounted - 1) / uncounted);
  return assign_slots(planned, size);
}

bool counts_gpus(std::span<const Host> hosts) {
  return std::ranges::any_of(hosts, [](const Host& host) { return host.per_gpu > 0; });
}

void count_slots(Host& host, int gpus) {
  host.slots += host.per_gpu * (std::max(gpus, 1) - 1);
  host.per_gpu = 0;
}

bool has_remote_ranks(std::span<const Host> hosts, std::span<const Slot> slots) {
  return std::ranges::any_of(slots,
                             [&](const Slot& slot) { return hosts[size_t(slot.host)].remote; });
}

SettledHosts settle_hosts(std::span<const Host> hosts,
                          std::span<const std::optional<HostIdentity>> identities, int size) {
  struct Group {
    size_t carrier;  // its number
    Host sum;
  };
  std::vector<Group> groups;
  SettledHosts settled;
  for (size_t number = 0; number < hosts.size(); ++number) {
    if (!identities[number]) continue;
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& one) {
      return is_one_host(*identities[one.carrier], *identities[number]);
    });
    if (same == groups.end()) {
      const auto others = std::find_if(groups.begin(), groups.end(), [&](const Group& one) {
        return differ_by_user(*identities[one.carrier], *identities[number]);
      });
      if (others != groups.end())
        settled.notes.push_back("hosts " + shown(hosts[others->carrier]) + " and " +
                                shown(hosts[number]) +
                                " are two users of one machine: each counts its LOCAL_RANK from 0");
      groups.push_back({number, hosts[number]});
      continue;
    }
    const int sum = same->sum.slots + hosts[number].slots;
    settled.notes.push_back("hosts " + shown(hosts[same->carrier]) + " and " +
                            shown(hosts[number]) + " are one machine: their slots are added, " +
                            std::to_string(sum) + " together");
    if (!hosts[number].remote) *same = {number, hosts[number]};
    same->sum.slots = sum;
  }
  std::vector<Host> ordered;
  for (const Group& group : groups) ordered.push_back(group.sum);
  settled.slots = assign_slots(ordered, size);
  for (Slot& slot : settled.slots) slot.host = int(groups[size_t(slot.host)].carrier);
  return settled;
}

std::map<int, HostPlace> places_of(std::span<const Slot> slots,
                                   const std::map<int, HostIdentity>& identities) {
  std::map<int, int> own;                  // ranks of a host
  std::map<std::string, int> of_machines;  // by boot id
  std::map<int, HostPlace> places;
  for (const Slot& slot : slots) {
    const auto identity = identities.find(slot.host);
    if (identity == identities.end()) continue;
    places.try_emplace(slot.host, HostPlace{int(places.size())});
    ++own[slot.host];
    ++of_machines[identity->second.boot];
  }
  for (auto& [host, place] : places) {
    const HostIdentity& identity = identities.at(host);
    place.machine_ranks = identity.boot.empty() ? own[host] : of_machines[identity.boot];
  }
  return places;
}

void find_hosts(CommandLine& line) {
  JobSpec& spec = line.spec;
  if (!line.pretended_hosts.empty()) {
    spec.hosts = line.pretended_hosts;
    spec.size = fill_pretended(spec.hosts, spec.size);
    return;
  }
  std::vector<GivenHost> given;
  if (line.host_list) given = parse_host_list(*line.host_list);
  if (line.host_file) {
    const std::string text =
        read_given_file(*line.host_file, kHostTextBytesMax, "host file", "--hostfile");
    given = parse_host_file(text, shell_word(*line.host_file));
  }
  // The usual job names no hosts, or localhost with its slots: then there is nothing to look up.
  const bool is_plain = std::all_of(given.begin(), given.end(), [](const GivenHost& host) {
    return host.user.empty() && host.slots && is_this_machine(host.name, {});
  });
  const int named_gpus = int(spec.gpus.devices.size());
  const bool need_look = given.empty() ? spec.size == 0 && named_gpus == 0 : !is_plain;
  const ThisMachine machine =
      need_look ? look_at_this_machine(visible_to_ranks(spec)) : ThisMachine{};
  HostChoice choice = choose_hosts(given, spec.size, machine, spec.command, named_gpus);
  spec.hosts = std::move(choice.hosts);
  spec.size = choice.size;
  spec.size_open = choice.size_open;
  spec.gpus.counted = choice.by_gpus;
  line.warnings.insert(line.warnings.end(), choice.notes.begin(), choice.notes.end());
}

}  // namespace hvd
