#include "rendezvous/digest.h"

#include <openssl/evp.h>

#include <string_view>

#include "runtime/base/error.h"

namespace hvd {
namespace {

void check(bool done) {
  if (!done) throw Error(ErrorCode::kInternal, "libcrypto cannot make a SHA-256 sum");
}

}  // namespace

std::string in_hex(std::span<const std::byte> bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[size_t(byte) >> 4];
    text += kDigits[size_t(byte) & 15];
  }
  return text;
}

std::string sha256(std::span<const std::byte> bytes) {
  std::byte sum[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  check(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(sum), &size,
                   EVP_sha256(), nullptr) == 1);
  return in_hex({sum, size});
}

struct Sha256::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check(state_->context != nullptr &&
        EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  std::byte sum[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  check(EVP_DigestFinal_ex(state_->context, reinterpret_cast<unsigned char*>(sum), &size) == 1);
  return in_hex({sum, size});
}

}  // namespace hvd
