// Host lists and host files: what they mean, and how bad ones are refused.
#include "cli/hosts.h"

#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

// "user@name:slots" of each, "?" for no count, joined by blanks.
std::string text(const std::vector<GivenHost>& hosts) {
  std::string out;
  for (const GivenHost& host : hosts) {
    if (!out.empty()) out += ' ';
    if (!host.user.empty()) out += host.user + "@";
    out += host.name + ":" + (host.slots ? std::to_string(*host.slots) : "?");
  }
  return out;
}

std::string list(std::string_view input) {
  try {
    return text(parse_host_list(input));
  } catch (const Error& error) {
    return error.what();
  }
}

std::string file(std::string_view input) {
  try {
    return text(parse_host_file(input, "hosts.txt"));
  } catch (const Error& error) {
    return error.what();
  }
}

using namespace std::string_literals;

const std::string kLetters = "; use letters, digits, dots, dashes and underscores";

}  // namespace

TEST_CASE("hosts: a list is read in order, counts and users are optional") {
  const std::pair<const char*, const char*> table[] = {
      {"a:2", "a:2"},
      {"a", "a:?"},
      {"a:2,b:4,c:1", "a:2 b:4 c:1"},
      {"  a:2 ,\tb ", "a:2 b:?"},
      {"a:0", "a:0"},
      {"a:65535", "a:65535"},
      {"a:007", "a:7"},
      {"gpu-7.rack_2.example.org:8", "gpu-7.rack_2.example.org:8"},
      {"10.0.0.1:2", "10.0.0.1:2"},
      {"user@host:2", "user@host:2"},
      {"a.b_c-d@host", "a.b_c-d@host:?"},
      {"a:1,a:1", "a:1 a:1"},
      {"[::1]:2", "::1:2"},
      {"[::1]", "::1:?"},
      {"bob@[fe80::1%eth0]:2", "bob@fe80::1%eth0:2"},
      {"[2001:db8::7]:1,[::1]:2", "2001:db8::7:1 ::1:2"},
  };
  for (const auto& [input, expected] : table) CHECK(list(input) == expected);
}

