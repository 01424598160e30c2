// Facts about the ends of a job -> who was first, why, what was only fallout; the exit status and
// the text for the user.
//
// Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/exit_code.h"

namespace hvd {

inline constexpr int kOfSpawns = -1;  // of ranks that never ran
struct RankEnd {
  int rank = -1;
  std::string host;
  int pid = 0;
  bool killed = false;  // by signal `status`, else exit code `status`
  int status = 0;
  bool unknown = false;  // how it ended: whose child it was had waited for it first
  int64_t run_ns = 0;
  int64_t at_ns = 0;             // from the job's start, by hvdrun's clock
  int order = 0;                 // among the deaths on its host
  int batch = 0;                 // deaths seen in one wake-up share it; or kOfSpawns
  int sent_signal = 0;           // the last one we had sent, 0: none
  int spawn_error = 0;           // errno: it never ran
  std::string spawn_step;        // "exec of ./train"
  std::string spawn_advice;      // what is wrong with it, and what to do; empty: nothing is known
  bool told = false;             // by libhvd: its program knows that other ranks are gone
  bool stranded_others = false;  // it ended without shutdown() while others were in its epoch
  std::string given_up;  // it did not answer in a broken epoch, and its agent killed it: why
  // Its epoch broke since a rank waited too long, or for one that has left: what that one said.
  std::string waited_in_vain;
  std::vector<int> waited_for;
  std::string doing;  // by its status page; empty: nothing is known
};

struct StuckProcess {
  int rank = -1;  // -1: something that a rank had started
  std::string host;
  int pid = 0;
  std::string why;
};

// A line for each on the terminal and an entry in the result file; of more only how many they are.
constexpr size_t kHostLinesMost = 10;

struct HostFailure {
  std::string host;
  std::string why;
};

struct RankPlace {
  std::string host;
  int pid = 0;  // 0: not known to have started
};

struct JobFacts {
  int size = 0;
  std::vector<RankPlace> places;  // by rank
  std::vector<RankEnd> ends;      // in the order they were heard of
  EndCause cause = EndCause::kNone;
  std::string cause_text;           // of a cause that needs words
  std::string init_refused;         // why init() failed on ranks that waited in it
  std::vector<int> never_came;      // whom they waited for
  std::string lost_link;            // between ranks of several hosts, which broke their world
  std::vector<StuckProcess> stuck;  // the agent gave up ending them
  bool output_lost = false;
  std::string input_error;               // why hvdrun's own could not be read to its end
  std::vector<HostFailure> not_started;  // at most kHostLinesMost
  size_t more_not_started = 0;
  std::vector<HostFailure> lost;  // without a last word of their agents; at most kHostLinesMost
};

struct Verdict {
  std::optional<RankEnd> first;   // the initiating failure
  std::string why;                // more about it than its exit code says; of no rank: of a link
  std::vector<RankEnd> fallout;   // of it: told by libhvd that a peer is gone; or ended by us
  std::vector<RankEnd> also;      // failed too, and nothing shows that the first was the reason
  std::vector<RankEnd> finished;  // exit code 0
  std::vector<int> missing;       // ranks of which no end is known
  ExitStatus status;
  bool is_explained() const { return first || !why.empty(); }
};

// No rank is to blame for a link that was lost: its world broke of it, and each rank was only told.
Verdict attribute(const JobFacts& facts);

std::string how_it_ended(const RankEnd& end);  // "was killed by SIGSEGV"
std::string describe(
    const RankEnd& end);  // "rank 3 (pid 71) on gpu1 was killed by SIGSEGV after 1.234 s"

// "rank 3 (pid 71) on gpu1 cannot be ended: it is in an uninterruptible wait …"
std::string describe(const StuckProcess& stuck);

// What goes to stderr at the end, the most important line last. Empty when all went well.
std::string report(const Verdict& verdict, const JobFacts& facts,
                   const std::vector<std::string>& stderr_tail);

// The last lines of a rank's stderr. Of lines that a lone \r ends, one after the other (a progress
// bar), only the last is one. A line longer than kLineBytesMax is cut there, and says so.
class StderrTail {
 public:
  static constexpr size_t kTailLines = 20, kLineBytesMax = 2u << 10;
  void feed(std::string_view bytes);
  // The rank has said its last: what comes now, of processes that it left and that were told to
  // end, does not push that out. It counts where there was nothing.
  void close() { closed_ = !ended_.empty() || open_.bytes > 0; }
  std::vector<std::string> lines() const;

 private:
  struct Line {
    std::string begin;  // a byte more than is shown tells where the last character of that ends
    size_t bytes = 0;
  };
  void end_line(bool update);

  std::deque<Line> ended_;
  Line open_;
  bool closed_ = false;
  bool after_cr_ = false;       // the open line has ended; with a \n next it is no update
  bool update_before_ = false;  // the last of ended_ may be overwritten
};

}  // namespace hvd
