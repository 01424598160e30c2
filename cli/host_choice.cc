#include "cli/host_choice.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/quoted.h"
#include "cli/read_file.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr int kSlotsMax = 65'535;
constexpr size_t kExampleBytesMax = 60;  // of a command in a message

void check_supported(const GivenHost& host, const ThisMachine& machine) {
  if (host.slots == 0) return;  // nothing is to start there
  if (!is_this_machine(host.name, machine)) {
    throw Error(ErrorCode::kUnsupported,
                "host " + quoted(host.name) +
                    " is not this machine, and other hosts are not supported yet; use localhost");
  }
  if (!host.user.empty() &&
      std::find(machine.users.begin(), machine.users.end(), host.user) == machine.users.end()) {
    throw Error(ErrorCode::kUnsupported,
                "host " + quoted(host.user + "@" + host.name) +
                    " is this machine, and starting ranks as another user is not supported yet; "
                    "leave the user out");
  }
}

// What to say when several entries came to be one host.
std::string merge_note(const std::vector<std::string>& names, int slots) {
  const std::string sum = std::to_string(slots) + " together";
  const auto other = std::find_if(names.begin(), names.end(),
                                  [&](const std::string& name) { return name != names[0]; });
  if (other == names.end()) {
    return "host " + quoted(names[0]) + " is given " + std::to_string(names.size()) +
           " times: its slots are added, " + sum;
  }
  return "hosts " + quoted(names[0]) + " and " + quoted(*other) +
         " are both this machine: their slots are added, " + sum;
}

HostChoice merge(std::span<const GivenHost> given, const ThisMachine& machine) {
  HostChoice choice;
  int64_t slots = 0;
  std::vector<std::string> local_names;
  size_t local = 0;  // index of this machine in choice.hosts, once it has a name
  for (const GivenHost& host : given) {
    check_supported(host, machine);
    const int64_t count = host.slots.value_or(std::max(machine.gpus, 1));
    if (!is_this_machine(host.name, machine)) {
      choice.hosts.push_back({host.name, host.user, 0});
      continue;
    }
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

HostChoice one_rank_per_gpu(const ThisMachine& machine, std::span<const std::string> command) {
  if (machine.gpus == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "how many ranks to start is not said, and there is no GPU here to count; try: "
                "hvdrun -np 2 " +
                    shell_words(command, kExampleBytesMax));
  }
  return {.hosts = {{"localhost", "", machine.gpus}},
          .size = machine.gpus,
          .notes = {"-np is not given: starting " + std::to_string(machine.gpus) +
                    (machine.gpus == 1 ? " rank, for the GPU" : " ranks, one for each GPU") +
                    " of this machine"}};
}

}  // namespace

HostChoice choose_hosts(std::span<const GivenHost> given, int size, const ThisMachine& machine,
                        std::span<const std::string> command) {
  if (given.empty()) {
    if (size == 0) return one_rank_per_gpu(machine, command);
    return {.hosts = {{"localhost", "", size}}, .size = size, .notes = {}};
  }
  HostChoice choice = merge(given, machine);
  if (size > 0) {
    choice.size = size;
  } else if (choice.size == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "the hosts have no slots at all; write localhost:2 for two ranks");
  }
  return choice;
}

void find_hosts(CommandLine& line) {
  JobSpec& spec = line.spec;
  std::vector<GivenHost> given;
  if (line.host_list) given = parse_host_list(*line.host_list);
  if (line.host_file) {
    const std::string& path = *line.host_file;
    const std::string shown = shell_word(path);
    const FileText text = read_file(path, kHostTextBytesMax);
    if (text.error == EFBIG) {
      throw Error(ErrorCode::kInvalidArgument,
                  shown + ": a host file has at most 1 MiB; name another by --hostfile");
    }
    if (text.error != 0) {
      throw Error(ErrorCode::kInvalidArgument, "the host file " + quoted(path) +
                                                   " cannot be read: " + std::strerror(text.error) +
                                                   "; check the path behind --hostfile");
    }
    given = parse_host_file(text.bytes, shown);
  }
  // The usual job names no hosts, or localhost with its slots: then there is nothing to look up.
  const bool is_plain = std::all_of(given.begin(), given.end(), [](const GivenHost& host) {
    return host.user.empty() && host.slots && is_this_machine(host.name, {});
  });
  const bool need_look = given.empty() ? spec.size == 0 : !is_plain;
  const ThisMachine machine = need_look ? look_at_this_machine() : ThisMachine{};
  HostChoice choice = choose_hosts(given, spec.size, machine, spec.command);
  spec.hosts = std::move(choice.hosts);
  spec.size = choice.size;
  line.warnings.insert(line.warnings.end(), choice.notes.begin(), choice.notes.end());
}

}  // namespace hvd
