// The first bytes on a data connection between two hosts: each end proves that it knows the job's
// secret, and for which link the connection is.
//
//   caller   → call:   magic and version, epoch, link, both ranks, a nonce     56 bytes
//   answerer → answer: a nonce, HMAC("answer", call, nonce)                    64 bytes
//   caller   → proof:  HMAC("call", call, nonce)                               32 bytes
//   answerer → verdict: a byte, HMAC("verdict", call, nonce, byte)             33 bytes
//
// Where it proves a way between two hosts (LinkName), 16 KiB of padding follow the proof and a
// welcome: a way that loses full packets, as one whose MTU is less than its ends', is none. Where
// it is to show how much that way carries, kCarriedBytes follow the proof instead.
//
// HMAC is HMAC-SHA256 under HKDF-SHA256(secret, "link", epoch). Both nonces are in what is proven,
// so nothing can be played again; so is who is which end, so nothing can be played back to its
// sender. The answerer says nothing of what it holds before it has seen the proof. What follows on
// the connection is neither encrypted nor authenticated.
//
// Pure: bytes in, bytes out, a verdict. Nonces have to be random and new for each connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "rendezvous/secret.h"

namespace hvd {

// One link of one epoch, from the rank whose agent connects to the one whose agent accepts.
//
// Of epoch 0, before any world, it is no link but the proof that a host is reached at an address:
// caller and answerer are numbers of hosts, and `id` that of the address. The answer shows that who
// is called is an agent of the job, which no stranger with the same address can; the verdict, which
// of them.
struct LinkName {
  uint32_t epoch = 0;
  uint32_t id = 0;  // of the communicator
  int32_t caller = 0, answerer = 0;

  static constexpr uint32_t kCarries = 1u << 31;  // in the `id` of a proof: of how much passes

  bool is_proof() const { return epoch == 0; }
  bool carries() const { return is_proof() && (id & kCarries) != 0; }
  std::string text() const;  // "link 7 of epoch 2 from rank 0 to rank 3"
  friend auto operator<=>(const LinkName&, const LinkName&) = default;
};

// 3 ms at 10 Gbit/s, 34 at 1.
inline constexpr size_t kCarriedBytes = size_t{4} << 20;

Secret make_link_secret();  // a job's

using LinkNonce = std::array<unsigned char, 32>;

// What an answerer makes of a link that its caller has proven to be entitled to.
enum class LinkVerdict : unsigned char { kWelcome = 1, kNoSuchRank, kOldEpoch, kTaken, kOtherHost };

class LinkHandshake {
 public:
  using Judge = std::function<LinkVerdict(const LinkName&)>;
  enum class State { kGoing, kDone, kRefused };

  // `secret` has to stay for as long as the state is kGoing.
  static LinkHandshake call(const Secret& secret, const LinkName& link, const LinkNonce& nonce);
  // `judge` is asked once, after the proof.
  static LinkHandshake answer(const Secret& secret, const LinkNonce& nonce, Judge judge);

  // Takes what came, at most wanted() bytes: what comes later is the link's.
  void feed(std::string_view bytes);
  size_t wanted() const { return state_ == State::kGoing ? expected() - came() : 0; }
  void end();  // nothing more will come
  std::string take_output();

  State state() const { return state_; }
  const std::string& reason() const { return reason_; }  // of kRefused
  const LinkName& link() const { return link_; }         // proven when kDone; the answerer's judged
  // Of the answerer's: it has been called, for link(); its caller knows the secret.
  bool called() const { return awaits_ == Awaits::kProof || proven_; }
  bool proven() const { return proven_; }
  // Of a caller's: its proof is out, and the other end may have judged it.
  bool awaits_verdict() const { return awaits_ == Awaits::kVerdict; }
  // Of a caller's: it was answered, and has heard nothing since it sent padding.
  bool awaits_verdict_on_padding() const {
    return link_.is_proof() && !proven_ &&
           (awaits_ == Awaits::kVerdict || awaits_ == Awaits::kPadding);
  }

 private:
  enum class Awaits { kCall, kAnswer, kProof, kVerdict, kPadding };
  LinkHandshake(const Secret& secret, const LinkNonce& nonce, Awaits awaits)
      : secret_(&secret), nonce_(nonce), awaits_(awaits) {}
  size_t expected() const;
  size_t came() const { return awaits_ == Awaits::kPadding ? padding_ : received_.size(); }
  void on_call();
  void on_answer();
  void on_proof();
  void on_verdict();
  void on_padding();
  void judge();
  std::string mac(std::string_view what, std::string_view more = {}) const;
  void refuse(std::string why);

  const Secret* secret_;
  LinkNonce nonce_;
  Judge judge_;
  Awaits awaits_;
  State state_ = State::kGoing;
  bool proven_ = false;
  LinkName link_;
  std::string both_;      // the call as it was sent, and then the answerer's nonce: in each proof
  std::string received_;  // of the message that is awaited
  size_t padding_ = 0;    // the same of padding, which nobody reads
  std::string output_;
  std::string reason_;
};

}  // namespace hvd
