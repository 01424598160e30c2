#include "cli/agent/worker_environment.h"

#include <algorithm>
#include <utility>

#include "cli/interfaces.h"

namespace hvd {
namespace {

using Setting = std::pair<std::string, std::string>;

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

// What torchrun sets and is not so here: rank 0 of such a script makes its own store.
constexpr std::string_view kAgentStore = "TORCHELASTIC_USE_AGENT_STORE";

// hvdrun's own, Horovod's that are true here, and torchrun's, so that its scripts run unchanged.
std::vector<Setting> settings_of(const WorkerPlace& place) {
  const World& world = place.world;
  const auto text = [](int number) { return std::to_string(number); };
  std::vector<Setting> all;
  if (!place.agent_address.empty()) all.emplace_back("HVD_AGENT", place.agent_address);
  for (const char* prefix : {"HVD_", "HOROVOD_"}) {
    const std::string name = prefix;
    all.emplace_back(name + "RANK", text(world.rank));
    all.emplace_back(name + "SIZE", text(world.size));
    all.emplace_back(name + "LOCAL_RANK", text(world.local_rank));
    all.emplace_back(name + "LOCAL_SIZE", text(world.local_size));
    all.emplace_back(name + "CROSS_RANK", text(world.cross_rank));
    all.emplace_back(name + "CROSS_SIZE", text(world.cross_size));
    all.emplace_back(name + "HOSTNAME", world.host);
  }
  all.emplace_back("RANK", text(world.rank));
  all.emplace_back("WORLD_SIZE", text(world.size));
  all.emplace_back("LOCAL_RANK", text(world.local_rank));
  all.emplace_back("LOCAL_WORLD_SIZE", text(world.local_size));
  all.emplace_back("GROUP_RANK", text(place.group_rank));
  all.emplace_back("GROUP_WORLD_SIZE", text(place.group_size));
  all.emplace_back("ROLE_RANK", text(world.rank));
  all.emplace_back("ROLE_WORLD_SIZE", text(world.size));
  all.emplace_back("TORCHELASTIC_RUN_ID", place.job);
  all.emplace_back("TORCHELASTIC_RESTART_COUNT", "0");
  all.emplace_back("TORCHELASTIC_MAX_RESTARTS", "0");
  return all;
}

// Of what is not set here, NAME alone passes nothing on.
bool is_for_all(const EnvironmentSetting& one, std::span<const std::string> users) {
  return one.ranks.empty() && (one.value || is_set_in(users, one.name));
}

}  // namespace

std::string value_in(std::span<const std::string> entries, std::string_view name,
                     std::string_view otherwise) {
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry)
    if (name_of(*entry) == name && entry->size() > name.size())
      return entry->substr(name.size() + 1);
  return std::string(otherwise);
}

bool is_set_in(std::span<const std::string> entries, std::string_view name) {
  return std::any_of(entries.begin(), entries.end(),
                     [&](const std::string& entry) { return name_of(entry) == name; });
}

bool is_of_place(std::string_view name) {
  WorkerPlace any;
  any.agent_address = "any";
  const std::vector<Setting> ours = settings_of(any);
  return std::any_of(ours.begin(), ours.end(),
                     [&](const Setting& one) { return one.first == name; });
}

std::vector<std::string> with_settings(std::span<const std::string> users,
                                       std::span<const EnvironmentSetting> settings) {
  std::vector<std::string> entries;
  for (const EnvironmentSetting& one : settings)
    if (is_for_all(one, users))
      entries.push_back(one.name + "=" + (one.value ? *one.value : value_in(users, one.name, "")));
  return with_entries(users, entries);
}

std::vector<std::string> chosen_names(std::span<const std::string> users,
                                      std::span<const EnvironmentSetting> settings) {
  std::vector<std::string> names;
  for (const EnvironmentSetting& one : settings)
    if (is_for_all(one, users)) names.push_back(one.name);
  return names;
}

std::vector<std::string> with_entries(std::span<const std::string> users,
                                      std::span<const std::string> entries) {
  std::vector<std::string> all(users.begin(), users.end());
  for (const std::string& one : entries) {
    std::erase_if(all, [&](const std::string& entry) { return name_of(entry) == name_of(one); });
    all.push_back(one);
  }
  return all;
}

std::span<const std::string_view> names_of_session() {
  static constexpr std::string_view kNames[] = {"HOME",
                                                "USER",
                                                "LOGNAME",
                                                "SHELL",
                                                "OLDPWD",
                                                "HOSTNAME",
                                                "TMPDIR",
                                                "SSH_CONNECTION",
                                                "SSH_TTY",
                                                "SSH_AUTH_SOCK",
                                                "SSH_AGENT_PID",
                                                "KRB5CCNAME",
                                                "DISPLAY",
                                                "XAUTHORITY",
                                                "WAYLAND_DISPLAY",
                                                "DBUS_SESSION_BUS_ADDRESS",
                                                "XDG_RUNTIME_DIR",
                                                "XDG_SESSION_ID",
                                                "XDG_SESSION_TYPE",
                                                "CUDA_VISIBLE_DEVICES"};
  return kNames;
}

std::vector<std::string> worker_environment(std::span<const std::string> users,
                                            std::span<const std::string> chosen,
                                            const WorkerPlace& place) {
  std::vector<Setting> ours = settings_of(place);
  const auto is_chosen = [&](std::string_view name) {
    return std::find(chosen.begin(), chosen.end(), name) != chosen.end();
  };
  const auto add_unless_chosen = [&](const char* name, std::string value) {
    if (!is_chosen(name)) ours.emplace_back(name, std::move(value));
  };
  if (place.master_port > 0) add_unless_chosen("MASTER_PORT", std::to_string(place.master_port));
  if (place.master_port > 0 || is_chosen("MASTER_PORT"))
    add_unless_chosen("MASTER_ADDR", place.master_address);
  const auto add_unless_set = [&](const char* name, std::string value) {
    if (!is_set_in(users, name)) ours.emplace_back(name, std::move(value));
  };
  add_unless_set("PYTHONUNBUFFERED", "1");
  add_unless_set("NCCL_LAUNCH_ORDER_IMPLICIT", "1");  // also beside a program's own communicators
  // Who gives another address to meet at may meet others than this job's ranks. NCCL takes a name
  // without "=" for the beginning of one.
  const bool meets_others = is_chosen("MASTER_ADDR") && place.interface == kLoopbackInterface;
  if (!place.interface.empty() && !meets_others) {
    add_unless_set("NCCL_SOCKET_IFNAME", "=" + place.interface);
    add_unless_set("GLOO_SOCKET_IFNAME", place.interface);
    // Else it takes the interface's IPv4 address if there is one.
    if (place.interface_by_ipv6) add_unless_set("NCCL_SOCKET_FAMILY", "AF_INET6");
  }
  if (place.threads_each > 0) add_unless_set(kThreadsVariable, std::to_string(place.threads_each));

  std::vector<std::string> all;
  all.reserve(users.size() + ours.size());
  for (const std::string& entry : users) {
    if (name_of(entry) == kAgentStore && !is_chosen(kAgentStore)) continue;
    const auto same_name = [&](const Setting& one) { return one.first == name_of(entry); };
    if (std::none_of(ours.begin(), ours.end(), same_name)) all.push_back(entry);
  }
  for (const auto& [name, value] : ours) all.push_back(name + "=" + value);
  return all;
}

}  // namespace hvd
