#include "runtime/agent_connection.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "runtime/base/control_block.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/open_files.h"

namespace hvd {
namespace {

constexpr const char* kAgentEnded = "the agent of this host has ended; the job is over";
constexpr const char* kClosedHere =
    "the program has closed descriptors of libhvd's, its connection to the agent among them; let "
    "it close only those that it opened itself";

std::string no_room() {
  return std::string("no room for the descriptors that the agent passes; ") + kRaiseOpenFiles;
}

[[noreturn]] void throw_refusal(const AgentMessage& refusal) {
  if (refusal.value == kCommFailureCode) throw CommFailure(refusal.text(), true);
  const auto last = static_cast<int64_t>(ErrorCode::kInternal);
  const bool known = refusal.value >= 0 && refusal.value <= last;
  throw Error(known ? static_cast<ErrorCode>(refusal.value) : ErrorCode::kInternal, refusal.text());
}

StatusPage* map_status_page(const AgentMessage& message) {
  if (message.fds.size() != 1)
    throw Error(ErrorCode::kInvalidArgument, "the agent's welcome holds no status page");
  struct stat memory{};
  if (fstat(message.fds[0].get(), &memory) != 0 || memory.st_size < off_t(sizeof(StatusPage)))
    throw Error(ErrorCode::kInvalidArgument, "the status page from the agent is too small");
  void* at = mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED,
                  message.fds[0].get(), 0);
  if (at == MAP_FAILED)
    throw Error(ErrorCode::kUnavailable,
                "memory that the agent of this host shares cannot be mapped (" +
                    std::generic_category().message(errno) +
                    "); run this rank outside of what forbids it, such as a sandbox");
  madvise(at, sizeof(StatusPage), MADV_DONTFORK);
  auto* page = static_cast<StatusPage*>(at);
  page->shown.store(StatusPage::kMagic, std::memory_order_relaxed);
  return page;
}

UniqueFd new_eventfd() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd)
    throw Error(ErrorCode::kUnavailable, "no descriptor to wait with for the agent's words (" +
                                             std::generic_category().message(errno) + "); " +
                                             kRaiseOpenFiles);
  return fd;
}

void add(AgentMessage& message, size_t most, std::vector<UniqueFd>& to) {
  if (message.fds.size() > most - to.size())
    throw Error(ErrorCode::kInvalidArgument, "the agent passed more descriptors than were due");
  for (UniqueFd& fd : message.fds) to.push_back(std::move(fd));
}

}  // namespace

AgentConnection::AgentConnection(const AgentAddress& address) : joiner_(new_eventfd()) {
  fault_point("agent_connect");
  UniqueFd connection = connect_to(address.name);
  fd_ = connection.get();
  AgentMessage claim;
  claim.kind = AgentMessage::kClaim;
  claim.id = static_cast<uint32_t>(address.slot);
  {
    MutexLock lock(mutex_);
    socket_ = AgentSocket(std::move(connection));
    fault_point("agent_claim");
    socket_.send(claim);
  }
  for (;;) {
    {
      MutexLock lock(mutex_);
      take_in();
      if (refusal_) throw_refusal(*refusal_);
      if (claimed_) return;
      check_alive();
    }
    wait_readable(-1);
  }
}

AgentConnection::~AgentConnection() {
  if (page_ != nullptr) munmap(page_, sizeof(StatusPage));
}

AgentConnection::Epoch AgentConnection::join() {
  AgentMessage wish;
  wish.kind = AgentMessage::kWantEpoch;
  wish.value = StatusPage::kMagic;
  fault_point("epoch_want");
  {
    MutexLock lock(mutex_);
    refusal_.reset();
    socket_.send(wish);
  }
  fault_point("epoch_wait");
  for (;;) {
    {
      MutexLock lock(mutex_);
      take_in();
      if (refusal_) {
        const AgentMessage refusal = std::move(*refusal_);
        refusal_.reset();
        page_->told.store(1, std::memory_order_relaxed);
        throw_refusal(refusal);
      }
      const size_t doorbells = static_cast<size_t>(local_size_) * kSleepers;
      if (next_ && next_->doorbells.size() == doorbells) {
        Epoch epoch = std::move(*next_);
        next_.reset();
        return epoch;
      }
      check_alive();
    }
    wait_readable(joiner_.get());
    uint64_t rung = 0;
    [[maybe_unused]] const ssize_t heard = read(joiner_.get(), &rung, sizeof rung);
  }
}

