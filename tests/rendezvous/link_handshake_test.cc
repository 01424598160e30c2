// The handshake of data connections: who gets through, and everybody who does not.
#include "rendezvous/link_handshake.h"

#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/seed.h"

namespace hvd {
namespace {

using State = LinkHandshake::State;

const LinkName kLink{.epoch = 2, .id = 7, .caller = 0, .answerer = 3};

LinkNonce nonce_of(unsigned char first) {
  LinkNonce nonce;
  for (size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<unsigned char>(first + i);
  return nonce;
}

LinkVerdict welcome(const LinkName&) { return LinkVerdict::kWelcome; }

// Moves what `from` has to say to `to`, changed by `change`, in pieces of `piece` bytes.
template <typename Change>
void carry(LinkHandshake& from, LinkHandshake& to, Change change, size_t piece = 1000) {
  std::string bytes = from.take_output();
  change(bytes);
  for (std::string_view rest = bytes; !rest.empty() && to.wanted() > 0;) {
    const size_t count = std::min({piece, rest.size(), to.wanted()});
    to.feed(rest.substr(0, count));
    rest.remove_prefix(count);
  }
}

struct Ends {
  LinkHandshake caller, answerer;
};

Ends ends_of(const Secret& callers, const Secret& answerers, LinkHandshake::Judge judge = welcome,
             const LinkName& link = kLink) {
  return {LinkHandshake::call(callers, link, nonce_of(1)),
          LinkHandshake::answer(answerers, nonce_of(101), std::move(judge))};
}

// Runs a handshake to its end; `change` sees each of the four messages, numbered from 0.
template <typename Change>
void run(Ends& ends, Change change, size_t piece = 1000) {
  for (int message = 0; message < 4; ++message) {
    LinkHandshake& from = message % 2 == 0 ? ends.caller : ends.answerer;
    LinkHandshake& to = message % 2 == 0 ? ends.answerer : ends.caller;
    carry(from, to, [&](std::string& bytes) { change(message, bytes); }, piece);
  }
}

void run(Ends& ends) {
  run(ends, [](int, std::string&) {});
}

}  // namespace

TEST_CASE("link handshake: both ends that know the secret get through, byte by byte as well") {
  const Secret secret("a secret of the job's");
  for (size_t piece : {size_t(1000), size_t(7), size_t(1)}) {
    std::vector<LinkName> judged;
    Ends ends = ends_of(secret, secret, [&](const LinkName& link) {
      judged.push_back(link);
      return LinkVerdict::kWelcome;
    });
    size_t from_caller = 0;
    run(
        ends,
        [&](int message, std::string& bytes) {
          if (message % 2 == 0) from_caller += bytes.size();
        },
        piece);
    CHECK(ends.caller.state() == State::kDone);
    CHECK(ends.answerer.state() == State::kDone);
    CHECK(ends.answerer.link() == kLink);
    CHECK(judged == std::vector{kLink});
    CHECK(ends.caller.wanted() == 0);
    CHECK(ends.answerer.wanted() == 0);
    CHECK(from_caller <= 256);
  }
}

TEST_CASE("link handshake: a way between hosts carries full packets, each way, or is none") {
  const Secret secret("a secret");
  const LinkName way{.epoch = 0, .id = 1, .caller = 0, .answerer = 3};
  constexpr size_t kPadding = 16u << 10;
  std::vector<size_t> sizes;
  Ends ends = ends_of(secret, secret, welcome, way);
  run(ends, [&](int, std::string& bytes) { sizes.push_back(bytes.size()); });
  CHECK(sizes == std::vector<size_t>{56, 64, 32 + kPadding, 33 + kPadding});
  CHECK(ends.caller.state() == State::kDone);
  CHECK(ends.answerer.state() == State::kDone);
  sizes.clear();
  const LinkName wide{.epoch = 0, .id = 1 | LinkName::kCarries, .caller = 0, .answerer = 3};
  Ends carriers = ends_of(secret, secret, welcome, wide);
  run(carriers, [&](int, std::string& bytes) { sizes.push_back(bytes.size()); });
  CHECK(sizes == std::vector<size_t>{56, 64, 32 + kCarriedBytes, 33 + kPadding});
  CHECK(carriers.caller.state() == State::kDone);
  CHECK(carriers.answerer.state() == State::kDone);
  for (int which : {2, 3}) {
    Ends lossy = ends_of(secret, secret, welcome, way);
    run(lossy, [&](int message, std::string& bytes) {
      if (message == which) bytes.pop_back();
    });
    CHECK(lossy.caller.state() == State::kGoing);
    CHECK(lossy.caller.awaits_verdict_on_padding());
    CHECK(lossy.answerer.state() == (which == 2 ? State::kGoing : State::kDone));
    CHECK(lossy.answerer.proven());
    CHECK_FALSE(lossy.answerer.awaits_verdict_on_padding());
  }
  Ends other =
      ends_of(secret, secret, [](const LinkName&) { return LinkVerdict::kOtherHost; }, way);
  run(other);
  CHECK(other.caller.reason() == "another host of the job has that address, too");
}

// Made once with another implementation (Python's hmac and hashlib), so that both ends cannot be
// wrong alike.
TEST_CASE("link handshake: proves by HMAC-SHA256 under HKDF-SHA256") {
  const Secret secret(std::string(32, 's'));
  Ends ends = ends_of(secret, secret);
  std::vector<std::string> said;
  run(ends, [&](int, std::string& bytes) { said.push_back(bytes); });
  const auto hex = [](std::string_view bytes) {
    std::string out;
    for (unsigned char byte : bytes)
      for (int digit : {byte >> 4, byte & 15}) out += "0123456789abcdef"[digit];
    return out;
  };
  CHECK(hex(std::string_view(said[0]).substr(0, 24)) ==
        "6876646c696e6b02020000000700000000000000"
        "03000000");
  CHECK(hex(std::string_view(said[1]).substr(32)) ==
        "ae9cfb7f491a2974a95322c51591380bfbcab825619fb46225bfa7efcff83d54");
  CHECK(hex(said[2]) == "bb563d7d88a305e1c9b44e24e71509c2a2b1f9d1eeb672e0b23ded80f1e16e5e");
  CHECK(hex(said[3]) ==
        "01"
        "9041adffa1eaaf13b19cdb1629003511a53fe16b83bc47ae23481b17725dfd68");
}

TEST_CASE("link handshake: whoever does not know the secret is refused, and told nothing") {
  const Secret ours("ours"), theirs("theirs");
  SECTION("who answers") {
    Ends ends = ends_of(ours, theirs);
    run(ends);
    CHECK(ends.caller.state() == State::kRefused);
    CHECK(ends.caller.reason() == "it does not know the job's secret");
    CHECK(ends.caller.take_output().empty());
  }
  SECTION("who calls") {
    bool judged = false;
    LinkHandshake answerer = LinkHandshake::answer(ours, nonce_of(101), [&](const LinkName&) {
      judged = true;
      return LinkVerdict::kWelcome;
    });
    LinkHandshake caller = LinkHandshake::call(ours, kLink, nonce_of(1));
    carry(caller, answerer, [](std::string&) {});
    answerer.take_output();
    answerer.feed(std::string(32, 'x'));
    CHECK(answerer.state() == State::kRefused);
    CHECK(answerer.reason() == "it does not know the job's secret");
    CHECK(answerer.take_output().empty());
    CHECK_FALSE(judged);
  }
}

// Epoch, link, ranks, both nonces, version and magic are all in what is proven.
TEST_CASE("link handshake: no bit can be changed on the way") {
  const Secret secret("a secret");
  Ends whole = ends_of(secret, secret);
  std::vector<size_t> sizes;
  run(whole, [&](int, std::string& bytes) { sizes.push_back(bytes.size()); });
  REQUIRE(sizes == std::vector<size_t>{56, 64, 32, 33});
  for (int which = 0; which < 4; ++which)
    for (size_t at = 0; at < sizes[size_t(which)]; ++at)
      for (int bit = 0; bit < 8; ++bit) {
        INFO("message " << which << ", byte " << at << ", bit " << bit);
        Ends ends = ends_of(secret, secret);
        run(ends, [&](int message, std::string& bytes) {
          if (message == which && at < bytes.size()) bytes[at] = char(bytes[at] ^ 1 << bit);
        });
        CHECK(ends.caller.state() != State::kDone);
        if (which < 3) CHECK(ends.answerer.state() != State::kDone);
        const auto& refused = ends.caller.state() == State::kRefused ? ends.caller : ends.answerer;
        CHECK_FALSE(refused.reason().empty());
      }
}

TEST_CASE("link handshake: cut at each byte, it says after how many") {
  const Secret secret("a secret");
  for (int which = 0; which < 4; ++which)
    for (size_t keep = 0; keep < (which == 0   ? 56u
                                  : which == 1 ? 64u
                                  : which == 2 ? 32u
                                               : 33u);
         ++keep) {
      Ends ends = ends_of(secret, secret);
      run(ends, [&](int message, std::string& bytes) {
        if (message >= which) bytes.resize(message == which ? keep : 0);
      });
      LinkHandshake& cut = which % 2 == 0 ? ends.answerer : ends.caller;
      REQUIRE(cut.state() == State::kGoing);
      cut.end();
      REQUIRE(cut.state() == State::kRefused);
      CHECK(cut.reason().starts_with("it closed the connection after " + std::to_string(keep) +
                                     " of "));
    }
}

TEST_CASE("link handshake: what was heard cannot be played again") {
  const Secret secret("a secret");
  std::vector<std::string> heard;
  Ends ends = ends_of(secret, secret);
  run(ends, [&](int, std::string& bytes) { heard.push_back(bytes); });
  REQUIRE(ends.answerer.state() == State::kDone);
  SECTION("to an answerer") {
    LinkHandshake answerer = LinkHandshake::answer(secret, nonce_of(102), welcome);
    answerer.feed(heard[0]);
    answerer.take_output();
    answerer.feed(heard[2]);
    CHECK(answerer.reason() == "it does not know the job's secret");
  }
  SECTION("to a caller") {
    LinkHandshake caller = LinkHandshake::call(secret, kLink, nonce_of(2));
    caller.feed(heard[1]);
    CHECK(caller.reason() == "it does not know the job's secret");
  }
}

TEST_CASE("link handshake: what an end says cannot be played back to it") {
  const Secret secret("a secret");
  SECTION("a call to who calls") {
    LinkHandshake caller = LinkHandshake::call(secret, kLink, nonce_of(1));
    std::string call = caller.take_output();
    caller.feed((call + call).substr(0, caller.wanted()));
    CHECK(caller.reason() == "it does not know the job's secret");
  }
  // A stranger calls back the host that has called it, and lets it answer itself.
  SECTION("an answer as a proof") {
    LinkHandshake answerer = LinkHandshake::answer(secret, nonce_of(101), welcome);
    answerer.feed(LinkHandshake::call(secret, kLink, nonce_of(1)).take_output());
    answerer.feed(answerer.take_output().substr(32));
    CHECK(answerer.reason() == "it does not know the job's secret");
  }
  SECTION("through a host that has the secret") {
    LinkHandshake caller = LinkHandshake::call(secret, kLink, nonce_of(1));
    std::string call = caller.take_output();
    LinkHandshake own = LinkHandshake::answer(secret, nonce_of(101), [](const LinkName& link) {
      return link.answerer == 0 ? LinkVerdict::kWelcome : LinkVerdict::kNoSuchRank;
    });
    own.feed(call);
    caller.feed(own.take_output());
    own.feed(caller.take_output());  // it has proven to itself that it knows the secret
    CHECK(own.reason() == "this host does not take " + kLink.text());
  }
}

TEST_CASE("link handshake: another epoch has another key") {
  const Secret secret("a secret");
  for (uint32_t epoch : {uint32_t(1), uint32_t(3), uint32_t(0x02000000)}) {
    Ends ends = ends_of(secret, secret);
    run(ends, [&](int message, std::string& bytes) {
      if (message == 0)
        for (size_t byte = 0; byte < 4; ++byte) bytes[8 + byte] = char(epoch >> 8 * byte);
    });
    CHECK(ends.caller.reason() == "it does not know the job's secret");
  }
}

TEST_CASE("link handshake: the caller hears why its link is not taken") {
  const Secret secret("a secret");
  const std::pair<LinkVerdict, const char*> cases[] = {
      {LinkVerdict::kNoSuchRank, "rank 3 is not on that host"},
      {LinkVerdict::kOldEpoch, "epoch 2 is over there"},
      {LinkVerdict::kTaken, "it has that link already"},
      {LinkVerdict(99), "its verdict makes no sense"}};
  for (const auto& [verdict, words] : cases) {
    Ends ends = ends_of(secret, secret, [v = verdict](const LinkName&) { return v; });
    run(ends);
    CHECK(ends.answerer.state() == State::kRefused);
    CHECK(ends.answerer.reason() ==
          "this host does not take link 7 of epoch 2 from rank 0 to rank 3");
    CHECK(ends.caller.reason() == words);
  }
}

// Nor the other way round: of several hosts with one address the caller would take the wrong one.
TEST_CASE("link handshake: nobody on the way makes another verdict of it") {
  const Secret secret("a secret");
  for (int said = 1; said <= 5; ++said)
    for (int heard = 0; heard <= 6; ++heard) {
      if (heard == said) continue;
      Ends ends = ends_of(secret, secret, [said](const LinkName&) { return LinkVerdict(said); });
      run(ends, [heard](int message, std::string& bytes) {
        if (message == 3) bytes[0] = char(heard);
      });
      CHECK(ends.caller.state() == State::kRefused);
      CHECK(ends.caller.reason() == "it does not know the job's secret");
    }
}

TEST_CASE("link handshake: strangers are known by their first byte, other versions by theirs") {
  const Secret secret("a secret");
  LinkHandshake stranger = LinkHandshake::answer(secret, nonce_of(101), welcome);
  stranger.feed("G");
  CHECK(stranger.reason() == "it sent something else than a call for a link");
  LinkHandshake newer = LinkHandshake::answer(secret, nonce_of(101), welcome);
  std::string call = LinkHandshake::call(secret, kLink, nonce_of(1)).take_output();
  call[7] = 3;
  newer.feed(call);
  CHECK(newer.reason() == "it speaks version 3 of the handshake, not 2");
  CHECK(newer.take_output().empty());
}

}  // namespace hvd
