// Keys and values: the limits, the waiting.
#include "rendezvous/memory_store.h"

#include <thread>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

Bytes bytes(const std::string& text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(from, from + text.size());
}

}  // namespace

TEST_CASE("store table: a value is replaced, a counter counts and reads as its number") {
  StoreTable table;
  CHECK(table.find("a") == nullptr);
  table.set("a", bytes("1"));
  table.set("a", bytes("two"));
  CHECK(*table.find("a") == bytes("two"));
  CHECK(table.add("n", 3) == 3);
  CHECK(table.add("n", -5) == -2);
  CHECK(*table.find("n") == bytes("-2"));
  CHECK_THROWS_WITH(table.add("a", 1), Catch::Contains("\"a\"") && Catch::Contains("counter"));
  CHECK(table.add("n", INT64_MAX) == INT64_MAX - 2);
  CHECK(table.add("n", 3) == INT64_MIN);
  CHECK_NOTHROW(table.set("n", bytes("no counter any more")));
}

TEST_CASE("store table: limits are named") {
  StoreTable table;
  CHECK_NOTHROW(table.set(std::string(256, 'k'), Bytes(65'536)));
  CHECK_THROWS_WITH(table.set(std::string(257, 'k'), {}), Catch::Contains("257"));
  CHECK_THROWS_WITH(table.set("", {}), Catch::Contains("0 bytes"));
  CHECK_THROWS_WITH(table.set("big", Bytes(65'537)), Catch::Contains("\"big\" has 65537 bytes"));
  for (int i = 1; i < 65'536; ++i) table.set(std::to_string(i), {});
  CHECK_THROWS_WITH(table.set("one more", {}), Catch::Contains("65536 keys"));
  for (int i = 1; i < 4096; ++i) table.set(std::to_string(i), Bytes(65'536));
  CHECK_THROWS_WITH(table.set("5000", Bytes(1)), Catch::Contains("256 MiB already; \"5000\""));
  CHECK(table.find("5000")->empty());
  CHECK_NOTHROW(table.set("1", Bytes(1)));
  CHECK_NOTHROW(table.set("5000", Bytes(65'000)));
  CHECK_THROWS_WITH(table.set("5001", Bytes(1'000)), Catch::Contains("256 MiB already"));
  CHECK_NOTHROW(table.set("1", bytes("replaced")));
}

TEST_CASE("memory store: get waits for whoever sets") {
  MemoryStore store;
  std::jthread setter([&] { store.set("late", bytes("value")); });
  CHECK(store.get("late", Deadline::in(30s)) == bytes("value"));
  const std::string keys[] = {"late", "n"};
  std::jthread adder([&] { store.add("n", 1); });
  CHECK_NOTHROW(store.wait(keys, Deadline::never()));
}

TEST_CASE("memory store: a deadline names the key") {
  MemoryStore store;
  CHECK_THROWS_WITH(store.get("never", Deadline::in(1ms)), Catch::Contains("\"never\""));
  const std::string keys[] = {"never"};
  try {
    store.wait(keys, Deadline::in(0ms));
    FAIL("it has to throw");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kTimeout);
  }
}
