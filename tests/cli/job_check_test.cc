// What is found out before anything starts, in a directory of the test's own.
#include "cli/job_check.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>

#include "cli/agent/worker_environment.h"
#include "cli/command_check.h"
#include "cli/frame.h"
#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/folder.h"

using namespace hvd;

namespace {

// Relative paths are seen from this folder while it lives.
class Inside {
 public:
  explicit Inside(const Folder& folder) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder.path());
  }
  ~Inside() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

UniqueFd make_socket(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

JobSpec job(std::vector<std::string> command, std::string directory = "") {
  JobSpec spec;
  spec.size = 2;
  spec.command = std::move(command);
  spec.directory = std::move(directory);
  return spec;
}

// "127 message", or "ok". Without hosts all ranks are here.
std::string check(JobSpec spec, const std::string& path = "/usr/bin:/bin") {
  if (spec.hosts.empty()) spec.hosts = {{"localhost", "", spec.size}};
  const std::vector<std::string> here = {"PATH=" + path};
  const auto refusal =
      check_job(spec, assign_slots(spec.hosts, spec.size), with_settings(here, spec.environment));
  if (!refusal) return "ok";
  return std::to_string(refusal->exit_code) + " " + refusal->message;
}

const std::string kScript = "#!/bin/sh\nexit 0\n";

}  // namespace

TEST_CASE("job check: what can be run passes") {
  const Folder folder;
  folder.write("run", kScript, 0755);
  CHECK(check(job({"true"})) == "ok");
  CHECK(check(job({"/bin/sh", "-c", "x"})) == "ok");
  CHECK(check(job({"./run"}, folder.path())) == "ok");
  CHECK(check(job({folder.in("run")})) == "ok");
  CHECK(check(job({"run"}), "/bin:" + folder.path()) == "ok");
  CHECK(check(job({"run"}, folder.path()), "/bin:.") == "ok");
  CHECK(check(job({"run"}, folder.path()), ":/bin") == "ok");
}

TEST_CASE("job check: a PATH given by -x is the one that counts") {
  const Folder folder;
  folder.write("run", kScript, 0755);
  JobSpec spec = job({"run"});
  spec.environment = {{"PATH", folder.path()}};
  CHECK(check(spec) == "ok");
  spec.command = {"true"};
  CHECK(check(spec).substr(0, 4) == "127 ");
  spec.environment.push_back({"PATH", {}});
  CHECK(check(spec) == "ok");  // the one that is set here, again
  spec.environment.pop_back();
  spec.environment.push_back({"PATH", "/usr/bin:/bin"});
  spec.environment.back().ranks = {0, 1};
  CHECK(check(spec) == "ok");  // where ranks have their own, they look there
  spec.command = {"./true"};
  CHECK(check(spec).substr(0, 4) == "127 ");
}

TEST_CASE("job check: a command that is not there is 127") {
  const Folder folder;
  folder.write("run", kScript, 0755);
  CHECK(check(job({"no-such-program"})) ==
        "127 command \"no-such-program\" is not found on the PATH; check its spelling or give its "
        "path");
  CHECK(check(job({"./no-such"}, folder.path())) == "127 command \"./no-such\" in \"" +
                                                        folder.path() +
                                                        "\" cannot be started: No such file or "
                                                        "directory; check its path");
  CHECK(check(job({"/dev/null/x"})) ==
        "127 command \"/dev/null/x\" cannot be started: Not a directory; check its path");
  CHECK(check(job({"run", "a b"}, folder.path())) ==
        "127 command \"run\" is not found on the PATH; try: hvdrun -np 2 ./run 'a b'");
}

