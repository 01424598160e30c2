#include "rendezvous/digest.h"

#include <openssl/evp.h>

#include <string_view>

#include "runtime/base/error.h"

namespace hvd {

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
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(sum), &size,
                 EVP_sha256(), nullptr) != 1)
    throw Error(ErrorCode::kInternal, "libcrypto cannot make a SHA-256 sum");
  return in_hex({sum, size});
}

}  // namespace hvd
