// Fuzz target: what an agent sends to be signed. Whatever comes, a usage error or a certificate.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "rendezvous/credentials.h"
#include "runtime/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  static const hvd::JobAuthority authority("fuzz");
  try {
    authority.sign({reinterpret_cast<const char*>(bytes), count}, 0);
  } catch (const hvd::Error& error) {
    HVD_CHECK(error.code() == hvd::ErrorCode::kInvalidArgument, "an error of our own");
  }
  return 0;
}