void AgentConnection::post(const AgentMessage& message) {
  MutexLock lock(mutex_);
  socket_.send(message);
}

AgentMessage AgentConnection::ask(AgentMessage question) {
  UniqueFd wake = new_eventfd();
  const int wake_fd = wake.get();
  {
    MutexLock lock(mutex_);
    question.id = ++last_question_;
    pending_[question.id].wake = std::move(wake);
    fault_point("store_ask");
    socket_.send(question);
  }
  for (;;) {
    fault_point("store_wait");
    {
      MutexLock lock(mutex_);
      take_in();
      Pending& mine = pending_.at(question.id);
      if (mine.answer) {
        AgentMessage answer = std::move(*mine.answer);
        pending_.erase(question.id);
        if (answer.kind == AgentMessage::kStoreRefused) throw_refusal(answer);
        return answer;
      }
      if (!why_lost().empty()) pending_.erase(question.id);
      check_alive();
    }
    wait_readable(wake_fd);
  }
}

std::optional<std::vector<UniqueFd>> AgentConnection::take_segment(uint32_t id) {
  MutexLock lock(mutex_);
  take_in();
  const auto found = segments_.find(id);
  if (found == segments_.end()) return std::nullopt;
  Parts& parts = found->second;
  if (!parts.refusal.empty()) throw Error(ErrorCode::kUnavailable, parts.refusal);
  if (parts.pieces.size() < static_cast<size_t>(local_size_)) return std::nullopt;
  std::vector<UniqueFd> pieces = std::move(parts.pieces);
  segments_.erase(found);
  return pieces;
}

void AgentConnection::expect_links(uint32_t id, std::span<const int> ranks) {
  MutexLock lock(mutex_);
  links_[id] = {
      {ranks.begin(), ranks.end()}, std::vector<UniqueFd>(ranks.size()), ranks.size(), {}};
}

std::optional<std::vector<UniqueFd>> AgentConnection::take_links(uint32_t id) {
  MutexLock lock(mutex_);
  take_in();
  const auto found = links_.find(id);
  if (found == links_.end()) return std::nullopt;
  if (!found->second.refusal.empty()) throw Error(ErrorCode::kUnavailable, found->second.refusal);
  if (found->second.missing > 0) return std::nullopt;
  std::vector<UniqueFd> sockets = std::move(found->second.sockets);
  links_.erase(found);
  return sockets;
}

std::vector<int> AgentConnection::missing_links(uint32_t id) {
  MutexLock lock(mutex_);
  take_in();
  std::vector<int> missing;
  if (const auto found = links_.find(id); found != links_.end())
    for (size_t i = 0; i < found->second.ranks.size(); ++i)
      if (!found->second.sockets[i]) missing.push_back(found->second.ranks[i]);
  return missing;
}

void AgentConnection::on_segment(const void* owner, std::function<void()> arrived) {
  MutexLock lock(mutex_);
  arrived_ = std::move(arrived);
  arrived_owner_ = owner;
}

void AgentConnection::forget(const void* owner) {
  MutexLock lock(mutex_);
  if (arrived_owner_ == owner) arrived_ = nullptr;
}

std::string AgentConnection::lost() {
  MutexLock lock(mutex_);
  take_in();
  return why_lost();
}

void AgentConnection::close_in_child() noexcept { ::close(fd_); }

std::string AgentConnection::why_lost() const {
  if (!failure_.empty() || !socket_.ended()) return failure_;
  struct stat socket{};
  return fstat(fd_, &socket) == 0 && S_ISSOCK(socket.st_mode) ? kAgentEnded : kClosedHere;
}

void AgentConnection::check_alive() {
  if (std::string why = why_lost(); !why.empty()) throw Error(ErrorCode::kUnavailable, why);
}

void AgentConnection::wait_readable(int also) {
  bool unsent;
  {
    MutexLock lock(mutex_);
    unsent = socket_.waiting();
  }
  std::array<pollfd, 2> polled{};
  polled[0] = {fd_, static_cast<short>(POLLIN | (unsent ? POLLOUT : 0)), 0};
  polled[1] = {also, POLLIN, 0};
  // No time-out: the agent keeps the clock, and when it ends the socket becomes readable.
  if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR)
    throw Error(ErrorCode::kInternal, "poll() on the agent's socket failed");
}

