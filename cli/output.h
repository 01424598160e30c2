// The ranks' output: frames of agents -> tagged whole lines -> the terminal or pipe hvdrun writes
// to, and files.
//
// Lives on the supervisor's loop; also keeps each rank's last stderr lines. Standard output and
// error that are the same file are one sink with one writer, since two writers of large blocks
// would tear each other's lines.
#pragma once

#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/failure_report.h"
#include "cli/frame.h"
#include "cli/host_frames.h"
#include "cli/job_spec.h"
#include "cli/line_tagger.h"
#include "cli/reader_watch.h"
#include "cli/sink.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

struct OutputOptions {
  int ranks = 0;  // 0: seat() tells
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

  // So many ranks there are; once, where that was not known. Throws as above.
  void seat(int ranks);
  // Before ranks run, at the latest, and not before it is known that they will: what is in the
  // files is an earlier job's and goes, by the first call. Throws kUnavailable when it cannot,
  // since agents are there by then: no mistake on the command line ends a job that was begun.
  void begin();
  // Of a frame of a rank's output, from that host.
  void feed(const FrameReader::Piece& piece, int host, TimePoint now);
  void say(std::string_view words,
           TimePoint now);  // lines of our own on stderr, behind what is there
  // The same for words that others can cause without end: false, and they are not said, while
  // standard error waits for its reader; a sink wakes when it no longer does.
  bool try_say(std::string_view words, TimePoint now);
  void flush();  // hands what was gathered to the writers
  // `behind`: there are bytes of that host that were not fed yet. `ranks_ended`: none runs any
  // more.
  using Behind = std::function<bool(int host)>;
  void tick(TimePoint now, bool ranks_ended, const Behind& behind = nullptr);
  void finish();  // no more output of ranks
  std::optional<TimePoint> next_deadline() const;

  // Readers are waited for no longer than that from now on, as ReaderWatch has it: in tick().
  // What is dropped is ranks' output first; words of our own go out as long as anyone takes them.
  void limit_readers(ReaderWatch::Duration patience, bool slow_too, TimePoint now);
  bool full();  // stop feeding until a sink wakes
  bool idle() const;
  const std::vector<std::unique_ptr<Sink>>& sinks() const { return sinks_; }
  bool reader_gone() const;  // of our standard output or error
  // What failed first beside that, for the user; empty: nothing.
  std::string other_error() const;
  bool lost() const;
  int64_t lost_bytes() const;    // that could not be written, or were dropped
  int64_t unread_bytes() const;  // of them: dropped, since nobody read them in time
  int64_t split_lines() const;

  // The last lines of a rank's standard error.
  void close_stderr_tail(int rank) { tails_[size_t(rank)].close(); }
  std::vector<std::string> stderr_tail(int rank) const { return tails_[size_t(rank)].lines(); }

 private:
  // Where the lines of some streams go: a tagger in front of one target of a sink.
  struct Route {
    Route(Sink* to, ReaderWatch* of_sink, size_t target_index, std::string target_name,
          std::vector<LineTagger::Tag> tags)
        : sink(to),
          watch(of_sink),
          target(target_index),
          name(std::move(target_name)),
          tagger(std::move(tags)) {}
    Sink* sink;
    ReaderWatch* watch;
    size_t target;
    std::string name;
    LineTagger tagger;
    std::string block;
  };
  void open_console();
  void open_files();
  void add_sink(const char* thread, std::vector<int> fds);
  void stamp();
  void feed(Route& to, size_t stream, std::string_view bytes, TimePoint now, TimePoint sent);
  std::optional<TimePoint> heard(size_t route, size_t stream, const Behind& behind) const;
  void flush(Route& to, bool kept);
  bool drops(const Route& to) const;
  void look_at_readers(TimePoint now, bool ranks_ended);
  bool shows(int rank) const;
  bool reader_gone(size_t route) const;
  Route& console(Stream stream) {
    return stream == Stream::kStdout ? *routes_.front() : *routes_[consoles_ - 1];
  }

  const OutputOptions options_;
  int ranks_ = 0;
  std::vector<std::unique_ptr<Sink>>
      sinks_;  // standard output, error unless it is the same, files if there are any
  std::vector<std::unique_ptr<ReaderWatch>> watches_;  // one for each sink
  std::vector<std::unique_ptr<Route>>
      routes_;  // one or two consoles, then rank 0's stdout and stderr, rank 1's, …
  size_t consoles_ = 0;
  bool begun_ = false;
  std::vector<UniqueFd> files_;
  std::vector<StderrTail> tails_;
  std::map<int, HostFrames> frames_;  // by host
  std::map<int, int> host_of_;        // by rank, of those that wrote
  std::time_t stamped_ = 0;
  int64_t dropped_bytes_ = 0;  // before they came to a sink
};

}  // namespace hvd