TEST_CASE("job check: who quoted a whole command, or set a variable before it, is told how to") {
  const Folder folder;
  folder.write("run", kScript, 0755);
  CHECK(check(job({"sh train.sh --lr 1"})) ==
        "127 there is no command \"sh train.sh --lr 1\"; try: hvdrun -np 2 sh train.sh --lr 1");
  CHECK(check(job({"./run --lr 1", "x"}, folder.path())) ==
        "127 there is no command \"./run --lr 1\"; try: hvdrun -np 2 ./run --lr 1 x");
  CHECK(check(job({"LR=a/b", "sh", "-c", "x y"})) ==
        "127 there is no command \"LR=a/b\"; try: hvdrun -np 2 -x LR=a/b sh -c 'x y'");
  CHECK(check(job({"LR=1 sh train.sh >log"})) ==
        "127 there is no command \"LR=1 sh train.sh >log\"; try: hvdrun -np 2 sh -c 'LR=1 sh "
        "train.sh >log'");
  CHECK(check(job({"cd x && ./train"})).ends_with("; try: hvdrun -np 2 sh -c 'cd x && ./train'"));
  CHECK(check(job({"cd x && ./train", "--lr"}))
            .ends_with("; try: hvdrun -np 2 sh -c 'cd x && ./train \"$@\"' sh --lr"));
  CHECK(check(job({"LR=0.1 sh train.sh", "--epochs", "3"}))
            .ends_with("; try: hvdrun -np 2 sh -c 'LR=0.1 sh train.sh \"$@\"' sh --epochs 3"));
  CHECK(check(job({"SAID=two words", "./run", "x"}, folder.path()))
            .ends_with("; try: hvdrun -np 2 -x 'SAID=two words' ./run x"));
  CHECK(check(job({"sh " + std::string(300, 'x')})).find("there is no command") !=
        std::string::npos);
  CHECK(check(job({"no-such program"})).find("check its spelling") != std::string::npos);
  CHECK(check(job({"LR=1"})).find("check its spelling") != std::string::npos);
  folder.write("a b", kScript, 0755);
  folder.write("a", kScript, 0755);
  CHECK(check(job({"./a b"}, folder.path())) == "ok");
}

TEST_CASE("job check: where Python is python3 alone, that is what to try for python") {
  const Folder folder;
  const std::string missing = "127 command \"python\" is not found on the PATH; ";
  const JobSpec spec = job({"python", "train.py", "--lr", "1"});
  CHECK(check(spec, folder.path()) == missing + "check its spelling or give its path");
  folder.write("python3", kScript, 0644);
  CHECK(check(spec, folder.path()) == missing + "check its spelling or give its path");
  folder.write("python3", kScript, 0755);
  CHECK(check(spec, folder.path()) == missing + "try: hvdrun -np 2 python3 train.py --lr 1");
}

TEST_CASE("job check: a command that cannot be run is 126, with the way to run it") {
  const Folder folder;
  folder.write("train.py", "print(1)\n", 0644);
  folder.write("go.sh", kScript, 0644);
  folder.write("data", "x", 0644);
  folder.write("python", kScript, 0755);
  const std::string path = "/bin:" + folder.path();
  CHECK(check(job({"./train.py", "--lr", "1"}, folder.path()), path) ==
        "126 \"./train.py\" has no permission to be executed; try: hvdrun -np 2 python ./train.py "
        "--lr 1");
  CHECK(check(job({"train.py"}, folder.path()), "/bin:.") ==
        "126 \"" + folder.path() +
            "/./train.py\" has no permission to be executed; try: hvdrun -np 2 python " +
            folder.path() + "/./train.py");
  CHECK(check(job({"./go.sh"}, folder.path())) ==
        "126 \"./go.sh\" has no permission to be executed; try: hvdrun -np 2 sh ./go.sh");
  CHECK(check(job({"./data"}, folder.path())) ==
        "126 \"./data\" has no permission to be executed; if it is a program, try: chmod +x "
        "./data");
  CHECK(check(job({"/tmp"})) == "126 \"/tmp\" is a directory; name the program in it to run");
  CHECK(check(job({"/dev/null"})) == "126 \"/dev/null\" is no file; name a program to run");
}

