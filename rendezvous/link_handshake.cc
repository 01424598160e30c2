#include "rendezvous/link_handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr std::string_view kMagic = "hvdlink";
constexpr char kVersion = 2;
constexpr size_t kNumbersAt = kMagic.size() + 1;
constexpr size_t kNumberBytes = 4;
constexpr size_t kNonceBytes = sizeof(LinkNonce);
constexpr size_t kCallBytes = kNumbersAt + 4 * kNumberBytes + kNonceBytes;
constexpr size_t kMacBytes = 32;
constexpr size_t kAnswerBytes = kNonceBytes + kMacBytes;
constexpr size_t kVerdictBytes = 1 + kMacBytes;
// Fills a jumbo frame, the largest packet of usual cards.
constexpr size_t kPaddingBytes = 16u << 10;
static_assert(kCallBytes + kMacBytes <= 256, "what a stranger may send");

using Mac = std::array<unsigned char, kMacBytes>;

Mac hmac(std::span<const unsigned char> key, std::string_view text) {
  Mac mac;
  unsigned bytes = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), int(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(), &bytes);
  HVD_CHECK(made != nullptr && bytes == mac.size(), "HMAC-SHA256 cannot fail");
  return mac;
}

void append(std::string& out, uint32_t number) {
  for (size_t byte = 0; byte < kNumberBytes; ++byte) out += char(number >> 8 * byte);
}

uint32_t number_at(std::string_view text, size_t which) {
  uint32_t number = 0;
  for (size_t byte = 0; byte < kNumberBytes; ++byte)
    number |= uint32_t(static_cast<unsigned char>(text[kNumbersAt + which * kNumberBytes + byte]))
              << 8 * byte;
  return number;
}

