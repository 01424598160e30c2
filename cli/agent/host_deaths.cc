// Deaths of ranks, broken epochs, and ranks that do not answer: "Waiting, death, giving up".
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "cli/agent/host_memory_impl.h"
#include "cli/agent/process_state.h"
#include "cli/quoted.h"
#include "runtime/base/utf8.h"

namespace hvd {

// waitid() returned the worker. It may have been a wrapper whose program lives on.
void HostMemory::Impl::ended(int id, bool well) {
  Slot& slot = slots.at(static_cast<size_t>(id));
  if (slot.worker_ended) return;
  slot.worker_ended = true;
  if (slot.speaks() && slot.pid == slot.worker) {
    process_ended(id, well);
    return;
  }
  tell_who_wants();  // one less to wait for
}

// The pidfd of the process that spoke for the slot is readable, or it was reaped.
void HostMemory::Impl::process_ended(int id, bool well) {
  Slot& slot = slots[static_cast<size_t>(id)];
  if (!slot.speaks()) return;
  const std::optional<int> status = wait_status_of(slot.pid, slot.pidfd.get());
  loop.unwatch(slot.pidfd.get());
  slot.pidfd.reset();
  watch.forget(id);
  declare_dead(slot, well, status);
  if (slot.connection != nullptr) drop(*slot.connection);
  tell_who_wants();
}

void HostMemory::Impl::found(int id, pid_t pid, DeathWatch::Finding finding) {
  Slot& slot = slots[static_cast<size_t>(id)];
  if (!slot.speaks() || slot.pid != pid) return;  // an older process of that slot
  if (finding != DeathWatch::Finding::kAlive) {
    declare_dead(slot, finding == DeathWatch::Finding::kEndedWell,
                 wait_status_of(pid, slot.pidfd.get()));
    tell_who_wants();
    return;
  }
  const bool is_back = slot.connection != nullptr;  // after an exec, which was seen since
  if (slot.dead || is_back || owes_nothing(slot)) return;
  warn("rank " + std::to_string(slot.rank) + " (process " + std::to_string(pid) +
       ") closed its socket and lives on: exec, or its descriptors were closed");
  raise_trouble(TroubleReason::kLostSocket, slot.local_rank);
}

// Whoever is done with the epoch, by shutdown() or by its failure, owes it nothing any more.
bool HostMemory::Impl::owes_nothing(const Slot& slot) const {
  return !in_epoch(slot) || words(slot).left.load(std::memory_order_acquire) != 0 ||
         words(slot).quiet.load(std::memory_order_acquire) != 0;
}

// In dying, a process closes its sockets before anybody is told of its death. So no verdict yet.
void HostMemory::Impl::socket_ended(Slot& slot) {
  slot.asked = false;
  watch.suspect(static_cast<int>(&slot - slots.data()), slot.pid);
}

void HostMemory::Impl::declare_dead(Slot& slot, bool well, std::optional<int> status) {
  if (slot.dead) return;
  slot.dead = true;
  slot.ended_well = well;
  slot.asked = false;
  if (slot.page.mapping) slot.doing = describe(read_status(slot.status()), Clock::now());
  if (in_epoch(slot)) {
    slot.left = words(slot).left.load(std::memory_order_acquire) != 0;
    slot.stranded_others = !slot.left && others_live(slot.local_rank);
  }
  // Before anybody hears of it: whoever then ends since it did, on whichever host, has ended later.
  if (events.dead) {
    const bool was_told = slot.page.mapping && read_status(slot.status()).told;
    events.dead(slot_number(slot),
                {slot.pid, status, slot.stranded_others && slot.given_up.empty() && !was_told});
  }
  if (in_epoch(slot)) freeze(slot);
}

// The order matters: the word, then the trouble that makes ranks look at the words, then the bells.
// A rank that has left owes nobody anything: its end breaks nothing. One that ended well did not
// die, which all hosts are told as the reason, ahead of its end.
void HostMemory::Impl::freeze(const Slot& slot) {
  RankWords& mine = words(slot);
  store->ended(slot.local_rank);
  mine.dead.store(1, std::memory_order_release);
  if (mine.left.load(std::memory_order_acquire) != 0) return;
  if (slot.ended_well && epoch->block().reason.load(std::memory_order_acquire) == 0)
    copy_text(mine.reason, sizeof mine.reason,
              printable(shown(ranks[static_cast<size_t>(slot.local_rank)])) +
                  " ended (exit status 0) while other ranks went on");
  raise_trouble(slot.ended_well ? TroubleReason::kEnded : TroubleReason::kDeath, slot.local_rank);
  if (events.died) events.died(epoch->epoch(), slot_number(slot));
}

bool HostMemory::Impl::others_live(int local_rank) const {
  for (int i = 0; i < epoch->local_size(); ++i) {
    const RankWords& other = epoch->block().rank(i);
    if (i != local_rank && other.dead.load(std::memory_order_acquire) == 0 &&
        other.left.load(std::memory_order_acquire) == 0)
      return true;
  }
  return anyone_elsewhere_lives();
}

void HostMemory::Impl::raise_trouble(TroubleReason reason, int local_rank) {
  ControlBlock& block = epoch->block();
  uint32_t none = 0;
  block.reason.compare_exchange_strong(
      none, static_cast<uint32_t>(reason) | static_cast<uint32_t>(local_rank) << 8);
  block.trouble.fetch_add(1, std::memory_order_seq_cst);
  ask();
}

// Why the epoch is broken, in words that all survivors get alike.
std::string HostMemory::Impl::trouble_text() const {
  const uint32_t word = epoch->block().reason.load(std::memory_order_acquire);
  const auto reason = static_cast<TroubleReason>(word & 0xff);
  const int local_rank = static_cast<int>(word >> 8);
  if (local_rank >= epoch->local_size()) return "the epoch is broken";
  const std::string who = "rank " + std::to_string(ranks[static_cast<size_t>(local_rank)]);
  if (reason == TroubleReason::kNone) return "the epoch is broken";
  if (reason == TroubleReason::kDeath) return who + " has died";
  if (reason == TroubleReason::kLostSocket) return who + " has closed its socket to the agent";
  const char* text = reason == TroubleReason::kElsewhere ? epoch->block().elsewhere
                                                         : epoch->block().rank(local_rank).reason;
  return std::string(text, strnlen(text, sizeof RankWords::reason));
}

// Who is to blame, of those that were waited for in vain or of its own, is in the words of the rank
// that broke the epoch off.
void HostMemory::Impl::add_waited_in_vain(RankFacts& facts) const {
  const uint32_t word = epoch->block().reason.load(std::memory_order_acquire);
  const auto reason = static_cast<TroubleReason>(word & 0xff);
  const int waited = static_cast<int>(word >> 8);
  if (reason == TroubleReason::kElsewhere && !elsewhere.heard.waited_for.empty()) {
    facts.waited_in_vain = printable(elsewhere.heard.reason);
    facts.waited_for = elsewhere.heard.waited_for;
    return;
  }
  if ((reason != TroubleReason::kTimeout && reason != TroubleReason::kLeft &&
       reason != TroubleReason::kEngineError) ||
      waited >= epoch->local_size())
    return;
  const RankWords& words = epoch->block().rank(waited);
  facts.waited_in_vain = printable({words.reason, strnlen(words.reason, sizeof words.reason)});
  facts.waited_for = missed_by(waited);
}

// Everybody is rung, asleep by the book or not: the publisher they wait for may be the dead one.
void HostMemory::Impl::ask() {
  store->broken(trouble_text());
  epoch->ring_all();
  questions->ask(Clock::now(), epoch->block().trouble.load(std::memory_order_acquire), answers());
  tell_broken();
}

std::vector<Questions::Answer> HostMemory::Impl::answers() {
  std::vector<Questions::Answer> all;
  for (int i = 0; i < epoch->local_size(); ++i) {
    const RankWords& mine = epoch->block().rank(i);
    Questions::Answer answer;
    answer.gone = mine.dead.load(std::memory_order_acquire) != 0 ||
                  mine.quiet.load(std::memory_order_acquire) != 0 ||
                  mine.left.load(std::memory_order_acquire) != 0;
    answer.seen = mine.seen.load(std::memory_order_acquire);
    const Slot* slot = member(i);
    if (!answer.gone && slot != nullptr && questions->open() &&
        !questions->answered(i, answer.seen)) {
      if (const auto state = read_process_state(slot->pid)) {
        answer.stopped = state->stopped();
        answer.held_by_debugger = state->held_by_debugger();
      }
    }
    all.push_back(answer);
  }
  return all;
}

void HostMemory::Impl::look(TimePoint now) {
  if (!questions || !questions->next_look() || now < *questions->next_look()) return;
  const std::vector<Questions::Answer> all = answers();
  const Questions::Verdict verdict = questions->look(now, all);
  for (int i : verdict.give_up)
    if (Slot* slot = member(i)) give_up(*slot, all[static_cast<size_t>(i)].stopped);
  if (verdict.ask_again) {
    epoch->block().trouble.fetch_add(1, std::memory_order_seq_cst);
    ask();
  }
}

// Giving up is never an outcome: the rank is killed, and its death decides.
void HostMemory::Impl::give_up(Slot& slot, bool stopped) {
  if (slot.given_up.empty()) {
    const GivenUp how = stopped ? GivenUp::kStopped : GivenUp::kSilent;
    words(slot).given_up.store(how, std::memory_order_release);
    slot.given_up =
        printable(trouble_text()) + given_up_text(ranks[static_cast<size_t>(slot.local_rank)], how);
    if (events.given_up) events.given_up(static_cast<int>(&slot - slots.data()), slot.given_up);
  }
  if (slot.pidfd) syscall(SYS_pidfd_send_signal, slot.pidfd.get(), SIGKILL, nullptr, 0);
}

}  // namespace hvd