TEST_CASE("job check: the interpreter proposed is one that is there") {
  const Folder folder, here;
  here.write("train.py", "print(1)\n", 0644);
  const JobSpec spec = job({"train.py"}, here.path());
  CHECK(check(spec, folder.path()) ==
        "126 \"train.py\" has no permission to be executed; try: hvdrun -np 2 python train.py");
  folder.write("python3", kScript, 0755);
  CHECK(check(spec, folder.path()) ==
        "126 \"train.py\" has no permission to be executed; try: hvdrun -np 2 python3 train.py");
  folder.write("python", kScript, 0755);
  CHECK(check(spec, folder.path()) ==
        "126 \"train.py\" has no permission to be executed; try: hvdrun -np 2 python train.py");
}

TEST_CASE("job check: a script without a line for the kernel, or with a wrong one, is 126") {
  const Folder folder;
  folder.write("bare", "echo hello\n", 0755);
  folder.write("dos", "#!/bin/sh\r\nexit\r\n", 0755);
  folder.write("gone", "#! /no/such/python -u\n", 0755);
  folder.write("blank", "#!", 0755);
  folder.write("odd", std::string("\x01\x02\0\x03", 4), 0755);
  CHECK(check(job({"./bare"}, folder.path())) ==
        "126 \"./bare\" is neither a program nor a script with a #! line; try: hvdrun -np 2 sh "
        "./bare");
  folder.write("cut",
               "\x7f"
               "ELF",
               0755);
  CHECK(check(job({"./cut"}, folder.path())) ==
        "126 \"./cut\" is a program of which only 4 bytes are there; copy it again");
  folder.write("bare.py", "import sys\n", 0755);
  CHECK_THAT(check(job({"./bare.py"}, folder.path())),
             Catch::Contains("; try: hvdrun -np 2 python") && Catch::EndsWith(" ./bare.py"));
  CHECK(check(job({"./dos"}, folder.path())) ==
        "126 \"./dos\" asks to be run by \"/bin/sh\\x0d\", which is not there; correct its first "
        "line or put an interpreter before it");
  CHECK(check(job({"./gone"}, folder.path())).find("by \"/no/such/python\", which") !=
        std::string::npos);
  CHECK(check(job({"./blank"}, folder.path())) == "ok");  // the kernel has its own word for it
  CHECK(check(job({"./odd"}, folder.path())) == "ok");
}

TEST_CASE("job check: a working directory that is not one is 2") {
  const Folder folder;
  folder.write("file", "x", 0644);
  CHECK(check(job({"true"}, folder.in("gone"))) ==
        "2 --wdir \"" + folder.in("gone") +
            "\" cannot be used: No such file or directory; name another directory");
  CHECK(check(job({"true"}, folder.in("file"))) ==
        "2 --wdir \"" + folder.in("file") +
            "\" cannot be used: Not a directory; name another directory");
}

TEST_CASE("job check: mistakes of the command line come before what is none") {
  const Folder folder;
  JobSpec spec = job({"no-such-program"});
  spec.result_file = folder.in("gone/result.json");
  CHECK_THAT(check(spec), Catch::StartsWith("2 --result-file"));
  spec.result_file = folder.in("result.json");
  CHECK_THAT(check(spec), Catch::StartsWith("127 "));
  spec.output_directory = "/proc/nowhere";
  CHECK_THAT(check(spec), Catch::StartsWith("2 --output-filename"));
}

TEST_CASE("job check: ranks whose output is wanted have to be there") {
  JobSpec spec = job({"true"});
  spec.output_ranks = {0, 1};
  CHECK(check(spec) == "ok");
  spec.output_ranks = {0, 5};
  CHECK(check(spec) ==
        "2 --output-ranks names rank 5, but the last of 2 ranks is 1; leave it out or start more "
        "ranks");
}

