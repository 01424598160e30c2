"""check_tree finds what it is for, and nothing in a tree that keeps the rules: each case is a small tree of its own."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
import check_tree
import cxx_text

CLEAN = {
    "CMakeLists.txt": "add_subdirectory(cli)\n",
    "cli/README.md": "# cli: `hosts`, `slots`\n",
    "cli/CMakeLists.txt": "hvd_library(cli SOURCES slots.cc hosts.cc)\n",
    "cli/hosts.h": '// Says which hosts there are.\n#pragma once\n\n#include "runtime/base/env.h"\n',
    "cli/hosts.cc": '#include "cli/hosts.h"\n\nint hosts() { return 1; }\n',
    "cli/slots.cc": '// Counts the slots of a host.\n#include "cli/hosts.h"\n',
    "runtime/base/README.md": "# base: `env.h`\n",
    "runtime/base/env.h": "// The only reader of the environment.\n#pragma once\n",
    "scripts/run": "#!/usr/bin/env bash\n# Runs what there is.\nstart() {\n  true\n}\n",
}


def findings(changes):
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**CLEAN, **changes}.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return [f"{name}:{line}: {message}" for name, line, message in check_tree.findings(root)]


def source(body):
    return {"cli/hosts.cc": '#include "cli/hosts.h"\n' + body}


class CheckTree(unittest.TestCase):
    def assert_found(self, changes, *expected):
        found = findings(changes)
        self.assertEqual(len(found), len(expected), found)
        for line, start in zip(found, expected):
            self.assertIn(start, line)

    def test_a_tree_that_keeps_the_rules_has_no_findings(self):
        self.assert_found({})

    def test_the_project_itself_is_looked_at_whole(self):
        tree = check_tree.Tree(pathlib.Path(__file__).parents[2])
        self.assertGreater(len(tree.code), 40)
        self.assertIn("scripts/check_tree.py", tree.text)
        self.assertFalse(any(name.startswith("build/") for name in tree.text))

    def test_a_lower_layer_includes_no_higher_one(self):
        header = '// The only reader.\n#pragma once\n#include "cli/hosts.h"\n'
        self.assert_found({"runtime/base/env.h": header}, "runtime/base/env.h:3: includes cli/hosts.h; runtime/base/ may")

    def test_third_party_headers_stay_where_they_belong(self):
        self.assert_found(source("#include <torch/torch.h>\n"), "cli/hosts.cc:2: includes torch/torch.h; LibTorch is seen")
        self.assert_found(source("#include <CLI/CLI.hpp>\n"), "cli/hosts.cc:2: includes CLI/CLI.hpp; CLI11 only")
        self.assert_found(source("#include <catch2/catch.hpp>\n"), "include tests/support/catch.h")

    def test_grpc_stays_in_its_part_and_out_of_headers(self):
        self.assert_found(source("#include <grpcpp/grpcpp.h>\n"), "gRPC stays in rendezvous/client and server")
        header = "// The agent's end of the stream.\n#pragma once\n#include <grpcpp/grpcpp.h>\n"
        self.assert_found(
            {"rendezvous/client.h": header, "rendezvous/README.md": "client", **source('#include "rendezvous/client.h"\n')},
            "rendezvous/client.h:3: a header includes grpcpp/grpcpp.h",
        )

    def test_every_file_says_what_it_is(self):
        self.assert_found({"cli/slots.cc": "int slots() { return 1; }\n"}, "cli/slots.cc:1: the first line")
        self.assert_found({"scripts/run": "#!/usr/bin/env bash\nset -e\n"}, "scripts/run:1: the first line")

    def test_long_functions_and_files_are_found(self):
        long = "int f(int a) {\n" + "  ++a;\n" * 69 + "}\n"
        self.assert_found(source(long), "cli/hosts.cc:2: a function of 71 lines")
        short = "int f(int a) {\n" + "  ++a;\n" * 68 + "}\n"
        self.assert_found(source(short))
        self.assert_found(source("\n" * 500), "cli/hosts.cc:500: 501 lines")
        self.assert_found({"cli/README.md": CLEAN["cli/README.md"] + "\n" * 60}, "cli/README.md:60: 61 lines")
        script = "#!/usr/bin/env bash\n# Runs what there is.\nstart() {\n" + "  true\n" * 69 + "}\n"
        self.assert_found({"scripts/run": script}, "scripts/run:3: a function of 71 lines")

    def test_bans_name_their_replacement(self):
        self.assert_found(source('auto a = std::getenv("A");\n'), "cli/hosts.cc:2: getenv( is banned; use hvd::env")
        self.assert_found(source("void f() { std::this_thread::sleep_for(a); }\n"), "sleep_for is banned; use poll()")
        self.assert_found(source("void f() { thread.detach(); }\n"), ".detach() is banned; use std::jthread")
        self.assert_found(source("volatile int a;\n"), "volatile is banned; use std::atomic")
        self.assert_found(source("void f() { if (fork() == 0) return; }\n"), "fork( is banned; use cli/subprocess.h")
        self.assert_found({"scripts/run": "#!/bin/sh\n# Ends them all.\npkill hvdrun\n"}, "pkill is banned; use process ids")
        self.assert_found({"cli/CMakeLists.txt": CLEAN["cli/CMakeLists.txt"] + "add_test(NAME a)\n"}, "add_test( is banned")
        self.assert_found(source("// TO" "DO later\n"), "finish it, or write an issue")

    def test_bans_do_not_look_at_comments_and_strings(self):
        self.assert_found(source('// volatile, getenv() and fork() are banned\nconst char* a = "volatile";\n'))
        self.assert_found(source('const char* a = R"(volatile "quoted" fork())";\n/* getenv()\n fork() */\n'))
        self.assert_found(source("void f() { store.system(1); my_fork(2); asm volatile(\"pause\"); }\n"))

    def test_banned_words_in_file_names_are_found(self):
        named = {"cli/CMakeLists.txt": "hvd_library(cli SOURCES slots.cc hosts.cc host_utils.cc)\n"}
        self.assert_found({**named, "cli/host_utils.cc": "// Says what hosts do.\n"}, "cli/host_utils.cc:1: utils is no word")

    def test_files_that_nothing_uses_are_found(self):
        self.assert_found({"cli/left.cc": "// Says nothing to anybody.\n"}, "cli/left.cc:1: no target uses it")
        self.assert_found({"cli/left.h": "// Says nothing to anybody.\n#pragma once\n"}, "cli/README.md:1: does not tell of left", "cli/left.h:1: nobody includes it")
        self.assert_found({"scripts/left.py": '"""Says nothing to anybody."""\n'}, "scripts/left.py:1: no test, script")
        isa = {"cli/CMakeLists.txt": "hvd_library(cli SOURCES slots.cc hosts.cc reduce_${isa}.cc)\n"}
        self.assert_found({**isa, "cli/reduce_avx2.cc": "// Reduces with AVX2.\n"})
        parts = {"tests/cli/CMakeLists.txt": "hvd_unit_tests(cli_tests\n  PARTS slots ssh/words\n  DEPS hvd_cli)\n"}
        self.assert_found({**parts, "tests/cli/slots_test.cc": "// Tests slots.\n"})
        self.assert_found({**parts, "tests/cli/hosts_test.cc": "// Tests hosts.\n"}, "tests/cli/hosts_test.cc:1: no target uses it")

    def test_folders_have_a_readme_and_headers_a_guard(self):
        header = {"collectives/types.h": "// Buffers and their types.\n#pragma once\n"}
        self.assert_found({**header, "cli/CMakeLists.txt": CLEAN["cli/CMakeLists.txt"], "tests/a.cc": '// Tests a type.\n#include "collectives/types.h"\n',
                           "tests/CMakeLists.txt": "hvd_test(a SOURCES a.cc)\n", "tests/README.md": "`a.cc`\n"}, "collectives:1: no README.md")
        tests = {"tests/cli/slots_test.cc": "// Tests the slots.\n", "tests/cli/CMakeLists.txt": "hvd_test(a SOURCES slots_test.cc)\n",
                 "tests/fuzz/a.cc": "// Feeds what nobody sends.\n", "tests/fuzz/CMakeLists.txt": "hvd_test(b SOURCES a.cc)\n",
                 "tests/README.md": "`cli`, `fuzz`\n"}
        self.assert_found(tests, "tests/fuzz:1: no README.md")
        self.assert_found({"runtime/base/env.h": "// The only reader.\n"}, "runtime/base/env.h:1: no #pragma once")

    def test_a_readme_tells_of_each_header_beside_it_and_that_of_tests_of_each_folder(self):
        self.assert_found({"cli/README.md": "# cli: `slots`\n"}, "cli/README.md:1: does not tell of hosts")
        used = {"cli/slots.cc": '// Counts the slots of a host.\n#include "cli/hosts_impl.h"\n#include "cli/sum-inl.h"\n',
                "cli/hosts_impl.h": CLEAN["cli/hosts.h"], "cli/sum-inl.h": CLEAN["cli/hosts.h"]}
        self.assert_found(used)
        tests = {"tests/cli/slots_test.cc": "// Tests the slots.\n", "tests/cli/CMakeLists.txt": "hvd_test(a SOURCES slots_test.cc)\n"}
        self.assert_found({**tests, "tests/README.md": "| `cli/` |\n"})
        self.assert_found({**tests, "tests/README.md": "| `client/` |\n"}, "tests/README.md:1: does not tell of cli")

    def test_a_header_stands_first_in_its_source_file(self):
        files = {"cli/slots.h": "// Places of ranks.\n#pragma once\n"}
        self.assert_found({**files, "cli/slots.cc": '// Assigns places.\n#include <array>\n#include "cli/slots.h"\n'},
                          "cli/slots.cc:2: includes cli/slots.h not first")
        self.assert_found({**files, "cli/slots.cc": "// Assigns places.\n", "tests/a.cc": '// Tests it.\n#include "cli/slots.h"\n',
                           "tests/CMakeLists.txt": "hvd_test(a SOURCES a.cc)\n", "tests/README.md": "`a.cc`\n"}, "cli/slots.cc:1: includes cli/slots.h not first")


class Functions(unittest.TestCase):
    def test_members_constructors_and_test_cases_are_functions_and_types_are_not(self):
        text = """\
namespace hvd {
struct alignas(64) Words {
  int a{0};
  int get() const { return a; }
 private:
  Words() : a{1}, b_({2, 3}) {
    a = 2;
  }
};
enum Kind : int { kOne, kTwo };
constexpr int kTable[] = {
    1,
    2,
};
TEST_CASE("slots: a { brace in a name") {
  for (;;) {
  }
}
#define MACRO(x) \\
  do {           \\
  } while (0)
auto f = [](int a) { return a; };
}  // namespace hvd
"""
        found = [(first, last) for first, last, _ in cxx_text.functions(text)]
        self.assertEqual(found, [(4, 4), (6, 8), (15, 18), (22, 22)])


if __name__ == "__main__":
    unittest.main()
