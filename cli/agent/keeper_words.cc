#include "cli/agent/keeper_words.h"

#include <charconv>

namespace hvd {
namespace {

constexpr std::string_view kBegin = "keeper: the agent (pid ", kBehindPid = ") ";

}  // namespace

std::string agents_end(pid_t agent, const std::string& how) {
  return std::string(kBegin) + std::to_string(agent) + std::string(kBehindPid) + how;
}

std::string_view how_agent_ended(std::string_view line, pid_t agent) {
  if (!line.starts_with(kBegin)) return {};
  line.remove_prefix(kBegin.size());
  pid_t named = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), named);
  line.remove_prefix(size_t(end - line.data()));
  const bool is_its = agent == 0 || named == agent;
  if (error != std::errc() || !is_its || !line.starts_with(kBehindPid)) return {};
  line.remove_prefix(kBehindPid.size());
  return line.substr(0, line.find(';'));
}

}  // namespace hvd
