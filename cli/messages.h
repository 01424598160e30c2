// Between hvdrun's own structs and the messages of the control stream.
#pragma once

#include <string>
#include <vector>

#include "cli/failure_report.h"
#include "cli/job_spec.h"
#include "cli/start_state.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/membership.h"
#include "rendezvous/world.h"

namespace hvd {

World from_proto(const proto::World& message);
void to_proto(const World& world, proto::World& message);

RankEnd from_proto(const proto::RankEnd& message);
std::string describe(
    const proto::RankStatus& status);  // "rank 1 was in allreduce …, stopped by a signal"
std::string leftovers_note(const proto::Ended& ended);  // empty: the ranks left nobody running
std::string threads_note(int threads_each);             // what hvdrun says of OMP_NUM_THREADS

// What workers with these worlds are started from.
proto::StartWorkers start_message(const JobSpec& spec, const StartState& start,
                                  const std::vector<World>& worlds);
proto::ToAgent to_message(const action::StartEpoch& start);
proto::ToAgent to_message(const action::RefuseEpoch& refuse);
proto::ToAgent to_message(const action::EndJob& end);

}  // namespace hvd
