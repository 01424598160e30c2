#include "cli/gpu_facts.h"

#include <cstdlib>

#include "cli/agent/worker_environment.h"
#include "cli/quoted.h"
#include "cli/read_file.h"
#include "runtime/base/error.h"
#include "runtime/base/present_gpus.h"

namespace hvd {
namespace {

using Trouble = NvidiaSmiAnswers::Trouble;

enum Question { kGpus, kUses, kPeers, kList, kQuestions };

std::map<std::string, int> look_at_nodes(const NvidiaSmiAnswers& answers) try {
  constexpr size_t kNumberBytesMax = 16;
  std::map<std::string, int> nodes;
  if (answers.trouble != Trouble::kNone) return nodes;
  for (const Gpu& gpu : read_gpus(answers.texts[kGpus])) {
    const FileText node =
        read_file("/sys/bus/pci/devices/" + pci_folder(gpu.pci) + "/numa_node", kNumberBytesMax);
    const bool known = node.error == 0 && !node.bytes.empty() && node.bytes[0] != '-';
    if (known) nodes[gpu.pci] = std::atoi(node.bytes.c_str());
  }
  return nodes;
} catch (const Error&) {  // who reads the answer says what is wrong with it
  return {};
}

}  // namespace

GpuFacts look_at_gpu_facts(const StartState& start, std::chrono::milliseconds limit) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  const GpuQuestion questions[kQuestions] = {gpu_question(), use_question(), peer_question(),
                                             list_question()};
  GpuFacts facts;
  facts.answers = ask_nvidia_smi(questions, start, limit);
  facts.may_have_gpus = may_have_gpus();
  facts.nodes = look_at_nodes(facts.answers);
  if (is_set_in(start.environment, kVisible))
    facts.visible = value_in(start.environment, kVisible, "");
  facts.order = value_in(start.environment, "CUDA_DEVICE_ORDER", "");
  return facts;
}

proto::GpuFacts to_proto(const GpuFacts& facts) {
  proto::GpuFacts message;
  message.set_trouble(int(facts.answers.trouble));
  message.set_why(facts.answers.why);
  for (const std::string& text : facts.answers.texts) message.add_answers(text);
  message.set_present(facts.may_have_gpus ? 1 : 0);
  for (const auto& [pci, number] : facts.nodes) {
    message.add_nodes()->set_pci(pci);
    message.mutable_nodes()->rbegin()->set_number(number);
  }
  message.set_hides(facts.visible.has_value());
  message.set_visible(facts.visible.value_or(""));
  message.set_order(facts.order);
  return message;
}

GpuFacts from_proto(const proto::GpuFacts& message) {
  GpuFacts facts;
  for (const Trouble one : {Trouble::kMissing, Trouble::kFailed, Trouble::kLate})
    if (message.trouble() == int(one)) facts.answers.trouble = one;
  facts.answers.why = printable(message.why());
  facts.answers.texts.assign(message.answers().begin(), message.answers().end());
  facts.answers.texts.resize(kQuestions);
  facts.may_have_gpus = message.present() != 0;
  for (const auto& node : message.nodes()) facts.nodes[node.pci()] = node.number();
  if (message.hides()) facts.visible = message.visible();
  facts.order = message.order();
  return facts;
}

std::vector<Gpu> gpus_of(const GpuFacts& facts) {
  if (const std::string why = no_answer(facts.answers, facts.may_have_gpus); !why.empty())
    throw Error(ErrorCode::kUnavailable, why);
  const std::vector<std::string>& texts = facts.answers.texts;
  std::vector<Gpu> gpus = read_gpus(texts[kGpus]);
  read_parts(texts[kList], gpus);
  for (Gpu& gpu : gpus)
    if (const auto node = facts.nodes.find(gpu.pci); node != facts.nodes.end())
      gpu.numa_node = node->second;
  read_uses(texts[kUses], gpus);
  read_peers(texts[kPeers], gpus);
  return gpus;
}

std::string no_gpu(const GpuFacts& facts) {
  if (facts.answers.trouble == Trouble::kMissing && !facts.may_have_gpus)
    return no_answer(facts.answers, facts.may_have_gpus);
  if (facts.answers.trouble == Trouble::kNone && says_no_gpu(facts.answers.texts[kGpus]))
    return "NVIDIA's driver finds no GPU here; give the container or the job some";
  return "";
}

}  // namespace hvd
