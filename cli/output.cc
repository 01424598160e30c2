#include "cli/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/rank_folder.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

bool same_file(int a, int b) {
  struct stat first, second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

bool wants_color(ColorMode mode, int fd) {
  if (mode != ColorMode::kAuto) return mode == ColorMode::kAlways;
  return isatty(fd) == 1 && !env::get("NO_COLOR") && env::get("TERM").value_or("dumb") != "dumb";
}

// Horovod's tag, the rest of a split line marked by a plus. Colours tell ranks apart; stderr's is
// bold.
LineTagger::Tag make_tag(int rank, Stream stream, bool color) {
  const bool error = stream == Stream::kStderr;
  const std::string tag = "[" + std::to_string(rank) + "]<" + (error ? "stderr" : "stdout") + ">";
  if (!color) return {tag + ":", tag + "+:", true};
  const std::string on =
      std::string("\x1b[") + (error ? "1;" : "") + std::to_string(31 + rank % 6) + "m";
  return {on + tag + ":\x1b[0m", on + tag + "+:\x1b[0m", true};
}

// Of a console's streams hvdrun's own words are the first.
constexpr size_t kOwnStream = 0, kRankStreams = 1;

std::vector<LineTagger::Tag> rank_tags(const OutputOptions& options, int ranks, int fd) {
  const bool color = options.tags && wants_color(options.color, fd);
  std::vector<LineTagger::Tag> all;
  for (int rank = 0; rank < ranks; ++rank)
    for (Stream stream : {Stream::kStdout, Stream::kStderr})
      all.push_back(options.tags ? make_tag(rank, stream, color) : LineTagger::Tag{});
  return all;
}

constexpr const char* kAdvice = "; give --output-filename a directory that can be written";

[[noreturn]] void refuse(const std::string& what, int error) {
  if (error == EMFILE || error == ENFILE)  // says nothing about the directory
    throw Error(ErrorCode::kUnavailable, "cannot " + what + ": " + error_text(error));
  throw Error(ErrorCode::kInvalidArgument, "cannot " + what + ": " + error_text(error) + kAdvice);
}

// And those above it.
void make_folder(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != path.npos; slash = path.find('/', slash + 1))
    mkdir(path.substr(0, slash).c_str(), 0777);  // the last one tells whether this worked
  if (mkdir(path.c_str(), 0777) == 0 || errno == EEXIST) return;
  refuse("make the output directory " + shell_word(path), errno);
}

}  // namespace

OutputOptions OutputOptions::of(const JobSpec& spec) {
  OutputOptions options;
  options.ranks = spec.size_open ? 0 : spec.size;
  options.tags = spec.tags;
  options.timestamps = spec.timestamps;
  options.color = spec.color;
  options.shown = spec.output_ranks;
  options.directory = spec.output_directory;
  return options;
}

Output::Output(OutputOptions options) : options_(std::move(options)) {
  open_console();
  if (options_.ranks > 0) seat(options_.ranks);
}

void Output::seat(int ranks) {
  ranks_ = ranks;
  tails_.resize(size_t(ranks));
  for (size_t i = 0; i < consoles_; ++i)
    routes_[i]->tagger.add(rank_tags(options_, ranks, int(i) + 1));
  if (!options_.directory.empty()) open_files();
}

void Output::add_sink(const char* thread, std::vector<int> fds) {
  sinks_.push_back(std::make_unique<Sink>(thread, std::move(fds), options_.queue_bytes_max));
  watches_.push_back(std::make_unique<ReaderWatch>());
}

void Output::open_console() {
  const auto open = [&](int fd, const char* thread, const char* name) {
    add_sink(thread, {fd});
    const LineTagger::Tag own{.first = {}, .continued = {}, .stamped = false};
    routes_.push_back(std::make_unique<Route>(sinks_.back().get(), watches_.back().get(), 0, name,
                                              std::vector{own}));
  };
  open(1, "stdout", "standard output");
  if (!same_file(1, 2)) open(2, "stderr", "standard error");
  consoles_ = routes_.size();
}