std::string_view text_of(const LinkNonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

size_t padding_of_caller(const LinkName& link) {
  return link.carries() ? kCarriedBytes : kPaddingBytes;
}

std::string write_call(const LinkName& link, const LinkNonce& nonce) {
  std::string call(kMagic);
  call += kVersion;
  for (uint32_t number : {link.epoch, link.id, uint32_t(link.caller), uint32_t(link.answerer)})
    append(call, number);
  return call.append(text_of(nonce));
}

// HKDF-SHA256 (RFC 5869) without salt; one block is all that is needed.
Mac key_of(const Secret& secret, uint32_t epoch) {
  std::string info = "link";
  append(info, epoch);
  info += '\x01';
  Mac extracted = hmac(Mac{}, secret.view());
  const Mac key = hmac(extracted, info);
  OPENSSL_cleanse(extracted.data(), extracted.size());
  return key;
}

bool equal(std::string_view one, std::string_view other) {
  return one.size() == other.size() && CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace

std::string LinkName::text() const {
  return "link " + std::to_string(id) + " of epoch " + std::to_string(epoch) + " from rank " +
         std::to_string(caller) + " to rank " + std::to_string(answerer);
}

Secret make_link_secret() {
  std::array<unsigned char, kMacBytes> bytes;
  HVD_CHECK(getrandom(bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()),
            "the kernel has random bytes");
  Secret secret({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  explicit_bzero(bytes.data(), bytes.size());
  return secret;
}

LinkHandshake LinkHandshake::call(const Secret& secret, const LinkName& link,
                                  const LinkNonce& nonce) {
  LinkHandshake made(secret, nonce, Awaits::kAnswer);
  made.link_ = link;
  made.both_ = made.output_ = write_call(link, nonce);
  return made;
}

LinkHandshake LinkHandshake::answer(const Secret& secret, const LinkNonce& nonce, Judge judge) {
  LinkHandshake made(secret, nonce, Awaits::kCall);
  made.judge_ = std::move(judge);
  return made;
}

size_t LinkHandshake::expected() const {
  switch (awaits_) {
    case Awaits::kCall:
      return kCallBytes;
    case Awaits::kAnswer:
      return kAnswerBytes;
    case Awaits::kProof:
      return kMacBytes;
    case Awaits::kPadding:
      return proven_ ? padding_of_caller(link_) : kPaddingBytes;
    case Awaits::kVerdict:
      break;
  }
  return kVerdictBytes;
}

void LinkHandshake::feed(std::string_view bytes) {
  HVD_CHECK(bytes.size() <= wanted(), "read no more than wanted(): the rest is the link's");
  if (awaits_ == Awaits::kPadding)
    padding_ += bytes.size();
  else
    received_ += bytes;
  // What is not hvdrun's is known by its first bytes: a scanner, or a program at the wrong port.
  if (awaits_ == Awaits::kCall &&
      !kMagic.starts_with(std::string_view(received_).substr(0, kMagic.size())))
    return refuse("it sent something else than a call for a link");
  if (state_ != State::kGoing || wanted() > 0) return;
  switch (awaits_) {
    case Awaits::kCall:
      on_call();
      break;
    case Awaits::kAnswer:
      on_answer();
      break;
    case Awaits::kProof:
      on_proof();
      break;
    case Awaits::kVerdict:
      on_verdict();
      break;
    case Awaits::kPadding:
      on_padding();
      break;
  }
  received_.clear();
}

void LinkHandshake::end() {
  if (state_ == State::kGoing)
    refuse("it closed the connection after " + std::to_string(came()) + " of " +
           std::to_string(expected()) + " bytes");
}

std::string LinkHandshake::take_output() { return std::exchange(output_, {}); }

std::string LinkHandshake::mac(std::string_view what, std::string_view more) const {
  Mac key = key_of(*secret_, link_.epoch);
  const Mac made = hmac(key, std::string(what).append(both_).append(more));
  OPENSSL_cleanse(key.data(), key.size());
  return {reinterpret_cast<const char*>(made.data()), made.size()};
}

void LinkHandshake::on_call() {
  const int version = static_cast<unsigned char>(received_[kMagic.size()]);
  if (version != kVersion)
    return refuse("it speaks version " + std::to_string(version) + " of the handshake, not " +
                  std::to_string(kVersion));
  link_ = {number_at(received_, 0), number_at(received_, 1), int32_t(number_at(received_, 2)),
           int32_t(number_at(received_, 3))};
  both_ = received_;
  both_ += text_of(nonce_);
  output_ = std::string(text_of(nonce_)) + mac("answer");
  awaits_ = Awaits::kProof;
}

void LinkHandshake::on_answer() {
  both_.append(received_, 0, kNonceBytes);
  if (!equal(std::string_view(received_).substr(kNonceBytes), mac("answer")))
    return refuse("it does not know the job's secret");
  output_ = mac("call");
  if (link_.is_proof()) output_.append(padding_of_caller(link_), '\0');
  awaits_ = Awaits::kVerdict;
}

void LinkHandshake::on_proof() {
  if (!equal(received_, mac("call"))) return refuse("it does not know the job's secret");
  proven_ = true;
  if (link_.is_proof())
    awaits_ = Awaits::kPadding;
  else
    judge();
}

void LinkHandshake::on_padding() {
  if (proven_)
    judge();
  else
    state_ = State::kDone;
}

void LinkHandshake::judge() {
  const LinkVerdict verdict = judge_(link_);
  output_ = char(verdict);
  output_ += mac("verdict", output_);
  if (verdict != LinkVerdict::kWelcome) return refuse("this host does not take " + link_.text());
  if (link_.is_proof()) output_.append(kPaddingBytes, '\0');
  state_ = State::kDone;
}

void LinkHandshake::on_verdict() {
  const auto [verdict, proof] =
      std::pair(std::string_view(received_).substr(0, 1), std::string_view(received_).substr(1));
  if (!equal(proof, mac("verdict", verdict))) return refuse("it does not know the job's secret");
  switch (LinkVerdict(received_.front())) {
    case LinkVerdict::kWelcome:
      if (link_.is_proof())
        awaits_ = Awaits::kPadding;
      else
        state_ = State::kDone;
      return;
    case LinkVerdict::kNoSuchRank:
      return refuse("rank " + std::to_string(link_.answerer) + " is not on that host");
    case LinkVerdict::kOldEpoch:
      return refuse("epoch " + std::to_string(link_.epoch) + " is over there");
    case LinkVerdict::kTaken:
      return refuse("it has that link already");
    case LinkVerdict::kOtherHost:
      return refuse("another host of the job has that address, too");
  }
  refuse("its verdict makes no sense");
}

void LinkHandshake::refuse(std::string why) {
  state_ = State::kRefused;
  reason_ = std::move(why);
}

}  // namespace hvd
