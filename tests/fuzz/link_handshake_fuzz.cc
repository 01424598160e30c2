// Fuzz target: the handshake of data connections. Whatever comes, only who knows the secret gets
// in.
//
// The first byte says how: raw bytes to an answerer, raw bytes to a caller, or a true handshake
// whose messages are changed on the way by the triples (message, place, bits) that follow. With
// kProof it is no link's, but that of a way between two hosts.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/link_handshake.h"
#include "runtime/base/error.h"

namespace {

using namespace hvd;
using State = LinkHandshake::State;

constexpr uint8_t kProof = 0x80;
const LinkName kOfRanks{.epoch = 2, .id = 7, .caller = 0, .answerer = 3};
const LinkName kOfHosts{.epoch = 0, .id = 7, .caller = 0, .answerer = 3};

const Secret& secret() {
  static const Secret one("the job's");
  return one;
}

LinkNonce nonce_of(unsigned char all) {
  LinkNonce nonce;
  nonce.fill(all);
  return nonce;
}

LinkHandshake answerer(const LinkName& due) {
  return LinkHandshake::answer(secret(), nonce_of(2), [due](const LinkName& link) {
    return link == due ? LinkVerdict::kWelcome : LinkVerdict::kNoSuchRank;
  });
}

LinkHandshake caller(const LinkName& link) {
  return LinkHandshake::call(secret(), link, nonce_of(1));
}

void feed_all(LinkHandshake& end, std::string_view bytes) {
  while (!bytes.empty() && end.wanted() > 0) {
    // The lengths of the pieces come from the bytes too.
    const size_t piece = 1 + size_t(static_cast<unsigned char>(bytes.front())) % end.wanted();
    const size_t count = std::min(piece, bytes.size());
    end.feed(bytes.substr(0, count));
    bytes.remove_prefix(count);
    end.take_output();
  }
  end.end();
  HVD_CHECK(end.state() == State::kRefused && !end.reason().empty(), "a stranger got in");
}

void change_on_the_way(const LinkName& link, std::string_view edits) {
  LinkHandshake ends[] = {caller(link), answerer(link)};
  bool changed = false;  // in what has to be proven
  for (int message = 0; message < 4; ++message) {
    std::string bytes = ends[message % 2].take_output();
    for (size_t i = 0; i + 2 < edits.size(); i += 3) {
      if (static_cast<unsigned char>(edits[i]) % 4 != message || bytes.empty()) continue;
      char& byte = bytes[static_cast<unsigned char>(edits[i + 1]) % bytes.size()];
      changed = changed || (message < 3 && edits[i + 2] != 0);
      byte = char(byte ^ edits[i + 2]);
    }
    LinkHandshake& to = ends[1 - message % 2];
    for (std::string_view left = bytes; !left.empty() && to.wanted() > 0;) {
      const size_t piece = std::min(left.size(), to.wanted());
      to.feed(left.substr(0, piece));
      left.remove_prefix(piece);
    }
  }
  // Two changes of one byte may cancel each other out, so only what was not touched has to get in.
  if (!changed) HVD_CHECK(ends[1].state() == State::kDone, "a true caller was kept out");
  if (ends[1].state() == State::kDone) HVD_CHECK(ends[1].link() == link, "another link got in");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(bytes) + 1, count - 1);
  const LinkName& link = (bytes[0] & kProof) != 0 ? kOfHosts : kOfRanks;
  const int way = (bytes[0] & ~kProof) % 3;
  if (way == 2) {
    change_on_the_way(link, rest);
  } else {
    LinkHandshake end = way == 0 ? answerer(link) : caller(link);
    feed_all(end, rest);
  }
  return 0;
}
