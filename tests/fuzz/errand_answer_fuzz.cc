// Fuzz target: what a host answers who asks it to be cleaned, or of its GPUs. Whatever it says is
// told in lines that can be shown, or refused in one.
//
// The first byte chooses; the rest is the message.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/agent/clean_host.h"
#include "cli/gpu_facts.h"
#include "cli/gpu_table.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace {

using namespace hvd;

void expect_shown(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  HVD_CHECK(is_shown(text), "a line that cannot be shown");
}

void clean(const std::string& bytes) {
  proto::CleanReport report;
  if (!report.ParseFromString(bytes)) return;
  for (const bool dry_run : {false, true}) {
    const std::vector<std::string> lines = describe(report, {.dry_run = dry_run});
    HVD_CHECK(!lines.empty(), "nothing is said of a host");
    for (const std::string& line : lines) HVD_CHECK(is_shown(line), "a line that cannot be shown");
  }
  HostIdentity host;
  HVD_CHECK(!nobody_lives(report, host), "a host that is not known is taken for free");
}

void devices(const std::string& bytes) {
  proto::GpuFacts message;
  if (!message.ParseFromString(bytes)) return;
  const GpuFacts facts = from_proto(message);
  expect_shown(no_gpu(facts));
  try {
    const std::vector<Gpu> gpus = gpus_of(facts);
    GpuPlan plan;
    plan.seen = seen_by_cuda(std::nullopt, gpus);
    plan.ranks = {0, 1};
    expect_shown(gpu_table(gpus, plan));
  } catch (const Error& error) {
    HVD_CHECK(is_shown(error.what()), "an error that cannot be shown");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const std::string message(reinterpret_cast<const char*>(bytes + 1), count - 1);
  bytes[0] % 2 == 0 ? clean(message) : devices(message);
  return 0;
}
