// What loaders print, and what a host is sent for it.
#include "cli/ship/loader_answer.h"

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using Names = std::set<std::string>;

const Names kOffered = {"ld-linux-x86-64.so.2", "libc.so.6",   "libm.so.6",
                        "libstdc++.so.6",       "libtorch.so", "libtorch_cpu.so",
                        "libgomp-a34b.so.1",    "libfoo.so.1"};
const Names kGlibc = {"ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6"};

std::string refusal_of(const LoaderAnswer& answer, const Names& sent) {
  try {
    libraries_to_send(answer, sent, kOffered);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("loader_answer: a list is read, and what the kernel brings is passed over") {
  const LoaderAnswer answer = read_loader_answer(
      "\tlinux-vdso.so.1 (0x00007f4d8192c000)\n"
      "\tlibtorch.so => not found\n"
      "\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007fa6a5aec000)\n"
      "\tlibodd.so => /opt/a (b)/libodd.so (0x00007fa6a5aec001)\n"
      "\t/opt/preloaded.so => /opt/preloaded.so (0x00007fa6a5aec002)\n"
      "\t/lib64/ld-linux-x86-64.so.2 (0x00007f4d8192e000)\n",
      "");
  CHECK(answer.found ==
        std::map<std::string, std::string>{{"libm.so.6", "/lib/x86_64-linux-gnu/libm.so.6"},
                                           {"libodd.so", "/opt/a (b)/libodd.so"}});
  CHECK(answer.missing == Names{"libtorch.so"});
  CHECK(answer.too_old.empty());
  CHECK(answer.trouble.empty());
}

TEST_CASE("loader_answer: versions that are not there are read with who wants them") {
  const LoaderAnswer answer = read_loader_answer(
      "\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n",
      "./train: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./train)\n"
      "/x/train: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by "
      "/x/a b/libfoo.so.1)\n");
  CHECK(answer.too_old ==
        std::vector<TooOld>{{"/lib/libc.so.6", "./train", "GLIBC_2.38"},
                            {"/lib/libstdc++.so.6", "/x/a b/libfoo.so.1", "GLIBCXX_3.4.30"}});
  CHECK(answer.trouble.empty());
}

TEST_CASE("loader_answer: a loader that lists nothing is quoted") {
  const LoaderAnswer answer =
      read_loader_answer("", "x: error while loading shared libraries: x: cannot open\nmore\n");
  CHECK(answer.trouble == "\"x: error while loading shared libraries: x: cannot open\"");
  CHECK(read_loader_answer("", "").trouble == "\"\"");
  CHECK(read_loader_answer("\tstatically linked\n", "").trouble.empty());
}

TEST_CASE("loader_answer: a host is sent what it lacks, and nothing else") {
  CHECK(libraries_to_send({}, {}, kOffered).names.empty());
  LoaderAnswer answer;
  answer.found["libc.so.6"] = "/lib/libc.so.6";
  answer.missing = {"libtorch.so", "libstdc++.so.6"};
  const LibrariesToSend more = libraries_to_send(answer, {}, kOffered);
  CHECK(more.names == Names{"libtorch.so", "libstdc++.so.6"});
  CHECK_FALSE(more.own_loader);
  CHECK(refusal_of({.missing = {"libcuda.so.1"}}, {}) ==
        "it lacks \"libcuda.so.1\", which this machine does not have either");
  CHECK_FALSE(refusal_of({.missing = {"libtorch.so"}}, {"libtorch.so"}).empty());  // not again
}

TEST_CASE("loader_answer: a library that is too old is sent, the C library with its loader") {
  LoaderAnswer answer;
  answer.found = {{"libstdc++.so.6", "/lib/libstdc++.so.6.0.25"}, {"libc.so.6", "/lib/libc.so.6"}};
  answer.too_old = {{"/lib/libstdc++.so.6.0.25", "./train", "GLIBCXX_3.4.30"}};
  CHECK(libraries_to_send(answer, {}, kOffered).names == Names{"libstdc++.so.6"});
  CHECK_FALSE(libraries_to_send(answer, {}, kOffered).own_loader);
  answer.too_old = {{"/lib/libc.so.6", "./train", "GLIBC_2.38"}};
  CHECK(libraries_to_send(answer, {}, kOffered).names == kGlibc);
  CHECK(libraries_to_send(answer, {}, kOffered).own_loader);
  CHECK(all_of_glibc(kOffered).names == kGlibc);
  answer.missing = {"libm.so.6"};
  answer.too_old.clear();
  CHECK(libraries_to_send(answer, {}, kOffered).names == kGlibc);
}

TEST_CASE("loader_answer: libhvd's part for GPUs goes with libhvd") {
  const Names offered = {"libhvd.so.0.1", "libstdc++.so.6", "libhvd_nccl.so"};
  const auto sent_with = [&](const Names& missing, const Names& offers) {
    return libraries_to_send({.missing = missing}, {}, offers).names;
  };
  CHECK(sent_with({"libhvd.so.0.1"}, offered) == Names{"libhvd.so.0.1", "libhvd_nccl.so"});
  CHECK(sent_with({"libstdc++.so.6"}, offered) == Names{"libstdc++.so.6"});
  CHECK(sent_with({"libhvd.so.0.1"}, {"libhvd.so.0.1"}) == Names{"libhvd.so.0.1"});
}

TEST_CASE("loader_answer: who needs more of a library than ours has is sent as well") {
  LoaderAnswer answer;
  answer.found = {{"libstdc++.so.6", "/sent/libstdc++.so.6"}, {"libfoo.so.1", "/lib/libfoo.so.1"}};
  answer.too_old = {{"/sent/libstdc++.so.6", "/lib/libfoo.so.1", "GLIBCXX_9"}};
  CHECK(libraries_to_send(answer, {"libstdc++.so.6"}, kOffered).names == Names{"libfoo.so.1"});
  CHECK(refusal_of(answer, {"libstdc++.so.6", "libfoo.so.1"}) ==
        "its libraries and those of this machine do not go together: \"/lib/libfoo.so.1\" needs "
        "\"GLIBCXX_9\" of \"/sent/libstdc++.so.6\"");
}

TEST_CASE("loader_answer: asking again comes to an end") {
  // Each round sends at least one that was not sent, or none, or refuses.
  Names sent;
  LoaderAnswer answer;
  for (int rounds = 0; rounds < 20; ++rounds) {
    answer.missing.clear();
    for (const std::string& name : kOffered)
      if (!sent.contains(name)) {
        answer.missing = {name};
        break;
      }
    const LibrariesToSend more = libraries_to_send(answer, sent, kOffered);
    for (const std::string& name : more.names) REQUIRE(sent.insert(name).second);
    if (more.names.empty()) break;
  }
  CHECK(sent == kOffered);
}

}  // namespace hvd
