// The agent's workers: started one by one, reaped in the order of their deaths, found again by pid.
//
// Lives on the agent's loop thread, which is the process's main thread (parent-death signals hang
// on it). `rank` is the one a worker is started with.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/agent/host_memory.h"
#include "cli/loop.h"
#include "cli/subprocess.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/world.h"

namespace hvd {

// Of a process that spoke for a rank, and was not the command itself but below it.
struct SpeakerDeath {
  Death death;
  int order = 0, batch = 0;
  TimePoint at{};
  std::string words{};  // for the user, once others are seen to have waited for it
};

struct Worker {
  World world;
  pid_t pid = 0;  // 0: not started
  bool running = false;
  int sent_signal = 0;
  bool found_stopped = false, found_ending = false;  // when it was sent the first
  int death_order = 0;                               // 0: not seen to be dead yet
  int death_batch = 0;
  TimePoint started{}, died{};
  std::optional<SpeakerDeath> speaker;  // by which the rank's epoch broke
  UniqueFd pidfd;
  UniqueFd stdout_read, stderr_read, stdin_write;  // handed on to whoever moves the bytes
};

class Workers {
 public:
  // `ready` is called when a worker's pidfd says that it has ended; then reap() it.
  // `agent_address` gives the HVD_AGENT of the worker in a slot of this host: its place in all().
  // `held_port`: MASTER_PORT where the order names none; 0: there is none.
  Workers(Loop& loop, proto::StartWorkers start, std::string job, int held_port,
          std::function<std::string(int slot)> agent_address, std::function<void(int rank)> ready);

  bool all_tried() const { return tried_ == workers_.size(); }
  Worker& next() { return workers_[tried_]; }
  SpawnResult start_next();
  // Why the worker could not be started, by a command that the user called `command`; `far`: on
  // another host than hvdrun's own.
  proto::SpawnFailed failure_of(const Worker& worker, const SpawnResult& result,
                                const std::vector<std::string>& command, bool far) const;
  void give_up_starting() { tried_ = workers_.size(); }

  // Both return the end once, when it is known.
  std::optional<proto::RankEnd> reap(int rank);
  std::optional<proto::RankEnd> ended(pid_t pid, int status);
  // The rank is dead as its peers see it, though the kernel has not given it back yet. The first
  // call counts.
  void note_death(int rank);
  // The process that spoke for the rank is. If others were needing it, and it was below the command
  // that hvdrun started, that is what the rank failed by, whatever becomes of the command: then
  // words for the user, else nothing. Of one that ended well they are held back.
  std::string note_speaker_death(int rank, const Death& death, bool others_elsewhere);
  // Those that were held back and are not any longer: programs that forget shutdown() end so when
  // all is done, and who did wait has been `told` of it.
  std::vector<std::string> take_held_words(const std::function<bool(const Worker&)>& told);
  void note_epoch(int rank) {  // it has got over it
    if (Worker* worker = of_rank(rank)) worker->speaker.reset();
  }
  void note_signal(pid_t pid, int signal);  // before it is sent
  void pass(int signal);  // the user's own word to those that run: a death of it is a rank's own
  void begin_batch() { ++batch_; }

  bool is_running(pid_t pid) const { return running_by_pid_.contains(pid); }
  Worker* of_rank(int rank);
  int slot_of(const Worker& worker) const { return int(&worker - workers_.data()); }
  std::vector<Worker>& all() { return workers_; }
  int running() const { return int(running_by_pid_.size()); }
  int threads_each() const { return threads_each_; }
  // Limits of the job that this host does not allow, and what they came to.
  const google::protobuf::RepeatedPtrField<proto::ResourceLimit>& lowered() const {
    return lowered_;
  }
  proto::Stdin stdin_mode() const { return start_.stdin(); }

 private:
  std::vector<std::string> environment_of(int slot) const;

  Loop& loop_;
  const proto::StartWorkers start_;
  const std::string job_;
  const std::function<std::string(int slot)> agent_address_;
  const std::function<void(int rank)> ready_;
  const std::vector<std::string> users_environment_, chosen_;
  const int master_port_;
  const int threads_each_;  // 0: the user chose for all
  std::vector<RlimitValue> limits_;
  google::protobuf::RepeatedPtrField<proto::ResourceLimit> lowered_;
  const std::string interface_;  // WorkerPlace's
  const int oom_score_;
  UniqueFd null_;
  std::vector<Worker> workers_;  // in the order of their ranks
  std::map<pid_t, int> running_by_pid_;
  size_t tried_ = 0;
  int batch_ = 0, deaths_ = 0;
};

}  // namespace hvd
