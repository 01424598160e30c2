#include "runtime/engine/registered_memory.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "hvd/error.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/engine_parts.h"

namespace hvd {
namespace {

// A rank's answer is its first byte. Of all but kYes the rest says why: it cannot be done here, it
// failed here, or others did and it waited for them; either of the last two leaves nothing but to
// connect anew.
constexpr char kYes = '1', kNo = '0', kFailed = '!', kWaited = '?';

std::string of_this_rank(const std::shared_ptr<Engine::Parts>& parts, const std::string& why) {
  return rank_text(*parts->peers, parts->peers->world().rank) + ": " + why;
}

// A submission of the log, and what became of it as an answer.
std::string submit_and_wait(const std::shared_ptr<Engine::Parts>& parts, OperationKind kind,
                            const std::string& name, const RegisteredMemory::Piece& piece) {
  auto submission = std::make_unique<Submission>();
  const std::string own = ".list.memory";
  submission->name = std::string(head_of(name, LogWords::kNameBytes - 1 - own.size())) + own;
  submission->keep_alive = piece.memory;
  submission->operation.kind = kind;
  submission->operation.on_device = true;
  submission->operation.result = {piece.memory.get(), piece.bytes, DataType::kUint8};
  const std::shared_ptr<Negotiation> negotiation(parts, parts->negotiation.get());
  try {
    negotiation->submit(std::move(submission), negotiation)->wait();
    return {kYes};
  } catch (const CommFailure&) {
    throw;
  } catch (const Error& error) {
    const char answer = error.code() == ErrorCode::kTimeout       ? kWaited
                        : error.code() == ErrorCode::kUnavailable ? kFailed
                                                                  : kNo;
    return answer + of_this_rank(parts, error.what());
  }
}

auto is(char wanted) {
  return [wanted](const std::string& answer) { return answer[0] == wanted; };
}

}  // namespace

bool RegisteredMemory::add(const std::shared_ptr<Engine::Parts>& parts, const std::string& name,
                           uint32_t number, Piece piece, const std::string& unwilling) {
  if (gave_up_) return false;
  // Before: if the epoch breaks the communicator may have it.
  entries_.push_back({number, piece});
  std::string mine = submit_and_wait(parts, OperationKind::kRegister, name, piece);
  if (!unwilling.empty() && mine[0] == kYes) mine = kNo + of_this_rank(parts, unwilling);
  const std::vector<std::string> answers = parts->gather(name, mine);
  if (std::ranges::all_of(answers, is(kYes))) return true;
  for (const char why : {kFailed, kWaited})
    if (const auto said = std::ranges::find_if(answers, is(why)); said != answers.end()) {
      give_up(parts, name, said->substr(1));
      return false;
    }
  submit_and_wait(parts, OperationKind::kDeregister, name, piece);
  entries_.pop_back();
  warn(parts, ", so that NCCL copies gradients once more, since a rank cannot; " +
                  std::ranges::find_if(answers, is(kNo))->substr(1));
  return false;
}

void RegisteredMemory::give_up(const std::shared_ptr<Engine::Parts>& parts, const std::string& name,
                               const std::string& why) {
  gave_up_ = true;
  submit_and_wait(parts, OperationKind::kReconnect, name, {});
  entries_.clear();
  warned_ = false;  // this is another matter than one that cannot
  warn(parts,
       " until init() is called again, so that NCCL copies gradients once more, since it failed on "
       "a rank; " +
           why);
}

// Once, whatever lists there are.
void RegisteredMemory::warn(const std::shared_ptr<Engine::Parts>& parts, const std::string& words) {
  if (!std::exchange(warned_, true) && parts->peers->world().rank == 0)
    parts->warn("GPU memory is not registered with NCCL" + words);
}

void RegisteredMemory::give_back(const std::shared_ptr<Engine::Parts>& parts,
                                 const std::string& name) {
  std::string mine;
  for (const Entry& entry : entries_)
    if (entry.is_let_go())
      mine.append(reinterpret_cast<const char*>(&entry.number), sizeof entry.number);
  const std::vector<std::string> all = parts->gather(name, mine);
  const auto is_in = [](const std::string& numbers, uint32_t number) {
    for (size_t at = 0; at < numbers.size(); at += sizeof number)
      if (memcmp(numbers.data() + at, &number, sizeof number) == 0) return true;
    return false;
  };
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool by_all = std::ranges::all_of(
        all, [&](const std::string& numbers) { return is_in(numbers, entry->number); });
    if (!by_all) {
      ++entry;
      continue;
    }
    submit_and_wait(parts, OperationKind::kDeregister, name, entry->piece);
    entry = entries_.erase(entry);
  }
}

}  // namespace hvd
