// The ranks' output: frames of agents -> tagged whole lines -> the terminal or pipe hvdrun writes
// to, and files.
//
// Lives on the supervisor's loop; also keeps each rank's last stderr lines. Standard output and
// error that are the same file are one sink with one writer, since two writers of large blocks
// would tear each other's lines.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/failure_report.h"
#include "cli/frame.h"
#include "cli/job_spec.h"
#include "cli/line_tagger.h"
#include "cli/sink.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

struct OutputOptions {
  int ranks = 0;
  bool tags = true;
  bool timestamps = false;
  ColorMode color = ColorMode::kAuto;
  std::vector<int> shown;  // whose output goes to our own, sorted; empty: everybody's
  std::string directory;   // each rank's output also goes to files below it; empty: it does not
  size_t queue_bytes_max = 1u << 20;

  static OutputOptions of(const JobSpec& spec);
};

class Output {
 public:
  // Throws kInvalidArgument when the files cannot be made, kUnavailable when no descriptor is left.
  explicit Output(OutputOptions options);

  // Before ranks run: what is in the files is an earlier job's and goes. Throws as the constructor.
  void begin();
  void feed(std::string_view bytes,
            TimePoint now);  // from an agent's stdout; throws on malformed frames
  void say(std::string_view words,
           TimePoint now);                // lines of our own on stderr, behind what is there
  void flush();                           // hands what was gathered to the writers
  void tick(TimePoint now, bool behind);  // `behind`: there are bytes that were not fed yet
  void finish();                          // no more output of ranks
  std::optional<TimePoint> next_deadline() const;

  // Whoever has not taken what there was since then is not waited for any longer; `only_still`:
  // only who took nothing at all.
  void give_up(TimePoint since, bool only_still);
  bool full();  // stop feeding until a sink wakes
  bool idle() const;
  const std::vector<std::unique_ptr<Sink>>& sinks() const { return sinks_; }
  bool reader_gone() const;  // of our standard output or error
  // What failed first beside that, for the user; empty: nothing.
  std::string other_error() const;
  bool lost() const;
  int64_t lost_bytes() const;
  int64_t split_lines() const;

  std::vector<std::string> stderr_tail(int rank) const { return tails_[size_t(rank)].lines(); }
  const std::string& noise() const { return reader_.noise(); }

 private:
  // Where the lines of some streams go: a tagger in front of one target of a sink.
  struct Route {
    Route(Sink* to, size_t target_index, std::string target_name, std::vector<LineTagger::Tag> tags)
        : sink(to), target(target_index), name(std::move(target_name)), tagger(std::move(tags)) {}
    Sink* sink;
    size_t target;
    std::string name;
    LineTagger tagger;
    std::string block;
  };
  void open_console();
  void open_files();
  void stamp();
  bool shows(int rank) const;
  bool reader_gone(size_t route) const;
  Route& console(Stream stream) {
    return stream == Stream::kStdout ? *routes_.front() : *routes_[consoles_ - 1];
  }

  const OutputOptions options_;
  FrameReader reader_{true};
  std::vector<std::unique_ptr<Sink>>
      sinks_;  // standard output, error unless it is the same, files if there are any
  std::vector<std::unique_ptr<Route>>
      routes_;  // one or two consoles, then rank 0's stdout and stderr, rank 1's, …
  size_t consoles_ = 0;
  std::vector<UniqueFd> files_;
  std::vector<StderrTail> tails_;
  std::time_t stamped_ = 0;
};

}  // namespace hvd
