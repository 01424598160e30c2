#include "tests/support/in_process_world.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "hvd/error.h"

namespace hvd {

std::pair<UniqueFd, UniqueFd> connected_pair() {
  // Ports stay taken for a minute after use, of each address: so each pair has another one's.
  static std::atomic<uint32_t> made{0};
  const uint32_t host = (static_cast<uint32_t>(getpid()) * 61 + made++) % 0xffff + 1;
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (host << 8));
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  UniqueFd first(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (bind(first.get(), any, length) != 0 || bind(listener.get(), any, length) != 0 ||
      listen(listener.get(), 1) != 0 || getsockname(listener.get(), any, &length) != 0 ||
      connect(first.get(), any, length) != 0)
    throw std::runtime_error("the test cannot connect on loopback");
  UniqueFd second(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const int flags = fcntl(first.get(), F_GETFL);
  if (!second || fcntl(first.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    throw std::runtime_error("the test cannot accept on loopback");
  return {std::move(first), std::move(second)};
}

std::pair<UniqueFd, UniqueFd> connected_far() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw std::runtime_error("the test cannot have a pair of sockets");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

InProcessWorld::InProcessWorld(const std::vector<int>& ranks_per_host, uint32_t epoch) {
  for (size_t host = 0; host < ranks_per_host.size(); ++host) {
    first_rank_.push_back(static_cast<int>(host_of_.size()));
    host_of_.insert(host_of_.end(), static_cast<size_t>(ranks_per_host[host]),
                    static_cast<int>(host));
  }
  for (size_t host = 0; host < ranks_per_host.size(); ++host)
    hosts_.push_back(
        std::make_unique<InProcessHost>(ranks_per_host[host], epoch,
                                        HostPlace{.host = static_cast<int>(host),
                                                  .hosts = static_cast<int>(ranks_per_host.size()),
                                                  .first_rank = first_rank_[host],
                                                  .ranks_per_host = ranks_per_host,
                                                  .others = this}));
  for (const auto& host : hosts_) host->share_store_of(*hosts_.front());
}

// Agents tell each other things until all are gone.
InProcessWorld::~InProcessWorld() {
  for (const auto& host : hosts_) host->stop_agent();
}

int InProcessWorld::local_rank(int rank) const {
  return rank - first_rank_[static_cast<size_t>(host_of_[static_cast<size_t>(rank)])];
}

void InProcessWorld::refuse_links(const std::string& reason) {
  std::lock_guard lock(mutex_);
  refusal_ = reason;
}

void InProcessWorld::relay_death(int world_rank) {
  for (const auto& host : hosts_)
    if (host.get() != &host_of(world_rank)) host->hear_of_death(world_rank);
}

void InProcessWorld::relay_trouble(int host, const std::string& text) {
  for (int k = 0; k < hosts(); ++k)
    if (k != host) this->host(k).hear_of_trouble(text);
}

void InProcessWorld::request_links(uint32_t id, int world_rank, std::span<const int> ranks) {
  std::lock_guard lock(mutex_);
  requests_[{id, world_rank}].assign(ranks.begin(), ranks.end());
  for (int rank : ranks) {
    const LinkKey key{id, std::min(rank, world_rank), std::max(rank, world_rank)};
    if (links_.count(key) == 0) links_[key] = make_link_();
  }
}

std::optional<std::vector<UniqueFd>> InProcessWorld::take_links(uint32_t id, int world_rank) {
  std::lock_guard lock(mutex_);
  const auto request = requests_.find({id, world_rank});
  if (request == requests_.end()) return std::nullopt;
  if (!refusal_.empty()) throw Error(ErrorCode::kUnavailable, refusal_);
  std::vector<UniqueFd> taken;
  for (int rank : request->second) {
    auto& ends = links_.at({id, std::min(rank, world_rank), std::max(rank, world_rank)});
    taken.push_back(std::move(world_rank < rank ? ends.first : ends.second));
  }
  requests_.erase(request);
  if (links_taken_) links_taken_(id, world_rank, taken);
  return taken;
}

}  // namespace hvd
