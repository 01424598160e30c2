// What is known of this machine without asking a name server: its names, addresses and GPUs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

struct ThisMachine {
  std::vector<std::string> names;      // the host name, and what /etc/hosts calls our addresses
  std::vector<std::string> addresses;  // bound here, as inet_ntop writes them
  std::vector<std::string> users;      // who we are
  int gpus = 0;                        // that CUDA programs started here may use
};

// localhost, a loopback address, one of our names, or an address bound here. Pure.
bool is_this_machine(std::string_view host, const ThisMachine& machine);

// Names that a text like /etc/hosts gives to loopback and to these addresses. Pure.
std::vector<std::string> names_in_hosts_file(std::string_view text,
                                             const std::vector<std::string>& addresses);

// Names that a text like /etc/passwd gives to this uid. Pure.
std::vector<std::string> names_in_passwd(std::string_view text, unsigned uid);

// Why nobody can tell here which processes lie below another; empty: it can be told.
std::string why_descendants_are_unseen();

// Of this machine, those that CUDA programs started from here find.
int look_at_gpus();

// Looks. Never fails: what cannot be found out is left empty. CUDA programs are to find this value
// in CUDA_VISIBLE_DEVICES.
ThisMachine look_at_this_machine(const std::optional<std::string>& cuda_visible_devices);

}  // namespace hvd
