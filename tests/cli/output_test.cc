// Files for the ranks' output that cannot be had.
#include "cli/output.h"

#include <fstream>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"
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

TEST_CASE("output: a lack of descriptors is not the fault of --output-filename") {
  const TemporaryDirectory folder;
  const FewDescriptors few(12);
  const auto [code, message] = refusal_of(8, folder.path());
  CHECK(code == ErrorCode::kUnavailable);
  CHECK_THAT(message, Catch::StartsWith("cannot write the output file " + folder.path().string()) &&
                          Catch::EndsWith("; raise the limit on open files (ulimit -n)"));
}

TEST_CASE("output: files that cannot be made are the fault of --output-filename") {
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / "rank.0") << "in the way";
  const std::string advice = "; give --output-filename a directory that can be written";
  auto [code, message] = refusal_of(1, folder.path());
  CHECK(code == ErrorCode::kInvalidArgument);
  CHECK(message == "cannot write the output file " + folder.path().string() +
                       "/rank.0/stdout: Not a directory" + advice);
  std::tie(code, message) = refusal_of(1, folder.path() / "rank.0/deeper");
  CHECK(code == ErrorCode::kInvalidArgument);
  CHECK(message == "cannot make the output directory " + folder.path().string() +
                       "/rank.0/deeper: Not a directory" + advice);
}
