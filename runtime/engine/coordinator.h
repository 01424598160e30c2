// Decides in what order named operations run: who asked for what goes in, log entries come out.
//
// Pure: no I/O, clock or shared memory. A rank asks for an operation either by describing it in
// full or, once a description is bound to an id, by flipping that id's bit. As soon as all ranks
// have asked for a name one entry is appended: run it, or refuse it on every rank with a text that
// names both sides. Names beyond `names_max`, and those that stand for none and come but once, are
// never bound: they work the same and are described each time. Who asks *apart* describes it each
// time, too, and the entry then says so to all.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"

namespace hvd {

// An operation asked for in full.
struct Announcement {
  std::string name;
  uint64_t hash = 0;   // of all that has to agree
  std::string text;    // the same in words: "allreduce float32 [64, 10] Average"
  bool apart = false;  // need not agree: see Operation
};

struct LogEntry {
  enum class Kind : uint32_t {
    kRun,    // the operation bound to `id`
    kBind,   // the operation `name`; from now on its bit is `id`
    kOnce,   // the operation `name`, which gets no bit
    kRefuse  // `name` is refused: `text` says who asked for what
  };
  Kind kind = Kind::kRun;
  uint32_t id = 0;
  std::string name;
  std::string text;
  bool apart = false;  // some rank asked for it so
};

// A name that some ranks wait for and others have not asked for yet.
struct WaitingName {
  std::string name;
  uint64_t round = 0;  // differs between two uses of one name
  std::vector<int> missing;
  TimePoint seen = {};     // when it was so, where that is not known of now
  std::string asked = {};  // what for, where somebody has described it
};

class Coordinator {
 public:
  Coordinator(int ranks, size_t names_max);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Throws kInternal when this rank already waits for that name: its end refuses that.
  void announce(int rank, const Announcement& announcement);
  // A word of the ready bits of `rank` as it is now. A bit that changed since the last look asks
  // once.
  void observe(int rank, size_t word, uint64_t bits);

  // The next entry of the log, or nothing.
  std::optional<LogEntry> next();
  bool has_decided() const { return !ready_.empty(); }

  std::vector<WaitingName> waiting() const;
  uint64_t entries() const { return entries_; }  // that came out of next()
  // The entry of this number, from 1, as a name that waits for whoever has not acted on so many;
  // `acted`: by rank, on how many it has.
  WaitingName waiting_entry(uint64_t number, std::span<const uint64_t> acted) const;

 private:
  struct Said {
    uint64_t hash = 0;
    std::string text;
    bool apart = false;
  };
  struct Name {
    std::string name;
    bool bound = false;
    uint32_t id = 0;
    Said known;          // what `id` stands for
    uint64_t round = 0;  // how many entries there were before it was asked for anew
    uint64_t entry = 0;  // number of its last one
    int asked = 0;
    std::vector<uint8_t> by_rank;  // 1: asked
    std::vector<Said> said;        // by rank, only while somebody described it in full
  };

  Name& name_of(const std::string& name);
  void ask(int rank, Name& name, const Announcement* announcement);
  LogEntry decide(Name& name);
  std::string difference(const Name& name, size_t rank) const;

  const size_t ranks_;
  const size_t names_max_;
  std::unordered_map<std::string, std::unique_ptr<Name>> names_;
  std::vector<Name*> by_id_;
  std::vector<std::vector<uint64_t>> phase_;  // by rank: the bits as of the last look
  std::deque<Name*> ready_;
  std::deque<std::pair<uint64_t, std::string>> unbound_;  // the last entries of such names
  uint64_t entries_ = 0;
};

}  // namespace hvd
