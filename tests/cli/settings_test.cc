// Values of options that command_line_test.cc has no room for.
#include "cli/settings.h"

#include <optional>

#include "cli/after_cd.h"
#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using Words = std::vector<std::string>;

JobSpec spec_of(Words words) {
  words.push_back("./train");
  return parse_command_line(words, [](const char*) { return std::optional<std::string>(); }).spec;
}

std::string error_of(const Words& words) {
  try {
    spec_of(words);
    return "";
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInvalidArgument ? error.what() : "wrong code";
  }
}

}  // namespace

TEST_CASE("settings: what is to be shipped, and how much at most") {
  const JobSpec spec = spec_of({"--ship", "./train", "--ship=data", "--ship-limit", "3g"});
  CHECK(spec.ship == Words{"./train", "data"});
  CHECK(spec.ship_limit == 3ull << 30);
  CHECK(spec_of({}).ship.empty());
  CHECK(spec_of({}).ship_limit == 2ull << 30);
  CHECK(spec_of({"--ship-limit", "700"}).ship_limit == 700);
  CHECK(spec_of({"--ship-limit", "500M"}).ship_limit == 500ull << 20);
  for (const char* bad : {"0", "-1", "G", "1.5G", "2GB", "9999999T", "many"})
    CHECK(error_of({std::string("--ship-limit=") + bad}) ==
          "--ship-limit takes a size such as 500M or 8G, not \"" + std::string(bad) + "\"");
}

TEST_CASE("settings: a file is named, and - is none") {
  CHECK(error_of({"--result-file", "-"}) ==
        "--result-file takes a file (/dev/stdout is one, and ./- one of that name), not \"-\"");
  CHECK(error_of({"--hostfile=-"}) ==
        "--hostfile takes a file (/dev/stdin is one, and ./- one of that name), not \"-\"");
  CHECK(spec_of({"--result-file", "./-"}).result_file == "./-");
  CHECK(error_of({"--output-filename", "-"}) ==
        "--output-filename takes a directory (./- is one of that name), not \"-\"");
}

TEST_CASE("settings: GPUs are named by indices or names, and debugged by ranks") {
  const GpuOptions gpus = spec_of({"--devices", "1,0", "--share-gpu", "--deterministic",
                                   "--launch-blocking", "--nccl-debug=2,0-1"})
                              .gpus;
  CHECK(gpu_list_text(gpus.devices) == "1,0");
  CHECK((gpus.share && gpus.deterministic && gpus.launch_blocking));
  CHECK(gpus.debug_ranks == std::vector<int>{0, 1, 2});
  const GpuOptions none = spec_of({}).gpus;
  CHECK((none.devices.empty() && none.debug_ranks.empty()));
  CHECK_FALSE((none.share || none.deterministic || none.launch_blocking));
  CHECK_THAT(error_of({"--devices", "0,x"}), Catch::StartsWith("--devices: word 2, \"x\", is no"));
  CHECK_THAT(error_of({"--nccl-debug", "x"}), Catch::StartsWith("--nccl-debug takes a list of "));
}

TEST_CASE("settings: .. in a directory takes back the name before it") {
  const struct {
    const char *from, *to, *there;
  } rows[] = {
      {"", "a", "a"},           {"", "./a//b/.", "a/b"},  {"", "no-such/..", "."},
      {"", "../a", "../a"},     {"", "/", "/"},           {"", "//a/../..", "/"},
      {"/x", "a/../b", "/x/b"}, {"/x/y", "../..", "/"},   {"/x/y", "../z/", "/x/z"},
      {"/x", ".", "/x"},        {"/x", "/y/./z", "/y/z"}, {"/x", "...", "/x/..."},
  };
  for (const auto& row : rows) {
    INFO(row.from << ' ' << row.to);
    CHECK(after_cd(row.from, row.to) == row.there);
  }
  CHECK(spec_of({"--wdir", "./a/../b/"}).directory == "b");
}

}  // namespace hvd
