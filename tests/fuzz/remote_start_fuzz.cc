// Fuzz target: what a host sends before its agent is one. Whatever comes, the start is ready, has
// failed with a reason that can be shown, or waits; and it keeps little.
//
// The first byte says how large the pieces are in which the rest comes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cli/ship/loader_answer.h"
#include "cli/ship/ship_offer.h"
#include "cli/ssh/agent_file.h"
#include "cli/ssh/remote_start.h"
#include "cli/ssh/ssh_words.h"
#include "runtime/base/error.h"

namespace {

using namespace hvd;

constexpr uint64_t kFileBytes = 100;
constexpr size_t kKept = 64u << 10;

bool can_be_shown(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void start_with(std::string_view output, size_t piece, const ShipOffer* offer) {
  TimePoint now{};
  RemoteStart start(kFileBytes, "x86_64", now, offer);
  while (!output.empty()) {
    now += std::chrono::milliseconds(300);
    start.take_output(output.substr(0, piece), now);
    output.remove_prefix(std::min(piece, output.size()));
    if (start.asks_for_file()) start.answer("sum", now);
    start.nudge(now);
    start.text_written(start.text().size());
    if (start.wants_file()) start.file_written(kFileBytes - start.file_at());
    if (const auto wanted = start.wants_shipped()) {
      HVD_CHECK(size_t(wanted->file) < offer->files.size() && wanted->bytes > 0, "no such piece");
      start.shipped_written((wanted->bytes + 1) / 2);
    }
    HVD_CHECK(start.shipped() <= start.to_ship(), "more than was asked for");
    HVD_CHECK(start.noise().size() <= kKept && start.text().size() <= kKept, "too much is kept");
    HVD_CHECK(start.failure().empty() == (start.phase() != StartPhase::kFailed), "which is it?");
  }
  if (start.phase() == StartPhase::kFailed)
    HVD_CHECK(can_be_shown(start.failure()), "a reason that a terminal would obey");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, count - 1);
  const size_t piece = 1 + bytes[0] * size_t(bytes[0]);
  start_with(rest, piece, nullptr);
  const ShipOffer offer{"list", {{"/a", 10, 0}, {"/b", 0, 0}, {"/c", 1, 0}}, 11};
  start_with(rest, piece, &offer);
  read_loader_answer(rest, rest);
  HVD_CHECK(can_be_shown(explain_ssh(rest, rest, 255 << 8, "ssh", true).reason), "hostile words");
  elf_identity(std::as_bytes(std::span(rest)));
  return 0;
}
