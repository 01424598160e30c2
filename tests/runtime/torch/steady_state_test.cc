// What moves in a training step, looked at from a third process: the test maps nothing and shares
// no code with the ranks' data path; it reads their memory, and asks the kernel what is where.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "hvd/hvd.h"
#include "runtime/base/control_block.h"
#include "runtime/base/env.h"
#include "tests/runtime/torch/watched_ranks.h"
#include "tests/support/rank_program.h"

namespace hvd {
namespace {

constexpr int kWarmSteps = 20;  // every slot of every kind is used by then
constexpr int kSteps = 40;
constexpr int kFirstSteps = 3;
constexpr int kFaulted = 40;  // exit code of a rank that stored into read-only memory

// --- In the ranks.

void report_fault(int, siginfo_t* info, void*) {
  rank_board().numbers[kFault] = reinterpret_cast<intptr_t>(info->si_addr);
  _exit(kFaulted);
}

// All shared memory but what a step has to write: the own piece of the bucket list, the gradients
// in the peers' pieces of it, the control block, the own status page.
void protect(const WatchedRank& rank, int how) {
  const SharedPiece own = rank.own_piece();
  for (const SharedPiece& piece : shared_pieces(getpid())) {
    if (!piece.name.starts_with("hvd-segment") || piece.inode == own.inode) continue;
    const bool peers = piece.bytes == own.bytes;
    if (mprotect(reinterpret_cast<void*>(piece.begin), peers ? kHomes : piece.bytes, how) != 0)
      throw std::runtime_error("mprotect");
  }
}

// What a step must not do: four ways of it.
void stray(const WatchedRank& rank) {
  const std::string what = env::get("HVD_TEST_STRAY").value_or("");
  if (what == "barrier") barrier();
  if (what == "negotiation") allreduce_async(std::vector<int>{1}, {.name = "negotiated"}).wait();
  if (what == "store") {  // into the last bucket's spare
    const SharedPiece own = rank.own_piece();
    *reinterpret_cast<uint64_t*>(own.begin + own.bytes - 8) += 1;
  }
  if (what == "block") {  // into a text that nobody reads in a world that is whole
    for (const SharedPiece& piece : shared_pieces(getpid()))
      if (piece.name == "hvd-block")
        for (char& letter : reinterpret_cast<ControlBlock*>(piece.begin)->elsewhere) letter = 'x';
  }
}

const RankProgram steps("steps", [] {
  return run_watched([] {
    WatchedRank rank;
    rank.train(0, kWarmSteps);
    rank.tell_gradients();
    meet(kWarm);
    if (env::get("HVD_TEST_PROTECT")) {
      struct sigaction action{};
      action.sa_sigaction = report_fault;
      action.sa_flags = SA_SIGINFO;
      sigaction(SIGSEGV, &action, nullptr);
      protect(rank, PROT_READ);
    }
    rank.train(kWarmSteps, kWarmSteps + kSteps / 2);
    stray(rank);
    rank.train(kWarmSteps + kSteps / 2, kWarmSteps + kSteps);
    meet(kStepped);
    protect(rank, PROT_READ | PROT_WRITE);
  });
});

const RankProgram first_steps("first steps", [] {
  return run_watched([] {
    WatchedRank rank;
    meet(kWarm);
    stray(rank);
    rank.train(0, kFirstSteps);
    rank.tell_gradients();
    meet(kStepped);
  });
});

// --- In the test.

// Which words may change, said anew here: an operation's entry with the step's control word,
// `done`, gradients; in the control block who sleeps, and on which CPU who waits for long waits.
struct Seen {
  size_t entries = 0, done = 0, gradient = 0, strays = 0;
  std::string first_stray;
};

bool is_entry(size_t offset, int ranks, size_t parameters) {
  const size_t control = 16 * static_cast<size_t>(ranks) + parameters;
  const size_t lines = (control + kLineBytes - 1) / kLineBytes;
  return offset < sizeof(CommunicatorWords::lines) && offset / 64 % kLines < lines;
}

// One word of the watch is both a rank's `asleep` and its `cpu`.
bool is_sleeper(size_t offset, int ranks) {
  static_assert(offsetof(RankWords, asleep) == 0 && offsetof(RankWords, cpu) == 4);
  for (size_t k = 0; k < static_cast<size_t>(ranks); ++k)
    if (offset == sizeof(ControlBlock) + k * sizeof(RankWords)) return true;
  return false;
}

Seen judge(const ChangeWatch& watch, const std::vector<Gradients>& places, HostJob& job) {
  const int ranks = static_cast<int>(places.size());
  const auto parameters = nets::mlp()()->parameters();
  uint64_t block = 0;
  std::set<uint64_t> private_ones;  // for the agent or the test; no other rank maps them
  for (const SharedPiece& piece : shared_pieces(job.rank(0).pid)) {
    if (piece.name == "hvd-block") block = piece.inode;
    if (piece.name == "hvd-status" || piece.name == "hvd-test-boards")
      private_ones.insert(piece.inode);
  }
  const size_t control = (sizeof(CommunicatorWords) + 63) / 64 * 64;
  const size_t control_end = control + 16 * static_cast<size_t>(ranks) + parameters.size();
  Seen seen;
  for (const auto& [inode, offsets] : watch.changed()) {
    if (private_ones.contains(inode)) continue;
    const auto place =
        std::find_if(places.begin(), places.end(),
                     [&, at = inode](const Gradients& one) { return one.piece.inode == at; });
    for (const size_t offset : offsets) {
      if (inode == block && is_sleeper(offset, ranks)) continue;
      if (place != places.end()) {
        bool is_gradient = false;
        for (size_t i = 0; i < parameters.size(); ++i)
          is_gradient |=
              offset + 8 > place->offsets[i] && offset < place->offsets[i] + parameters[i].nbytes();
        const bool is_control = offset >= control && offset < control_end;
        const bool entry = is_entry(offset, ranks, parameters.size()) || is_control;
        const bool done = offset == offsetof(CommunicatorWords, done);
        seen.gradient += is_gradient;
        seen.entries += entry;
        seen.done += done;
        if (is_gradient || entry || done) continue;
      }
      if (seen.strays++ == 0)
        seen.first_stray = (place != places.end() ? "bucket list"
                            : inode == block      ? "block"
                                                  : "other segment") +
                           std::string(" at ") + std::to_string(offset);
    }
  }
  return seen;
}

// Runs the program's steps under a watch of the memory that is named so.
Seen watch_steps(int ranks, const std::vector<std::string>& environment,
                 const std::string& program = "steps", const std::string& memory = "hvd-") {
  HostJob job(watched_job(program, ranks, environment));
  REQUIRE(await_stage(job, ranks, kWarm));
  ChangeWatch watch(job.rank(0).pid, memory);
  release(job, ranks, kWarm);
  const bool stepped = await_stage(job, ranks, kStepped, [&] { watch.look(); });
  INFO(job.describe());
  REQUIRE(stepped);
  watch.look();
  const Seen seen = judge(watch, gradients_of(job, ranks), job);
  release(job, ranks, kOver);
  REQUIRE(job.run());
  for (int k = 0; k < ranks; ++k) REQUIRE(job.rank(k).status == 0);
  return seen;
}

// All but the control block, where a rank's engine thread may only now take the mutex that says it
// lives.
Seen watch_first_steps(int ranks, const std::vector<std::string>& environment) {
  return watch_steps(ranks, environment, "first steps", "hvd-segment");
}

// How many words of gradients and spares move in the steps.
size_t moved_words(const std::vector<std::string>& environment) {
  HostJob job(watched_job("steps", 2, environment));
  REQUIRE(await_stage(job, 2, kWarm));
  ChangeWatch watch(job.rank(0).pid, "hvd-segment");
  release(job, 2, kWarm);
  REQUIRE(await_stage(job, 2, kStepped));
  watch.look();
  size_t moved = 0;
  for (const auto& [inode, offsets] : watch.changed())
    moved += static_cast<size_t>(std::distance(offsets.lower_bound(kHomes), offsets.end()));
  return moved;
}

}  // namespace

TEST_CASE("steady state: beside the data only entries, done, the control word and sleepers move") {
  for (const int ranks : {2, 4}) {
    for (const char* buckets : {"HVD_TEST_BUCKET_BYTES=2097152", "HVD_TEST_BUCKET_BYTES=12288"}) {
      const Seen seen = watch_steps(ranks, {buckets});
      CAPTURE(ranks, buckets, seen.first_stray);
      CHECK(seen.strays == 0);
      // The watch sees what has to move: in each rank's piece 8 slots, `done`, most gradients.
      CHECK(seen.entries >= 8 * static_cast<size_t>(ranks));
      CHECK(seen.done == static_cast<size_t>(ranks));
      CHECK(seen.gradient > 6000 * static_cast<size_t>(ranks));
    }
  }
}

TEST_CASE("steady state: the watch sees a store and an operation too many") {
  for (const char* what : {"HVD_TEST_STRAY=barrier", "HVD_TEST_STRAY=store"}) {
    CAPTURE(what);
    CHECK(watch_steps(2, {what}).strays > 0);
  }
  const size_t words = sizeof(ControlBlock::elsewhere) / ChangeWatch::kWordBytes;
  CHECK(watch_steps(2, {"HVD_TEST_STRAY=block"}).strays == words);
}

TEST_CASE("steady state: from the first step on nothing is negotiated and nothing else moves") {
  for (const int ranks : {2, 4}) {
    for (const char* buckets : {"HVD_TEST_BUCKET_BYTES=2097152", "HVD_TEST_BUCKET_BYTES=12288"}) {
      const Seen seen = watch_first_steps(ranks, {buckets});
      CAPTURE(ranks, buckets, seen.first_stray);
      CHECK(seen.strays == 0);
      CHECK(seen.done == static_cast<size_t>(ranks));
      CHECK(seen.gradient > 6000 * static_cast<size_t>(ranks));
    }
  }
  for (const char* what : {"HVD_TEST_STRAY=barrier", "HVD_TEST_STRAY=negotiation"}) {
    CAPTURE(what);
    CHECK(watch_first_steps(2, {what}).strays > 0);
  }
}

TEST_CASE("steady state: steps store into nothing that is read-only") {
  for (const int ranks : {2, 4}) {
    for (const char* buckets : {"HVD_TEST_BUCKET_BYTES=2097152", "HVD_TEST_BUCKET_BYTES=12288"})
      CHECK(watch_steps(ranks, {buckets, "HVD_TEST_PROTECT=1"}).strays == 0);
  }
}

TEST_CASE("steady state: an operation too many stores into what is read-only, and ends the rank") {
  HostJob job(watched_job("steps", 2, {"HVD_TEST_STRAY=barrier", "HVD_TEST_PROTECT=1"}));
  REQUIRE(await_stage(job, 2, kWarm));
  release(job, 2, kOver);
  REQUIRE(job.run());
  INFO(job.describe());
  int faulted = 0;
  for (int k = 0; k < 2; ++k)
    faulted += job.rank(k).status == kFaulted && job.board(k).numbers[kFault] != 0;
  CHECK(faulted > 0);
}

TEST_CASE("steady state: with fp16 half the bytes move") {
  const size_t whole = moved_words({}), half = moved_words({"HVD_TEST_FP16=1"});
  CAPTURE(whole, half);
  CHECK(whole > 12000);  // most of 12,233 gradients, two a word, in two ranks
  CHECK(half > whole * 9 / 20);
  CHECK(half < whole * 11 / 20);
}

}  // namespace hvd