TEST_CASE("hosts: ranges stand for many names") {
  const std::pair<const char*, const char*> table[] = {
      {"node[1-4]:2", "node1:2 node2:2 node3:2 node4:2"},
      {"node[01-03,7]", "node01:? node02:? node03:? node7:?"},
      {"node[8-11]", "node8:? node9:? node10:? node11:?"},
      {"node[08-11]", "node08:? node09:? node10:? node11:?"},
      {"r[1-2]n[1-2].x:4", "r1n1.x:4 r1n2.x:4 r2n1.x:4 r2n2.x:4"},
      {"a:1,n[1,3]:2,b", "a:1 n1:2 n3:2 b:?"},
      {"[1-2]n", "1n:? 2n:?"},
      {"n[0-0]", "n0:?"},
      {"u@n[1-2]:3", "u@n1:3 u@n2:3"},
  };
  for (const auto& [input, expected] : table) CHECK(list(input) == expected);
  CHECK(parse_host_list("n[0-65535]").size() == 65'536);
  CHECK(parse_host_list("a[0-255]b[0-255]").back().name == "a255b255");
}

TEST_CASE("hosts: a bad list is refused with the column") {
  const std::pair<std::string, std::string> table[] = {
      {"", "-H, column 1: the list is empty; write localhost:2"},
      {" \t", "-H, column 1: the list is empty; write localhost:2"},
      {"a:",
       "-H, column 1: \"a:\" has no number of slots behind the colon; write one, or leave the "
       "colon out"},
      {"a:-1", "-H, column 3: \"-1\" is no number of slots; write one from 0 to 65535"},
      {"a:+1", "-H, column 3: \"+1\" is no number of slots; write one from 0 to 65535"},
      {"a:2x", "-H, column 3: \"2x\" is no number of slots; write one from 0 to 65535"},
      {"a:65536", "-H, column 3: \"65536\" is no number of slots; write one from 0 to 65535"},
      {"a:99999999999",
       "-H, column 3: \"99999999999\" is no number of slots; write one from 0 to 65535"},
      {"a:2,,", "-H, column 5: a host is missing here; remove the comma"},
      {"a:2,", "-H, column 5: a host is missing here; remove the comma"},
      {",a", "-H, column 1: a host is missing here; remove the comma"},
      {"a:2, :3", "-H, column 6: there is no host name before the colon; write name:2"},
      {"::1:2",
       "-H, column 1: \"::1:2\" has more than one colon; an IPv6 address goes in brackets, as in "
       "[::1]:2"},
      {"-oProxyCommand=x",
       "-H, column 15: \"-oProxyCommand=x\" is not a host name: it holds \"=\"" + kLetters},
      {"-oProxyCommand",
       "-H, column 1: \"-oProxyCommand\" is not a host name: it begins with \"-\"; leave that out"},
      {".a", "-H, column 1: \".a\" is not a host name: it begins with \".\"; leave that out"},
      {"a$(reboot)", "-H, column 2: \"a$(reboot)\" is not a host name: it holds \"$\"" + kLetters},
      {"a b", "-H, column 2: \"a b\" is not a host name: it holds \" \"" + kLetters},
      {"a\0b"s, "-H, column 2: \"a\\x00b\" is not a host name: it holds \"\\x00\"" + kLetters},
      {"\xc3\xa9", "-H, column 1: \"é\" is not a host name: it holds \"é\"" + kLetters},
      {"@a", "-H, column 1: there is no user before \"@\"; write user@host"},
      {"u@", "-H, column 3: there is no host name behind \"@\"; write user@host"},
      {"-l@a", "-H, column 1: a user name cannot begin with \"-\"; leave that out"},
      {"u v@a", "-H, column 2: \"u v\" is not a user: it holds \" \"" + kLetters},
      {"[::1", "-H, column 1: \"[\" is not closed; write \"]\" behind the range or address"},
      {"n[1-4", "-H, column 2: \"[\" is not closed; write \"]\" behind the range or address"},
      {"n1-4]", "-H, column 5: \"n1-4]\" is not a host name: it holds \"]\"" + kLetters},
      {"n[4-1]", "-H, column 3: \"4-1\" is no range; write one like 1-4 or 01-03,7"},
      {"n[]", "-H, column 3: \"\" is no range; write one like 1-4 or 01-03,7"},
      {"n[1,]", "-H, column 5: \"\" is no range; write one like 1-4 or 01-03,7"},
      {"n[a-b]", "-H, column 3: \"a-b\" is no range; write one like 1-4 or 01-03,7"},
      {"n[0-65536]", "-H, column 3: the range gives more than 65536 hosts; make it narrower"},
      {"n[0-1,0-65535]", "-H, column 7: the range gives more than 65536 hosts; make it narrower"},
      {"n[0-255][0-256]",
       "-H, column 9: the ranges give more than 65536 hosts; make them narrower"},
      {"a,n[0-65535]", "-H, column 3: these are more than 65536 hosts; give fewer"},
      {"[::g]:2",
       "-H, column 2: \"::g\" is neither a range nor an IPv6 address; write [1-4] or [fd00::1]"},
      {"[::1%]:2",
       "-H, column 2: \"::1%\" is neither a range nor an IPv6 address; write [1-4] or [fd00::1]"},
      {"[::1]2",
       "-H, column 6: behind \"]\" stands \"2\"; write a colon and the number of slots, or "
       "nothing"},
      {"[::1]:",
       "-H, column 1: \"[::1]:\" has no number of slots behind the colon; write one, or leave the "
       "colon out"},
  };
  for (const auto& [input, expected] : table) CHECK(list(input) == expected);
}

TEST_CASE("hosts: limits hold, and messages stay short") {
  CHECK(list(std::string(253, 'a')) == std::string(253, 'a') + ":?");
  CHECK(list(std::string(254, 'a')).find("has 254 bytes; a host name has at most 253") !=
        std::string::npos);
  const std::string huge = list(std::string(65'536, 'a'));
  CHECK(huge.find("-H, column 1: the name \"aaaa") == 0);
  CHECK(huge.size() < 200);
  CHECK(list(std::string(65, 'u') + "@a").find("is longer than 64 bytes") != std::string::npos);
  CHECK(list(std::string(2 << 20, ' ')) ==
        "-H: the list is longer than 1 MiB; write ranges, as in node[1-64]");
  CHECK(list("[0-65535]" + std::string(1 << 19, 'a')).find("at most 253") != std::string::npos);
  std::string wide;  // would be 65,536 names of 300 bytes
  for (int i = 0; i < 30; ++i) wide += "aaaaaaaaaa";
  CHECK(list(wide + "[0-65535]").find("a host name has at most 253") != std::string::npos);
}

TEST_CASE("hosts: a file has a host a line, in any of the known forms") {
  CHECK(file("a\nb:2\nc slots=3\n") == "a:? b:2 c:3");
  CHECK(file("a slots=2") == "a:2");
  CHECK(file("\n\n  # comment\na slots=2 # behind\n\t\nb#x\n") == "a:2 b:?");
  CHECK(file("a slots=2 max_slots=4\nb max-slots=4 slots=1\nc:4 ifname=eth0\n") == "a:2 b:1 c:4");
  CHECK(file("a slots=2\r\nb\r\n") == "a:2 b:?");
  CHECK(file("node[1-3] slots=2\nuser@x:1\n[::1]:2\n") == "node1:2 node2:2 node3:2 user@x:1 ::1:2");
  CHECK(file("  a\tslots=2  ") == "a:2");
  CHECK(file("a slots = 2\nb slots\t=3 max_slots = 4\nc max_slots =4 slots= 5\r\n") ==
        "a:2 b:3 c:5");
  CHECK(file("\xef\xbb\xbf"
             "a slots=2\nb\n") == "a:2 b:?");
}

TEST_CASE("hosts: a bad file is refused with its line") {
  const std::pair<std::string, std::string> table[] = {
      {"", "hosts.txt: no host is in this file; write lines like localhost slots=2"},
      {"# a\n\n", "hosts.txt: no host is in this file; write lines like localhost slots=2"},
      {"a\nb slots=x\n", "hosts.txt:2: \"x\" is no number of slots; write one from 0 to 65535"},
      {"a slots=\n", "hosts.txt:1: \"\" is no number of slots; write one from 0 to 65535"},
      {"\n\na slots=-1", "hosts.txt:3: \"-1\" is no number of slots; write one from 0 to 65535"},
      {"a 2\n", "hosts.txt:1: \"2\" says nothing of a host; write slots=2, or leave it out"},
      {"a slots 2\n",
       "hosts.txt:1: \"slots\" says nothing of a host; write slots=2, or leave it out"},
      {"\n\na slots = x\n", "hosts.txt:3: \"x\" is no number of slots; write one from 0 to 65535"},
      {"a slots = \n", "hosts.txt:1: \"\" is no number of slots; write one from 0 to 65535"},
      {"a slots= # 2\n", "hosts.txt:1: \"\" is no number of slots; write one from 0 to 65535"},
      {"a slots=1 slots = 2\n",
       "hosts.txt:1: the number of slots is given twice; leave \"slots = 2\" out"},
      {"\xef\xbb\xbf\nb slots=x\n",
       "hosts.txt:2: \"x\" is no number of slots; write one from 0 to 65535"},
      {"a\n\xef\xbb\xbf"
       "b\n",
       "hosts.txt:2: \"\\xef\\xbb\\xbfb\" is not a host name: it holds \"\\xef\\xbb\\xbf\"" +
           kLetters},
      {"a =2\n", "hosts.txt:1: \"=2\" says nothing of a host; write slots=2, or leave it out"},
      {"a:2 slots=2\n", "hosts.txt:1: the number of slots is given twice; leave \"slots=2\" out"},
      {"a slots=1 slots=2\n",
       "hosts.txt:1: the number of slots is given twice; leave \"slots=2\" out"},
      {"a,b\n", "hosts.txt:1: \"a,b\" has a comma; write each host on a line of its own"},
      {"a\n:2\n", "hosts.txt:2: there is no host name before the colon; write name:2"},
      {"a\n-x slots=2\n",
       "hosts.txt:2: \"-x\" is not a host name: it begins with \"-\"; leave that out"},
      {"a\0\n"s, "hosts.txt:1: \"a\\x00\" is not a host name: it holds \"\\x00\"" + kLetters},
      {"\177ELF\x02\n",
       "hosts.txt:1: \"\\x7fELF\\x02\" is not a host name: it holds \"\\x7f\"" + kLetters},
  };
  for (const auto& [input, expected] : table) CHECK(file(input) == expected);
  CHECK(file(std::string(2 << 20, '\n')) ==
        "hosts.txt: it is longer than 1 MiB; write ranges, as in node[1-64], or name another file");
}
