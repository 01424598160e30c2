// The job's certificates: whom they name, what is signed and what is not.
#include "rendezvous/credentials.h"

#include <random>
#include <string>

#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/seed.h"

namespace hvd {
namespace {

std::string refusal(const JobAuthority& authority, std::string_view request) {
  try {
    authority.sign(request, 0);
    return {};
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
}

}  // namespace

TEST_CASE("credentials: an agent gets a certificate for its key, and for no other") {
  const JobAuthority authority("job-1");
  const AgentKey one, two;
  const std::string leaf = authority.sign(one.request(), 3);
  const Credentials credentials = one.with(authority.certificate(), leaf);
  CHECK(credentials.authority == authority.certificate());
  CHECK(credentials.certificate == leaf);
  CHECK(credentials.key.view().starts_with("-----BEGIN PRIVATE KEY-----"));
  CHECK_THROWS_WITH(two.with(authority.certificate(), leaf),
                    "the certificate that hvdrun sent is not for this agent's key");
  const JobAuthority other("job-1");
  CHECK_THROWS_WITH(one.with(other.certificate(), leaf),
                    "the certificate that hvdrun sent is not for this agent's key");
  CHECK_THROWS_WITH(one.with(leaf, "-----BEGIN"),
                    "what hvdrun sent as the agent's certificate is no certificate");
}

TEST_CASE("credentials: a name has one spelling") {
  const AgentIdentity host{"1790000000-12", 12};
  CHECK(host.uri() == "hvd://job/1790000000-12/host/12");
  CHECK(AgentIdentity::parse(host.uri()) == host);
  for (const char* wrong :
       {"", "hvd://job/", "hvd://job/a", "hvd://job/a/host/", "hvd://job/a/host/01",
        "hvd://job/a/host/-1", "hvd://job/a/host/+1", "hvd://job/a/host/1 ", "hvd://job//host/1",
        "hvd://job/a/host/1/host/2", "hvd://job/a/host/4294967296", "hvd://job/a,b/host/1",
        "https://job/a/host/1", "HVD://job/a/host/1"}) {
    INFO(wrong);
    CHECK_FALSE(AgentIdentity::parse(wrong));
  }
}

TEST_CASE("credentials: a job's name cannot write into a certificate") {
  for (const char* wrong : {"", "a,DNS:hvdrun", "a b", "a/host/1", "caf\xc3\xa9"}) {
    INFO(wrong);
    CHECK_THROWS_AS(JobAuthority(wrong), Error);
  }
  CHECK_THROWS_AS(JobAuthority(std::string(65, 'a')), Error);
  CHECK_NOTHROW(JobAuthority(std::string(64, 'a')));
}

TEST_CASE("credentials: only a request that its own key has signed is signed") {
  const JobAuthority authority("job");
  const std::string good = AgentKey().request();
  REQUIRE(refusal(authority, good).empty());
  CHECK(good.size() < kRequestBytesMax / 4);
  CHECK(refusal(authority, "").find("cannot be read") != std::string::npos);
  CHECK(refusal(authority, good + "x").find("cannot be read") != std::string::npos);
  CHECK(refusal(authority, std::string(kRequestBytesMax + 1, '0')).find("too long") !=
        std::string::npos);
  for (size_t cut = 0; cut < good.size(); ++cut)
    CHECK_FALSE(refusal(authority, std::string_view(good).substr(0, cut)).empty());
  // The key itself, the signature, all that is signed: no byte can be another one. The last is the
  // signature's, so the whole was read by then.
  int read = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = char(changed[at] ^ 1);
    const std::string why = refusal(authority, changed);
    INFO("byte " << at);
    CHECK_FALSE(why.empty());
    read += why.find("not signed by its own key") != std::string::npos;
  }
  CHECK(read > 64);
}

TEST_CASE("credentials: random bytes are refused, and leave nothing behind") {
  const JobAuthority authority("job");
  const std::string good = AgentKey().request();
  const unsigned seed = random_seed();
  INFO("HVD_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (int changes = 1 + int(random() % 8); changes > 0; --changes)
      bytes[random() % bytes.size()] = char(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    if (bytes == good) continue;
    CHECK_FALSE(refusal(authority, bytes).empty());
  }
  CHECK(refusal(authority, good).empty());
}

TEST_CASE("credentials: a clock that is behind is told, and one that is years ahead") {
  const WallClock::time_point now = WallClock::now();
  CHECK(clock_objection(now, now).empty());
  CHECK(clock_objection(now, now - kClockMargin).empty());
  CHECK(clock_objection(now, now + std::chrono::hours(1)).empty());
  CHECK(clock_objection(now, now - std::chrono::hours(1) - std::chrono::seconds(5)) ==
        "the clock of this host is 60 min 5 s behind hvdrun's, and the job's certificates allow 5 "
        "min; set it (chronyc makestep) and try again");
  CHECK(clock_objection(now, now + kCertificateLife).empty());
  CHECK(clock_objection(now, now + std::chrono::days(3653)) ==
        "the clock of this host is 3653 days ahead of hvdrun's, and the job's certificates end "
        "after 730 days; set it (chronyc makestep) and try again");
}

TEST_CASE("secret: holds its bytes, moves, and is gone afterwards") {
  Secret one("a key");
  CHECK(one.view() == "a key");
  const char* at = one.view().data();
  Secret two(std::move(one));
  CHECK(two.view().data() == at);
  Secret three;
  three = std::move(two);
  CHECK(three.view() == "a key");
  CHECK(Secret().view().empty());
}

}  // namespace hvd
