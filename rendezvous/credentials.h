// A job's certificates, all in memory: who is hvdrun, and which agent is of which host.
//
// hvdrun makes an authority for each job. An agent makes a key that never leaves its memory and
// asks for a certificate; hvdrun signs which host of which job it stands for. What the request says
// of itself counts for nothing but the key. An agent's certificate cannot pass for hvdrun's.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/secret.h"

namespace hvd {

using WallClock = std::chrono::system_clock;

// By so much an agent's clock may be behind hvdrun's; else it takes hvdrun's certificate for one
// that is not valid yet.
inline constexpr std::chrono::minutes kClockMargin{5};
// By so much at most it may be ahead: certificates have to end some day, and their keys die with
// the job.
inline constexpr std::chrono::days kCertificateLife{730};
inline constexpr size_t kRequestBytesMax = 2048;        // one of ours has about 200
inline constexpr size_t kCertificateBytesMax = 4096;    // one of ours has about 800
inline constexpr const char* kLauncherName = "hvdrun";  // what its certificate calls it

// One end's proof of who it is, and whose word it takes for the other's; all three as PEM.
struct Credentials {
  std::string authority;
  std::string certificate;
  Secret key;
};

// Whom an agent's certificate names.
struct AgentIdentity {
  std::string job;
  int host = 0;  // its number among the job's hosts

  std::string uri() const;  // hvd://job/JOB/host/HOST
  static std::optional<AgentIdentity> parse(std::string_view uri);
  friend bool operator==(const AgentIdentity&, const AgentIdentity&) = default;
};

struct Validity {
  WallClock::time_point from, to;

  // From kClockMargin ago, for kCertificateLife.
  static Validity since(WallClock::time_point now);
};

class JobAuthority {
 public:
  // `job`: 1 to 64 letters, digits, dots, dashes and underscores; else throws kInvalidArgument.
  explicit JobAuthority(std::string job,
                        const Validity& validity = Validity::since(WallClock::now()));
  ~JobAuthority();
  JobAuthority(JobAuthority&&) noexcept;

  const std::string& certificate() const;  // PEM
  Credentials launcher() const;            // hvdrun's own
  // The certificate, PEM, of the agent of a host. Throws kInvalidArgument when `request` is no
  // request of AgentKey's kind, signed by the key that is in it.
  std::string sign(std::string_view request, int host) const;
  std::string sign(std::string_view request, const AgentIdentity& whom,
                   const Validity& validity) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class AgentKey {
 public:
  AgentKey();
  ~AgentKey();

  std::string request() const;  // for sign()
  // Throws kInvalidArgument unless `certificate` is one of `authority`'s for this key.
  Credentials with(std::string authority, std::string certificate) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What a clock shows whose seconds since 1970 another machine has sent, whatever they are: a time
// that can be reckoned with.
WallClock::time_point clock_of(int64_t seconds);
// Why this machine, where it is `here`, will not believe hvdrun's certificates, made when hvdrun's
// clock showed `launcher`. Empty when it will.
std::string clock_objection(WallClock::time_point launcher, WallClock::time_point here);

}  // namespace hvd
