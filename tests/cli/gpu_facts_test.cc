// What a host tells of its GPUs, sent and read.
#include "cli/gpu_facts.h"

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using Trouble = NvidiaSmiAnswers::Trouble;

GpuFacts two() {
  GpuFacts facts;
  facts.answers.texts = {
      "0, GPU-a, H100, 00000000:19:00.0, 1, 2, Enabled, Default, 550\n"
      "1, GPU-b, H100, 00000000:1A:00.0, 1, 2, Disabled, Default, 550\n",
      "MIG-a, 7, x, 5\n", "\tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n",
      "GPU 0: H100 (UUID: GPU-a)\n  MIG 1g Device 0: (UUID: MIG-a)\nGPU 1: H100 (UUID: GPU-b)\n"};
  facts.may_have_gpus = true;
  facts.nodes = {{"00000000:1A:00.0", 1}};
  return facts;
}

GpuFacts with(Trouble trouble, bool may_have_gpus = false) {
  GpuFacts facts;
  facts.answers.trouble = trouble;
  facts.answers.why = "nvidia-smi cannot be run: x";
  facts.may_have_gpus = may_have_gpus;
  return facts;
}

std::string trouble_of(const GpuFacts& facts) {
  try {
    gpus_of(facts);
    return "";
  } catch (const Error& error) {
    return error.code() == ErrorCode::kUnavailable ? error.what() : "wrong code";
  }
}

}  // namespace

TEST_CASE("gpu facts: the answers to all questions are put together") {
  const std::vector<Gpu> gpus = gpus_of(two());
  REQUIRE(gpus.size() == 2);
  CHECK(gpus[0].listed.parts == std::vector<std::string>{"MIG-a"});
  CHECK(gpus[0].uses.size() == 1);  // of its part
  CHECK(gpus[0].peers == std::vector<int>{1});
  CHECK_FALSE(gpus[0].numa_node);
  CHECK(gpus[1].numa_node == 1);
}

TEST_CASE("gpu facts: what is not understood beside the GPUs is not known") {
  GpuFacts facts = two();
  facts.answers.texts[1] = "GPU-b, [Insufficient Permissions], x, 1\n";
  facts.answers.texts[2] = "\tGPU0\tGPU1\n GPU0\tX\n";
  facts.answers.texts[3] = "GPU 0: H100 (UUID: \n";
  const std::vector<Gpu> gpus = gpus_of(facts);
  REQUIRE(gpus.size() == 2);
  CHECK((gpus[1].uses_unknown && !gpus[0].uses_unknown));
  CHECK((!gpus[0].peers_known && gpus[0].parts_unknown));
}

TEST_CASE("gpu facts: what is sent is what comes") {
  GpuFacts facts = two();
  facts.visible = "";
  facts.order = "PCI_BUS_ID";
  const GpuFacts same = from_proto(to_proto(facts));
  CHECK(same.answers.trouble == Trouble::kNone);
  CHECK(same.answers.texts == facts.answers.texts);
  CHECK(same.may_have_gpus);
  CHECK_FALSE(from_proto(to_proto(with(Trouble::kMissing))).may_have_gpus);
  CHECK(same.nodes == facts.nodes);
  CHECK(same.visible == "");
  CHECK(same.order == "PCI_BUS_ID");
  CHECK_FALSE(from_proto(to_proto(two())).visible);
  for (Trouble trouble : {Trouble::kMissing, Trouble::kFailed, Trouble::kLate})
    CHECK(from_proto(to_proto(with(trouble))).answers.trouble == trouble);
}

TEST_CASE("gpu facts: a message without answers is none of GPUs") {
  CHECK_THAT(trouble_of(from_proto({})), Catch::StartsWith("nvidia-smi says nothing; "));
  proto::GpuFacts odd;
  odd.set_trouble(77);
  odd.set_why("\x1b[2J");
  CHECK_THAT(trouble_of(from_proto(odd)), Catch::StartsWith("nvidia-smi says nothing; "));
  odd.set_trouble(int(Trouble::kFailed));
  CHECK(trouble_of(from_proto(odd)) == "?[2J; try it by hand");
}

TEST_CASE("gpu facts: that there is no GPU is told from that nobody knows") {
  CHECK_THAT(no_gpu(with(Trouble::kMissing)),
             Catch::StartsWith("there is no GPU here: no /dev/nvidia0 that may be opened, "));
  CHECK(no_gpu(with(Trouble::kMissing, true)).empty());
  CHECK(no_gpu(with(Trouble::kLate)).empty());
  CHECK(no_gpu(two()).empty());
  GpuFacts none = two();
  none.answers.texts[0] = "No devices were found\n";
  CHECK_THAT(no_gpu(none), Catch::StartsWith("NVIDIA's driver finds no GPU here; "));
  CHECK_THAT(trouble_of(with(Trouble::kMissing, true)), Catch::Contains("is not on the PATH; add"));
  CHECK_THAT(trouble_of(with(Trouble::kLate)), Catch::Contains("nvidia-smi does not answer; "));
}

}  // namespace hvd