TEST_CASE("job check: a limit that the files of --output-filename exceed is 125") {
  const Folder folder;
  JobSpec spec = job({"true"});
  spec.size = 11;
  const FewDescriptors few(22);
  CHECK(check(spec) == "ok");
  spec.output_directory = folder.path();
  CHECK(
      check(spec) ==
      "125 the 22 files of --output-filename cannot all be open: Too many open files; hvdrun needs "
      "40 more: raise the limit on open files (ulimit -n)");
}

TEST_CASE("job check: what no message to a host would take is 2") {
  JobSpec spec = job({"true"});
  spec.environment.assign(kFrameBytesMax / 100'000 + 1, {"A", std::string(100'000, 'x'), {0, 1}});
  CHECK_THAT(check(spec),
             Catch::StartsWith("2 the command, the environment of ranks and what -x@ "
                               "says of them are 16") &&
                 Catch::EndsWith("a host takes 16777216: put what is long into a file"));
  spec.environment.resize(spec.environment.size() - 5);
  CHECK(check(spec) == "ok");
  spec.command.push_back(std::string(600'000, 'x'));
  CHECK_THAT(check(spec), Catch::StartsWith("2 the command"));
  spec.command.pop_back();
  spec.environment.push_back({"B", std::string(600'000, 'x')});
  CHECK_THAT(check(spec), Catch::StartsWith("2 the command"));
}

TEST_CASE("job check: a message to a host has the places of its ranks, and no other's") {
  JobSpec spec = job({"true"}, "/");
  constexpr int kHosts = 256, kEach = 1024;
  spec.size = kHosts * kEach;
  for (int i = 0; i < kHosts; ++i)
    spec.hosts.push_back(
        {.name = "gpu" + std::to_string(i), .user = "", .slots = kEach, .remote = true});
  REQUIRE(size_t(spec.size) * 64 >= kFrameBytesMax);  // what a place takes, and a name
  CHECK(check(spec) == "ok");

  spec.size = 4;
  spec.hosts[0].slots = spec.hosts[1].slots = 2;
  for (const int rank : {1, 2})
    spec.environment.insert(spec.environment.end(), 100, {"A", std::string(100'000, 'x'), {rank}});
  CHECK(check(spec) == "ok");  // 10 MB for each host
  for (EnvironmentSetting& one : spec.environment) one.ranks = {1, 2};
  CHECK_THAT(check(spec), Catch::StartsWith("2 the command"));
}

TEST_CASE("job check: a working directory that is gone is 2, unless --wdir names another") {
  const Folder folder, gone;
  const Inside inside(folder);
  std::filesystem::current_path(gone.path());
  std::filesystem::remove(gone.path());
  CHECK(check(job({"true"})) ==
        "2 the working directory cannot be used: No such file or directory; go to another or name "
        "one by --wdir");
  CHECK(check(job({"true"}, folder.path())) == "ok");
  const std::string refused = check(job({"true"}));
  CHECK(check(job({"true"}, "below")) == refused);
  JobSpec elsewhere = job({"true"}, "below");
  elsewhere.hosts = {{"gpu1", "", 2}};
  elsewhere.hosts[0].remote = true;
  CHECK(check(elsewhere) == refused);
}

TEST_CASE("job check: a key for other hosts that cannot be read is 2") {
  const Folder folder;
  JobSpec spec = job({"true"});
  spec.hosts = {{"gpu1", "", 2}};
  spec.hosts[0].remote = true;
  spec.ssh.program = "true";
  for (const char* mine : {"", "~/.ssh/id", "%d/id", "/dev/null"}) {  // ssh knows what ~ and %d are
    spec.ssh.identity_file = mine;
    CHECK(check(spec) == "ok");
  }
  spec.ssh.identity_file = folder.path() + "/key";
  CHECK(check(spec) == "2 -i: \"" + folder.path() +
                           "/key\" cannot be read: No such file or directory; name the file of "
                           "your private key");
}

TEST_CASE("job check: output that cannot be written is 2") {
  const Folder folder;
  const Inside inside(folder);
  folder.write("file", "x", 0644);
  JobSpec spec = job({"true"});
  spec.output_directory = folder.in("file");
  CHECK(check(spec) == "2 --output-filename \"" + folder.in("file") +
                           "\" cannot be written to: \"" + folder.in("file") +
                           "\": Not a directory; name another directory");
  spec.output_directory = folder.in("file/deeper");
  CHECK(check(spec).find("Not a directory") != std::string::npos);
  for (const char* good : {"new", "new/deeper/still/", ""}) {
    spec.output_directory = folder.in(good);
    CHECK(check(spec) == "ok");
  }
  std::filesystem::create_directories(folder.in("earlier/rank.00"));
  folder.write("earlier/rank.00/stdout", "of an earlier job", 0644);
  spec.size = 11;
  spec.output_directory = folder.in("earlier");
  CHECK(check(spec) == "ok");
  std::filesystem::create_directories(folder.in("earlier/rank.10/stderr"));
  CHECK(check(spec).find("earlier/rank.10/stderr\": Is a directory;") != std::string::npos);
  folder.write("earlier/rank.02", "in the way", 0644);
  CHECK(check(spec) == "2 --output-filename \"" + spec.output_directory +
                           "\" cannot be written to: \"" + folder.in("earlier/rank.02") +
                           "\": Not a directory; name another directory");
  std::filesystem::remove_all(folder.in("earlier"));
  std::filesystem::create_directory(folder.in("earlier"));
  std::filesystem::create_directory_symlink("nowhere", folder.in("earlier/rank.03"));
  CHECK(check(spec).find("earlier/rank.03\": it is a link to nowhere;") != std::string::npos);
  std::filesystem::create_directory(folder.in("earlier/nowhere"));
  CHECK(check(spec) == "ok");
  std::filesystem::create_symlink("../gone/out", folder.in("earlier/nowhere/stdout"));
  CHECK(check(spec).find("rank.03/stdout\": No such file or directory;") != std::string::npos);
  std::filesystem::create_directory(folder.in("earlier/gone"));
  CHECK(check(spec) == "ok");  // it is made where the link leads
  const UniqueFd socket = make_socket(folder.in("earlier/nowhere/stderr"));
  CHECK(check(spec).find("rank.03/stderr\": it is a socket;") != std::string::npos);
  std::filesystem::create_directory_symlink("nowhere", folder.in("lost"));
  spec.output_directory = folder.in("lost");
  CHECK(check(spec).find("lost\": it is a link to nowhere;") != std::string::npos);
  spec.output_directory = "/proc/nowhere";  // where root may write and makes no file
  CHECK(check(spec).find("2 --output-filename") == 0);
  spec.output_directory = "logs";
  CHECK(check(spec) == "ok");
  if (geteuid() != 0) {
    chmod(folder.path().c_str(), 0555);
    spec.output_directory = folder.in("new/deeper");
    CHECK(check(spec).find("\"" + folder.path() + "\": Permission denied") != std::string::npos);
    chmod(folder.path().c_str(), 0755);
  }
}

TEST_CASE("job check: a result file that cannot be written is 2") {
  const Folder folder;
  const Inside inside(folder);
  JobSpec spec = job({"true"});
  spec.result_file = folder.in("gone/result.json");
  CHECK(check(spec) == "2 --result-file \"" + spec.result_file +
                           "\" cannot be written: No such file or directory; name another file");
  for (const char* directory : {"", "new/", "new//"}) {
    spec.result_file = folder.in(directory);
    CHECK_THAT(check(spec), Catch::Contains("Is a directory"));
  }
  std::filesystem::create_symlink("gone/result.json", folder.in("astray"));
  spec.result_file = folder.in("astray");
  CHECK(check(spec).find("No such file") != std::string::npos);
  const UniqueFd readable(open("/dev/null", O_RDONLY | O_CLOEXEC));
  spec.result_file = "/dev/fd/" + std::to_string(readable.get());
  CHECK(check(spec).find("Bad file descriptor") != std::string::npos);
  const UniqueFd socket = make_socket(folder.in("socket"));
  spec.result_file = folder.in("socket");
  CHECK(check(spec).find("it is a socket") != std::string::npos);
  spec.result_file = "/proc/result.json";
  CHECK(check(spec).find("--result-file") != std::string::npos);
  const UniqueFd writable(open("/dev/null", O_WRONLY | O_CLOEXEC));
  std::filesystem::create_symlink("later.json", folder.in("link"));
  for (const std::string& good :
       {folder.in("result.json"), std::string("result.json"), std::string("link"),
        "/dev/fd/" + std::to_string(writable.get()), std::string("/dev/null")}) {
    spec.result_file = good;
    CHECK(check(spec) == "ok");
  }
}

TEST_CASE("job check: a result file may lie in a folder that is made for the output") {
  const Folder folder;
  const Inside inside(folder);
  std::filesystem::create_directory(folder.in("there"));
  std::filesystem::create_directory_symlink("there", folder.in("link"));
  JobSpec spec = job({"true"});
  spec.size = 11;
  const auto with = [&](const std::string& output, const std::string& result) {
    spec.output_directory = output;
    spec.result_file = result;
    return check(spec);
  };
  for (const char* output : {"logs", "logs/", "./logs/.", "logs/deeper/still", "other/../logs"})
    CHECK(with(output, "logs/result.json") == "ok");
  CHECK(with("logs", folder.in("logs/result.json")) == "ok");
  CHECK(with("logs", "logs/rank.10/result.json") == "ok");
  CHECK(with("link/logs", "there/logs/rank.03/result.json") == "ok");
  for (const char* elsewhere : {"logs/rank.11/result.json", "logs/rank.3/result.json",
                                "logs/deeper/result.json", "log/result.json"})
    CHECK_THAT(with("logs", elsewhere), Catch::Contains("cannot be written: No such file"));
  for (const char* folder_itself :
       {"logs", "logs/deeper", "logs/deeper/rank.07", "logs/deeper/rank.07/no-file/"})
    CHECK_THAT(with("logs/deeper", folder_itself), Catch::Contains("Is a directory"));
  CHECK(with("logs", "logs/rank.10/stdout") ==
        "2 --result-file \"logs/rank.10/stdout\" cannot be written: it is a rank's own "
        "(--output-filename); name another file");
  std::filesystem::create_directories("there/earlier/rank.03");
  std::filesystem::create_directories("there/earlier/rank.04");
  folder.write("there/earlier/rank.03/stderr", "of an earlier job", 0644);
  std::filesystem::create_symlink("there/earlier/rank.03/stderr", "theirs");
  for (const char* of_a_rank :
       {"there/earlier/rank.03/stderr", "theirs", "link/earlier/../earlier/rank.04/stdout"}) {
    CHECK_THAT(with("link/earlier", of_a_rank), Catch::Contains("it is a rank's own"));
    CHECK(with("logs", of_a_rank) == "ok");
  }
  spec.output_directory.clear();
  spec.result_file = "logs/result.json";
  CHECK_THAT(check(spec), Catch::Contains("No such file"));
}

TEST_CASE("command check: a command may be at one path, or in each of the PATH's folders") {
  const auto candidates = [](const std::string& name) {
    const std::vector<std::string> command{name, "--option"};
    return candidates_of({.command = command,
                          .program = "",
                          .directory = "/wd",
                          .path = "/bin::tools:/sbin",
                          .start = ""});
  };
  using Paths = std::vector<std::string>;
  CHECK(candidates("/opt/train") == Paths{"/opt/train"});
  CHECK(candidates("./train") == Paths{"/wd/./train"});
  CHECK(candidates("train") ==
        Paths{"/bin/train", "/wd/./train", "/wd/tools/train", "/sbin/train"});
}
