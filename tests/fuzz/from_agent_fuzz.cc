// Fuzz target: what the agent of a host says, through the real validator and into what hvdrun
// decides with: whatever comes, it is refused or speaks for its own ranks, the job's other host is
// served as before, and the report can be read.
//
// The input is a row of packets (packets.h), each a message; a packet's own bits: kLater, some time
// passes before; kEarly, the other host has not said yet where it listens, unless it had before.
#include <cstddef>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/agent_clock.h"
#include "cli/epoch_relay.h"
#include "cli/failure_report.h"
#include "cli/job_record.h"
#include "cli/messages.h"
#include "cli/network_proof.h"
#include "cli/other_pairs.h"
#include "cli/result_file.h"
#include "rendezvous/membership.h"
#include "rendezvous/permission.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"
#include "tests/fuzz/packets.h"

namespace {

using namespace hvd;
using namespace std::chrono_literals;

constexpr uint8_t kLater = 1, kEarly = 2;
constexpr uint32_t kQuestion = 54'321;
const std::set<int> kItsRanks{2, 3};

// Of two hosts with two ranks each. Host 0 is honest, and host 1 the one whose messages these are.
class Job {
 public:
  Job()
      : record_(spec(), slots(), now_),
        membership_({{"h0", "", 2}, {"h1", "", 2}}, slots(), {}, now_),
        relay_([this](int host, const proto::ToAgent& order) { check_order(host, order); }),
        proof_([](int, const proto::ToAgent&) {}),
        pairs_([](int, const proto::ToAgent&) {}) {
    act(membership_.begin(now_));
    for (const int host : {0, 1}) tell(event::AgentJoined{host});
    tell(event::WorkersStarted{{0, 1}});
    tell(event::EpochWanted{{0, 1}});
    std::vector<NetworkProof::Party> parties;
    std::vector<NetworkProof::Place> places;
    for (const int host : {0, 1}) {
      const std::string address = "10.0.0." + std::to_string(host), name(1, char('a' + host));
      parties.push_back({host, name, {{{"eth0", address}, true}, {{"ib0", "10.1.0.1", 100000}}}});
      places.push_back({host, name, {"eth0", address}, address + ":1", Reason::kSsh, false, ""});
      places.back().by_all = false;
    }
    proof_.begin(std::move(parties), 0, false, 5s, now_);
    pairs_.begin(std::move(places), 0, 5s, now_);
  }

  void take(const Packet& packet) {
    if ((packet.control & kEarly) == 0) proof_.note(0, listening(0), now_);
    if (packet.control & kLater) pass(1s);
    proto::FromAgent message;
    if (!message.ParseFromArray(packet.bytes.data(), int(packet.bytes.size()))) return;
    if (cut_off_ || !objection(message, 1, kItsRanks, membership_.epoch()).empty()) {
      cut_off_ = true;  // the stream is closed
      return;
    }
    if (message.has_started()) tell_all(record_.note(message.started()));
    clock_.note(message.clock_ns(), now_);
    if (message.has_spawn_failed())
      tell_all(record_.note(message.spawn_failed(), clock_.ours(message.clock_ns())));
    if (message.has_ends()) {
      for (const proto::RankEnd& end : message.ends().ends()) relay_.note_end(end.rank());
      tell_all(record_.note(message.ends(), clock_));
    }
    if (message.has_claimed()) tell(event::RankClaimed{message.claimed().rank()});
    if (message.has_epoch_wanted()) {
      const auto& ranks = message.epoch_wanted().ranks();
      tell(event::EpochWanted{{ranks.begin(), ranks.end()}});
    }
    if (message.has_ended()) record_.note_stuck("h1", message.ended());
    if (message.has_died()) relay_.note(1, message.died());
    if (message.has_broken() && relay_.note(1, message.broken())) record_.note(message.broken());
    if (message.has_store_question()) relay_.note(1, message.store_question(), now_);
    if (message.has_listening()) {
      relay_.note(1, message.listening());
      proof_.note(1, message.listening(), now_);
    }
    if (message.has_reached()) {
      proof_.note(1, message.reached());
      for (const std::string& line : pairs_.note(1, message.reached(), now_))
        HVD_CHECK(is_shown(line), "a line that cannot be shown");
    }
    proof_.decide(now_);
    relay_.flush();
  }

  void check_the_other() {
    if (membership_.epoch() != 0) {
      proto::StoreQuestion question;
      question.set_epoch(membership_.epoch());
      question.set_rank(0);
      question.set_kind(proto::StoreQuestion::ADD);
      question.set_id(kQuestion);
      question.set_key("key");
      relay_.note(0, question, now_);
      HVD_CHECK(served_, "a host is not served for what another one sent");
    }
    for (const int host : {0, 1})
      proof_.note(host, listening(host), now_);  // unless it has said so
    pass(1h);
    proof_.decide(now_);  // sees that it is over
    pass(1h);
    proof_.decide(now_);
    HVD_CHECK(!proof_.going(), "a proof goes on for ever");
    record_.note_cause(EndCause::kRankFailed, "over");
    const JobResult result = record_.result(now_);
    HVD_CHECK(!result_json(result).empty(), "no result");
    std::istringstream text(report(result.verdict, result.facts, {}));
    for (std::string line; std::getline(text, line);)
      HVD_CHECK(is_shown(line), "a report that cannot be shown");
  }

 private:
  static JobSpec spec() {
    JobSpec spec;
    spec.size = 4;
    spec.command = {"./train"};
    return spec;
  }
  static std::vector<Slot> slots() {
    return assign_slots(std::vector<Host>{{"h0", "", 2}, {"h1", "", 2}}, 4);
  }

  static proto::Listening listening(int host) {
    proto::Listening all;
    for (const std::string& address :
         {"10.0.0." + std::to_string(host) + ":4000", std::string("10.1.0.1:4000")}) {
      all.add_addresses(address);
      all.add_troubles();
    }
    return all;
  }

  void pass(Clock::duration time) {
    now_ += time;
    relay_.tick(now_);
    pairs_.tick(now_);
  }
  void tell(const Event& event) { act(membership_.apply(event, now_)); }
  void tell_all(const std::vector<Event>& events) {
    for (const Event& event : events) {
      if (const auto* ended = std::get_if<event::RankEnded>(&event))
        HVD_CHECK(kItsRanks.contains(ended->rank), "an agent ended a rank of another host");
      tell(event);
    }
  }
  void act(const std::vector<Action>& actions) {
    for (const Action& action : actions)
      if (const auto* start = std::get_if<action::StartEpoch>(&action)) relay_.start(*start);
  }
  void check_order(int host, const proto::ToAgent& order) {
    if (host != 0) return;
    for (const int rank : order.died().ranks())
      HVD_CHECK(kItsRanks.contains(rank), "a host is told that its own ranks died");
    if (!order.has_store_answer()) return;
    HVD_CHECK(order.store_answer().id() == kQuestion, "an answer to what was not asked");
    served_ = true;
  }

  TimePoint now_{};
  JobRecord record_;
  Membership membership_;
  EpochRelay relay_;
  NetworkProof proof_;
  OtherPairs pairs_;
  AgentClock clock_;
  bool cut_off_ = false, served_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  Job job;
  PacketReader packets({reinterpret_cast<const char*>(bytes), count});
  for (Packet packet; packets.next(packet);) job.take(packet);
  job.check_the_other();
  return 0;
}
