// An agent's first words: what comes back of them, and whose are refused.
#include "cli/hello.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

Hello some_hello() {
  Hello hello{"0.1.0", "3f2a", "a request"};
  hello.hvdrun_address = "10.0.0.1";
  hello.hvdrun_port = 40'000;
  hello.own_address = "fd00::2";
  hello.identity = {
      .boot = "a boot", .network = 1, .mounts = 2, .processes = 1ull << 40, .user = 1000};
  hello.interfaces = {{"eth0", "10.0.0.2", 25000}, {"eth0", "fd00::2"}};
  hello.gpus = 8;
  hello.gpus_there = 10;
  return hello;
}

// What is said of these bytes by an hvdrun 0.1.0 of build 3f2a; "" when they are taken.
std::string objection(const std::string& bytes) {
  try {
    read_hello(bytes, {"0.1.0", "3f2a", ""});
    return "";
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    return error.what();
  }
}

}  // namespace

TEST_CASE("hello: comes back as it was said") {
  const Hello hello = some_hello();
  REQUIRE(read_hello(hello_bytes(hello), {"0.1.0", "3f2a", ""}) == hello);
}

TEST_CASE("hello: another version and another build are refused, with both named") {
  Hello other = some_hello();
  other.version = "0.2.0";
  CHECK(objection(hello_bytes(other)) ==
        "its agent is of hvdrun \"0.2.0\", build \"3f2a\", and this is hvdrun \"0.1.0\", build "
        "\"3f2a\": remove ~/.cache/hvdrun/3f2a there, it is made anew");
  other = some_hello();
  other.build = "beef\n";
  CHECK(objection(hello_bytes(other)).find("build \"beef\\x0a\", and this is") !=
        std::string::npos);
}

TEST_CASE("hello: what is no address is not known") {
  Hello odd = some_hello();
  for (const std::string& words :
       {std::string("UNKNOWN"), std::string(), std::string("10.0.0"), std::string("h1"),
        std::string("10.0.0.1 x"), std::string("10.0.0.1\0x", 10), std::string("fe80::1%\x1b")}) {
    odd.hvdrun_address = odd.own_address = words;
    const Hello read = read_hello(hello_bytes(odd), {"0.1.0", "3f2a", ""});
    CHECK(read.hvdrun_address.empty());
    CHECK(read.own_address.empty());
  }
  odd.own_address = "fe80::1%eth7";  // an interface of that host
  CHECK(read_hello(hello_bytes(odd), {"0.1.0", "3f2a", ""}).own_address == odd.own_address);
}

TEST_CASE("hello: an interface that could not be shown is not there") {
  Hello odd = some_hello();
  const std::vector<InterfaceAddress> good = odd.interfaces;
  for (const std::string& name : {std::string("eth\x1b[2J"), std::string("eth\n0"),
                                  std::string("eth\xc2\x9b"), std::string("eth\0", 4)})
    odd.interfaces.push_back({name, "10.0.0.3"});
  for (const std::string& address :
       {std::string(), std::string("h1"), std::string("10.0.0.4\n"), std::string("fe80::1%\x1b")})
    odd.interfaces.push_back({"eth1", address});
  odd.interfaces.push_back({"é1", "10.0.0.5"});  // byte for byte: NCCL is told it
  const Hello read = read_hello(hello_bytes(odd), {"0.1.0", "3f2a", ""});
  REQUIRE(read.interfaces.size() == good.size() + 1);
  CHECK(std::equal(good.begin(), good.end(), read.interfaces.begin()));
  CHECK(read.interfaces.back() == odd.interfaces.back());
}

TEST_CASE("hello: whatever else comes is refused") {
  const std::string whole = hello_bytes(some_hello());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    // Protobuf takes a text that ends between two fields; then what is missing is not believed.
    const std::string why = objection(whole.substr(0, bytes));
    if (why.empty()) CHECK(bytes > whole.find("3f2a"));
  }
  CHECK(objection("Last login: Sunday\n") == "its agent's first words are none of an hvdrun's");
  CHECK(objection("") == "its agent's first words are none of an hvdrun's");
}

}  // namespace hvd
