// Decides which hosts a job runs on and how many ranks it has.
//
// What other machines are given no slots for, they count: their GPUs, which the Hello of an agent
// tells (Host::per_gpu). Until all are there a plan says where ranks may come to be. Without -np
// their number is open, too, and what stands on it waits: output files, -x@, --output-ranks.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/host_identity.h"
#include "cli/hosts.h"
#include "cli/this_machine.h"

namespace hvd {

struct HostChoice {
  std::vector<Host> hosts;
  int size = 0;
  bool size_open = false;               // JobSpec::size_open
  std::vector<std::string> notes = {};  // to be said once
  bool by_gpus = false;                 // this machine's GPUs say how many slots it has
};

// `size` is -np, or 0. All entries that are this machine become one host, their slots added;
// another user of it is a remote host. Pure. Throws kInvalidArgument when the size cannot be known;
// `command` is for the example in that message. `named_gpus`, of --devices, are those of each host;
// 0: it is not said.
HostChoice choose_hosts(std::span<const GivenHost> given, int size, const ThisMachine& machine,
                        std::span<const std::string> command, int named_gpus = 0);

// assign_slots() before other hosts have counted their GPUs: those that have to have as many as it
// takes. Whoever has ranks in the end has some here, and rank 0 is where it will be. Pure.
std::vector<Slot> plan_slots(std::span<const Host> hosts, int size);

// Whether any of them has slots for its GPUs, which were not counted yet. Pure.
bool counts_gpus(std::span<const Host> hosts);

// It is known now how many GPUs the host has. Pure.
void count_slots(Host& host, int gpus);

// Whether any rank is to run on another machine. Pure.
bool has_remote_ranks(std::span<const Host> hosts, std::span<const Slot> slots);

// The job's hosts once it is known which of them are one.
struct SettledHosts {
  std::vector<Slot> slots;         // with ranks, in the order in which hosts were first named
  std::vector<std::string> notes;  // to be said once
};

// Hosts of one identity become one, their slots added, at the place of the one named first; which
// of them it is, is said by its number: this machine if it is among them, else the first. A host
// without an identity is not asked to take part. Throws kInvalidArgument as assign_slots(). Pure.
SettledHosts settle_hosts(std::span<const Host> hosts,
                          std::span<const std::optional<HostIdentity>> identities, int size);

// Where a host stands among those with ranks.
struct HostPlace {
  int group_rank = 0;     // in the order of their ranks
  int machine_ranks = 0;  // that share its CPUs: its own, and those of other hosts of its machine
  friend bool operator==(const HostPlace&, const HostPlace&) = default;
};

// By number, of each host in `identities` that has ranks. Pure, with one look at each slot.
std::map<int, HostPlace> places_of(std::span<const Slot> slots,
                                   const std::map<int, HostIdentity>& identities);

// Reads the host list or file of the command line, looks at this machine as far as needed, and
// fills in line.spec.hosts and line.spec.size; adds to line.warnings. Throws as above, and
// kInvalidArgument when the file cannot be read.
void find_hosts(CommandLine& line);

}  // namespace hvd
