// Between hvdrun's own structs and the messages of the control stream.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "cli/failure_report.h"
#include "cli/interfaces.h"
#include "cli/job_spec.h"
#include "cli/start_state.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/agent_socket.h"
#include "rendezvous/membership.h"
#include "rendezvous/world.h"

namespace hvd {

World from_proto(const proto::World& message);
void to_proto(const World& world, proto::World& message);

RankEnd from_proto(const proto::RankEnd& message);  // but for `at_ns`: by another clock
// Questions to the Store, of a known kind, and answers; `rank` as it was started.
proto::StoreQuestion to_proto(const AgentMessage& question, int rank);
AgentMessage from_proto(const proto::StoreQuestion& question);
proto::StoreAnswer answer_to_proto(const AgentMessage& answer, int rank);
AgentMessage from_proto(const proto::StoreAnswer& answer);
// Of an agent's reason, in bytes: why_not() may name three holders of ports beside an address.
inline constexpr size_t kReasonMax = 400;
// Where an agent listens for links, by the place it was told to, as others may be told: an address
// that any host can read, or a trouble. What one host says must not end another's agent, nor send
// it elsewhere than to the address that was `offered`, if that is known.
struct ListensAt {
  std::string address, trouble;
};
ListensAt listens_at(const proto::Listening& said, int place, const std::string& offered = {});
std::string describe(
    const proto::RankStatus& status);  // "rank 1 was in allreduce …, stopped by a signal"
std::string leftovers_note(const proto::Ended& ended);  // empty: the ranks left nobody running
// What hvdrun says of OMP_NUM_THREADS. `each`: what ranks of each host have that have none of their
// own, 0 where all do; empty where no rank has it from hvdrun. `here`: they are on this machine.
std::string threads_note(const JobSpec& spec, const std::map<int, int>& each, bool here);
// Of a limit that this host does not allow; empty where nobody need know.
std::string limit_note(const std::string& host, const proto::ResourceLimit& lowered,
                       const StartState& start);

// What ranks anywhere would find in their environment without hvdrun's own: the user's, with the
// PWD of --wdir, and what -x says of all ranks.
std::vector<std::string> users_environment(const JobSpec& spec, const StartState& start);
// What workers with these worlds are started from, on the host `group_rank` of the `group_size`
// that have any. Without a directory they start where their agent is: so they do on this machine,
// where the path to it may be one that may not be walked.
proto::StartWorkers start_message(const JobSpec& spec, const StartState& start,
                                  const std::vector<World>& worlds, int group_rank, int group_size);
// For another host: the directory by its whole path, and what a session on this machine alone can
// use is left out, unless -x names it; workers find there what their agent's own session has.
void make_remote(const JobSpec& spec, const StartState& start, proto::StartWorkers& message);
// Where the job's other hosts reach that host.
void set_interface(const InterfaceAddress& at, proto::StartWorkers& message);
proto::ToAgent to_message(const action::RefuseEpoch& refuse);
proto::ToAgent to_message(const action::EndJob& end);

}  // namespace hvd