void Output::open_files() {
  make_folder(options_.directory);
  std::vector<int> fds;
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string folder = rank_folder(options_.directory, rank, ranks_);
    make_folder(folder);
    for (const char* stream : kRankFiles) {
      const std::string name = folder + stream;
      // What is there already may be a pipe: one that nobody reads is an error, no reason to wait.
      UniqueFd file(
          open(name.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
      if (!file || fcntl(file.get(), F_SETFL, O_WRONLY) != 0) {
        refuse("write the output file " + shell_word(name), errno);
      }
      fds.push_back(file.get());
      names.push_back(shell_word(name));
      files_.push_back(std::move(file));
    }
  }
  add_sink("files", fds);
  for (size_t i = 0; i < fds.size(); ++i) {
    const auto stream = i % 2 == 0 ? Stream::kStdout : Stream::kStderr;
    std::vector<LineTagger::Tag> tags = {LineTagger::Tag{}};
    if (options_.tags) tags = {make_tag(int(i / 2), stream, false)};
    routes_.push_back(std::make_unique<Route>(sinks_.back().get(), watches_.back().get(), i,
                                              names[i], std::move(tags)));
  }
}

bool Output::shows(int rank) const {
  return options_.shown.empty() ||
         std::binary_search(options_.shown.begin(), options_.shown.end(), rank);
}

// As asctime() has it, without the newline.
void Output::stamp() {
  const std::time_t now = std::time(nullptr);
  if (!options_.timestamps || now == stamped_) return;
  stamped_ = now;
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &parts);
  for (const auto& route : routes_) route->tagger.set_stamp(text);
}

void Output::begin() {
  if (std::exchange(begun_, true)) return;
  for (size_t i = 0; i < files_.size(); ++i)  // pipes and devices (EINVAL) have nothing to lose
    while (ftruncate(files_[i].get(), 0) != 0 && errno != EINVAL)
      if (errno != EINTR)
        throw Error(ErrorCode::kUnavailable, "cannot empty the output file " +
                                                 routes_[consoles_ + i]->name + ": " +
                                                 error_text(errno) + kAdvice);
}

void Output::feed(const FrameReader::Piece& piece, int host, TimePoint now) {
  stamp();
  const int rank = piece.header.rank;
  const size_t stream = size_t(rank) * 2 + size_t(piece.header.stream);
  const TimePoint sent{std::chrono::nanoseconds(piece.header.time_ns)};
  host_of_[rank] = host;
  frames_[host].note(stream, sent);
  if (shows(rank))
    feed(console(piece.header.stream), kRankStreams + stream, piece.bytes, now, sent);
  if (!files_.empty()) feed(*routes_[consoles_ + stream], 0, piece.bytes, now, sent);
  if (piece.header.stream == Stream::kStderr) tails_[size_t(rank)].feed(piece.bytes);
}

void Output::feed(Route& to, size_t stream, std::string_view bytes, TimePoint now, TimePoint sent) {
  if (drops(to))
    dropped_bytes_ += int64_t(bytes.size());
  else
    to.tagger.feed(stream, bytes, now, to.block, sent);
}

std::optional<TimePoint> Output::heard(size_t route, size_t stream, const Behind& behind) const {
  const bool console = route < consoles_;
  if (!behind || (console && stream < kRankStreams)) return std::nullopt;
  const size_t of_ranks = console ? stream - kRankStreams : route - consoles_;
  const auto host = host_of_.find(int(of_ranks / 2));
  if (host == host_of_.end() || !behind(host->second)) return std::nullopt;
  return frames_.at(host->second).heard(of_ranks);
}

void Output::say(std::string_view words, TimePoint now) {
  Route& to = console(Stream::kStderr);
  flush(to, false);
  to.tagger.feed(kOwnStream, words, now, to.block);
  flush(to, true);
}

bool Output::try_say(std::string_view words, TimePoint now) {
  if (console(Stream::kStderr).sink->full()) return false;
  say(words, now);
  return true;
}

void Output::flush() {
  for (const auto& to : routes_) flush(*to, false);
}

