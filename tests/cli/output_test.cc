// Files for the ranks' output that cannot be had, and the last lines of a rank.
#include "cli/output.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;

namespace {

std::pair<ErrorCode, std::string> refusal_of(int ranks, const std::string& directory) {
  OutputOptions options;
  options.ranks = ranks;
  options.directory = directory;
  try {
    const Output output(std::move(options));
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kInternal, "none"};
}

}  // namespace

TEST_CASE("output: files that cannot be had are --output-filename's fault, but not for a limit") {
  const TemporaryDirectory folder;
  const std::string path = folder.path();
  const std::string advice = "; give --output-filename a directory that can be written";
  std::ofstream(path + "/rank.0") << "in the way";
  auto [code, message] = refusal_of(1, path);
  CHECK(code == ErrorCode::kInvalidArgument);
  CHECK(message ==
        "cannot write the output file " + path + "/rank.0/stdout: Not a directory" + advice);
  std::tie(code, message) = refusal_of(1, path + "/rank.0/deeper");
  CHECK(code == ErrorCode::kInvalidArgument);
  CHECK(message ==
        "cannot make the output directory " + path + "/rank.0/deeper: Not a directory" + advice);
  std::tie(code, message) = refusal_of(1, path + "/rank.0/a\nb");
  CHECK(message == "cannot make the output directory $'" + path +
                       "/rank.0/a\\x0ab': Not a directory" + advice);

  // Last: a sanitizer needs a pipe to look at an object of a type that is new to it.
  const FewDescriptors few(12);
  std::tie(code, message) = refusal_of(8, path + "/few");
  CHECK(code == ErrorCode::kUnavailable);
  CHECK_THAT(message, Catch::StartsWith("cannot write the output file " + path + "/few/rank.") &&
                          Catch::EndsWith("; raise the limit on open files (ulimit -n)"));
}

TEST_CASE("output: an earlier job's files stay whole until ranks are to run") {
  const TemporaryDirectory folder;
  const std::string file = folder.path().string() + "/rank.0/stdout";
  const auto content = [&] {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  OutputOptions options;
  options.ranks = 1;
  options.directory = folder.path();
  {
    const Output first(options);
  }
  std::ofstream(file) << "of an earlier job";
  Output output(options);
  CHECK(content() == "of an earlier job");
  output.begin();
  CHECK(content().empty());
}

TEST_CASE("output: what cannot be emptied is no wrong command line: hosts were started by then") {
  const TemporaryDirectory folder;
  const std::string file = folder.path().string() + "/rank.0/stdout";
  const UniqueFd sealed(memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(write(sealed.get(), "kept", 4) == 4);
  REQUIRE(fcntl(sealed.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  std::filesystem::create_directory(folder.path() / "rank.0");
  std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(sealed.get()), file);
  OutputOptions options;
  options.ranks = 1;
  options.directory = folder.path();
  Output output(options);
  try {
    output.begin();
    FAIL("it was emptied");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
    CHECK(std::string(error.what()) ==
          "cannot empty the output file " + file +
              ": Operation not permitted; give --output-filename a directory that can be written");
  }
}

TEST_CASE("output: a rank's last lines are no longer pushed out once they are closed") {
  OutputOptions options;
  options.ranks = 2;
  options.shown = {1};  // of rank 0 nothing goes to the test's own standard error
  Output output(options);
  const auto say = [&](std::string_view words) {
    output.feed({.header = {.stream = Stream::kStderr, .rank = 0}, .bytes = words}, 0,
                Clock::now());
  };
  say("one\ntwo");
  output.close_stderr_tail(0);
  output.close_stderr_tail(1);
  say(" and a half\n");
  CHECK(output.stderr_tail(0) == std::vector<std::string>{"one", "two"});
  CHECK(output.stderr_tail(1).empty());
}
