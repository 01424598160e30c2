#include "cli/ship/folders.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/access_list.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"
#include "tests/support/temporary_directory.h"

namespace hvd {

namespace fs = std::filesystem;

TEST_CASE("folders: one by two names is one, and what is not there is told apart by name") {
  const TemporaryDirectory top;
  const std::string a = top.path() / "a", b = top.path() / "b", link = top.path() / "link";
  fs::create_directory(a);
  fs::create_directory(b);
  fs::create_directory_symlink("a", link);
  const std::string no = top.path() / "no", never = top.path() / "never";
  CHECK(distinct_folders({a, no, a + "/", b, link, never, a + "/../b"}) ==
        std::vector<std::string>{a, no, b, never});
}

TEST_CASE("folders: a group is this user's alone when nobody else is in it, as far as is known") {
  const std::string_view passwd =
      "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000:Ada,,,:/home/ada:/bin/bash\n"
      "bob:x:1001:1001::/home/bob:/bin/sh\ncarol:x:1002:50::/home/carol:/bin/sh\n"
      "dave:x:1003:50::/home/dave:/bin/sh\n";
  const std::string_view group =
      "root:x:0:\nada:x:1000:\nbob:x:1001:ada\nstaff:x:50:\nself:x:60:ada\neve:x:1005:eve\n";
  CHECK(is_group_of_one(passwd, group, 1000, 1000));
  CHECK(is_group_of_one(passwd, group, 0, 0));
  CHECK_FALSE(is_group_of_one(passwd, group, 1001, 1001));  // with ada as a member
  CHECK_FALSE(is_group_of_one(passwd, group, 1000, 1001));  // somebody else's
  CHECK_FALSE(is_group_of_one(passwd, group, 1002, 50));    // of two
  CHECK_FALSE(is_group_of_one(passwd, group, 1000, 60));    // who logs in with it is not known
  CHECK_FALSE(is_group_of_one(passwd, group, 1005, 1005));  // a user that another place knows
  CHECK_FALSE(is_group_of_one(passwd, "", 1000, 1000));
  CHECK_FALSE(is_group_of_one("", group, 1000, 1000));
  CHECK(is_group_of_one(passwd, "ada:x:1000:ada", 1000, 1000));  // a member of its own group
  CHECK_FALSE(is_group_of_one(passwd, "ada:x:1000:\nalias:x:1000:bob\n", 1000, 1000));
  CHECK_FALSE(is_group_of_one(passwd, "ada:x:1000:ada,bob\n", 1000, 1000));
  CHECK_FALSE(is_group_of_one("\n:::\nada", "\n::\n", 0, 0));
}

TEST_CASE("folders: the first unsafe one on the way is named, and a sticky one is safe") {
  const TemporaryDirectory top;
  const fs::path a = top.path() / "a", b = a / "b";
  fs::create_directories(b);
  CHECK(unsafe_on_the_way(b.string()).empty());
  chmod(a.c_str(), 0777);
  CHECK(unsafe_on_the_way(b.string()) == a.string());
  chmod(a.c_str(), 01777);
  CHECK(unsafe_on_the_way(b.string()).empty());
  chmod(b.c_str(), 0707);
  CHECK(unsafe_on_the_way(b.string()) == b.string());
  CHECK(unsafe_on_the_way(a.string()).empty());
  CHECK(unsafe_on_the_way((a / "no").string()) == (a / "no").string());
  fs::create_directory_symlink("b", a / "link");
  CHECK(unsafe_on_the_way((a / "link").string()) == (a / "link").string());
  if (geteuid() != 0) return note_left_out("folders_test: another user's folder", kNotRoot);
  chmod(b.c_str(), 0700);
  for (const mode_t mode : {0700, 0755, 01777}) {
    chmod(a.c_str(), mode);
    CHECK(chown(a.c_str(), 12345, 12345) == 0);
    CHECK(unsafe_on_the_way(b.string()) == a.string());
  }
}

TEST_CASE("folders: who may write by an access list is somebody else, not the group") {
  const auto where = place_with_lists();
  if (!where) {
    note_left_out("folders_test: access lists", "no file system here knows them");
    return;
  }
  const TemporaryDirectory top(*where);
  const std::string a = top.path() / "a";
  fs::create_directory(a);
  const auto is_unsafe = [&](uint16_t mask) {
    const AccessList list{.owner = 7, .user_12345 = 7, .group = 5, .mask = mask};
    REQUIRE(set_list(a, kAccessList, list.bytes()));
    struct stat facts{};
    REQUIRE(lstat(a.c_str(), &facts) == 0);
    REQUIRE((facts.st_mode & 0777) == mode_t(0700 | mask << 3));
    CHECK(unsafe_on_the_way(a) == (others_may_write(a, facts) ? a : ""));
    return others_may_write(a, facts);
  };
  CHECK(is_unsafe(7));
  CHECK_FALSE(is_unsafe(5));  // what takes the right to write from all that the list names
}

TEST_CASE("folders: a file system that many kernels see, or none has told of, may be others' too") {
  CHECK(other_hosts_may_use("/proc"));  // as one that is not known
  CHECK(other_hosts_may_use("/no/such/folder"));
}

}  // namespace hvd