void Output::flush(Route& to, bool kept) {
  if (to.block.empty()) return;
  if (drops(to) && !kept) {
    dropped_bytes_ += int64_t(to.block.size());
    return to.block.clear();
  }
  to.sink->push(to.target, std::move(to.block), kept);
  to.block = to.sink->empty_block();
}

// What cannot be written at all is no reader's doing: the sink counts it.
bool Output::drops(const Route& to) const {
  return to.watch->dropped() && to.sink->error(to.target) == 0;
}

void Output::limit_readers(ReaderWatch::Duration patience, bool slow_too, TimePoint now) {
  for (const auto& watch : watches_) watch->limit(patience, slow_too, now);
}

void Output::look_at_readers(TimePoint now, bool ranks_ended) {
  for (size_t i = 0; i < sinks_.size(); ++i) {
    const auto at = watches_[i]->deadline();
    if (!at || now < *at) continue;
    flush();  // so that all there is waits in the sinks
    switch (watches_[i]->look(now, sinks_[i]->takes(), ranks_ended)) {
      case ReaderWatch::Due::kNothing:
        break;
      case ReaderWatch::Due::kDrop:
        sinks_[i]->drop();
        break;
      case ReaderWatch::Due::kGiveUp:
        sinks_[i]->give_up();
        break;
    }
  }
}

void Output::tick(TimePoint now, bool ranks_ended, const Behind& behind) {
  look_at_readers(now, ranks_ended);
  for (size_t i = 0; i < routes_.size(); ++i) {
    Route& to = *routes_[i];
    const auto deadline = to.tagger.next_deadline();
    if (deadline && now >= *deadline)
      to.tagger.tick(now, to.block, [&](size_t stream) { return heard(i, stream, behind); });
  }
}

void Output::finish() {
  for (const auto& to : routes_) to->tagger.finish(to->block);
}

std::optional<TimePoint> Output::next_deadline() const {
  std::optional<TimePoint> soonest;
  for (const auto& to : routes_)
    if (const auto at = to->tagger.next_deadline())
      soonest = soonest ? std::min(*soonest, *at) : *at;
  for (const auto& watch : watches_)
    if (const auto at = watch->deadline()) soonest = soonest ? std::min(*soonest, *at) : *at;
  return soonest;
}

bool Output::full() {
  bool full = false;
  for (const auto& sink : sinks_)
    full |= sink->full();  // no short cut: each has to remember that it was seen full
  return full;
}

bool Output::idle() const {
  return std::all_of(routes_.begin(), routes_.end(),
                     [](const auto& to) { return to->block.empty(); }) &&
         std::all_of(sinks_.begin(), sinks_.end(), [](const auto& sink) { return sink->idle(); });
}

// A file of --output-filename that is a pipe has a reader too, but that one is not ours.
bool Output::reader_gone(size_t route) const {
  if (route >= consoles_) return false;
  const int error = routes_[route]->sink->error(routes_[route]->target);
  return error == EPIPE || error == ECONNRESET;  // of a socket, with bytes unread
}

bool Output::reader_gone() const {
  return reader_gone(0) || reader_gone(1);  // of one console, the second is none
}

std::string Output::other_error() const {
  for (size_t i = 0; i < routes_.size(); ++i) {
    const Route& to = *routes_[i];
    const int error = to.sink->error(to.target);
    if (error != 0 && !reader_gone(i))
      return "cannot write " + to.name + ": " + std::strerror(error);
  }
  return {};
}

bool Output::lost() const {
  return lost_bytes() > 0 || std::any_of(routes_.begin(), routes_.end(), [](const auto& to) {
           return to->sink->error(to->target) != 0;
         });
}

int64_t Output::unread_bytes() const {
  int64_t bytes = dropped_bytes_;
  for (const auto& sink : sinks_) bytes += sink->unread_bytes();
  return bytes;
}

int64_t Output::lost_bytes() const {
  int64_t bytes = dropped_bytes_;
  for (const auto& sink : sinks_) bytes += sink->lost_bytes();
  return bytes;
}

int64_t Output::split_lines() const {
  int64_t splits = 0;
  for (size_t i = 0; i < consoles_; ++i) splits += routes_[i]->tagger.splits();
  return splits;
}

}  // namespace hvd