void AgentConnection::wake(int eventfd) {
  const uint64_t one = 1;
  const bool woken = write(eventfd, &one, sizeof one) == sizeof one;
  HVD_CHECK(woken, "an eventfd takes a few");
}

void AgentConnection::take_in() {
  socket_.flush();
  try {
    while (failure_.empty()) {
      std::optional<AgentMessage> message = socket_.receive();
      if (!message) return;
      take_in(std::move(*message));
    }
  } catch (const Error& error) {
    failure_ = error.what();
    // Who waits may do so for a message that was taken in here, and none will come any more.
    for (const auto& [id, question] : pending_) wake(question.wake.get());
    wake(joiner_.get());
  }
}

void AgentConnection::take_in(AgentMessage message) {
  const bool may_lack_fds =
      message.kind == AgentMessage::kSegment || message.kind == AgentMessage::kLink;
  if (message.fds_lost && !may_lack_fds) throw Error(ErrorCode::kUnavailable, no_room());
  switch (message.kind) {
    case AgentMessage::kClaimed:
      page_ = map_status_page(message);
      claimed_ = true;
      return;
    case AgentMessage::kRefused:
      refusal_ = std::move(message);
      wake(joiner_.get());
      return;
    case AgentMessage::kWorld: {
      Epoch epoch{decode_world(message), decode_hosts(message), {}, {}};
      if (message.fds.size() != 1)
        throw Error(ErrorCode::kInvalidArgument, "the agent's world holds no control block");
      epoch.block = std::move(message.fds[0]);
      epoch_ = epoch.world.epoch;
      local_size_ = epoch.world.local_size;
      segments_.clear();
      links_.clear();
      next_ = std::move(epoch);
      return;
    }
    case AgentMessage::kDoorbells:
      if (!next_ || message.epoch != epoch_) return;
      add(message, static_cast<size_t>(local_size_) * kSleepers, next_->doorbells);
      wake(joiner_.get());
      return;
    case AgentMessage::kSegment:
    case AgentMessage::kSegmentRefused:
      if (message.epoch == epoch_) take_in_segment(std::move(message));
      return;
    case AgentMessage::kLink:
    case AgentMessage::kLinksRefused:
      if (message.epoch == epoch_) take_in_link(std::move(message));
      return;
    case AgentMessage::kStoreAnswer:
    case AgentMessage::kStoreRefused: {
      const auto found = pending_.find(message.id);
      if (found == pending_.end()) return;
      wake(found->second.wake.get());
      found->second.answer = std::move(message);
      return;
    }
    default:
      throw Error(ErrorCode::kInvalidArgument, "the agent sent what only workers send");
  }
}

void AgentConnection::take_in_segment(AgentMessage message) {
  Parts& parts = segments_[message.id];
  if (message.kind == AgentMessage::kSegmentRefused) parts.refusal = message.text();
  if (message.fds_lost) parts.refusal = no_room();
  const bool refused = !parts.refusal.empty();
  add(message, static_cast<size_t>(local_size_), parts.pieces);
  if (refused) parts.pieces.clear();
  if (arrived_ && (refused || parts.pieces.size() == static_cast<size_t>(local_size_))) arrived_();
}

void AgentConnection::take_in_link(AgentMessage message) {
  const auto found = links_.find(message.id);
  if (found == links_.end()) return;
  Links& links = found->second;
  if (message.kind == AgentMessage::kLinksRefused) {
    links.refusal = message.text();
  } else if (message.fds_lost) {
    links.refusal = no_room();
  } else {
    const auto place = static_cast<size_t>(message.value);
    if (place >= links.sockets.size() || links.sockets[place] || message.fds.size() != 1)
      throw Error(ErrorCode::kInvalidArgument, "the agent gave a link that was not asked for");
    links.sockets[place] = std::move(message.fds[0]);
    --links.missing;
  }
  if (arrived_ && (links.missing == 0 || !links.refusal.empty())) arrived_();
}

}  // namespace hvd
