#include "cli/agent/remote_agent.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "cli/agent/agent.h"
#include "cli/agent/clean_host.h"
#include "cli/agent/keeper.h"
#include "cli/exit_code.h"
#include "cli/features.h"
#include "cli/frame.h"
#include "cli/gpu_facts.h"
#include "cli/hello.h"
#include "cli/interfaces.h"
#include "cli/pipe.h"
#include "cli/ship/take_shipment.h"
#include "cli/signals.h"
#include "cli/ssh/agent_file.h"
#include "cli/ssh/remote_script.h"
#include "cli/stack_room.h"
#include "cli/this_machine.h"
#include "rendezvous/credentials.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/present_gpus.h"

namespace hvd {
namespace {

constexpr const char* kSelf = "/proc/self/exe";

Error cannot(const std::string& what) {
  return Error(ErrorCode::kUnavailable, "cannot " + what + ": " + error_text(errno));
}

bool is_good_copy(const std::string& path, uint64_t bytes, const std::string& sum) {
  const UniqueFd there(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat facts{};
  return there && fstat(there.get(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         (facts.st_mode & (S_IWGRP | S_IWOTH)) == 0 && uint64_t(facts.st_size) == bytes &&
         access(path.c_str(), X_OK) == 0 && sha256_of(there.get()) == sum;
}

// On disk before it has its name: what is found there later is whole, whatever happens to the host.
// A good copy that is there stays: it may run, on another host that shares this folder, and who
// replaced it there would take the pages of a running program away. Only a file that is wrong is,
// and a folder that lies there is kept beside it.
void install(const std::string& sum, const std::string& path) {
  const UniqueFd self(open(kSelf, O_RDONLY | O_CLOEXEC));
  if (!self) throw cannot("open " + std::string(kSelf));
  if (const std::string seen = sha256_of(self.get()); seen != sum)
    throw Error(ErrorCode::kUnavailable,
                "the copy of hvdrun that came here has the SHA-256 sum " + seen + ", not " + sum);
  if (fsync(self.get()) != 0) throw cannot("write the copy of hvdrun to disk");
  const std::filesystem::path here = std::filesystem::read_symlink(kSelf);
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed))  // no file of ours can have made it
    std::filesystem::rename(path, path + ".aside." + std::to_string(getpid()), failed);
  const bool has_name = link(here.c_str(), path.c_str()) == 0 ||
                        is_good_copy(path, std::filesystem::file_size(here), sum);
  if (has_name ? unlink(here.c_str()) != 0 : rename(here.c_str(), path.c_str()) != 0)
    throw cannot("give " + here.string() + " the name " + path);
}

// The folder was made for this one file (remote_script.h); no other is ever removed.
void remove_self() {
  const std::filesystem::path here = std::filesystem::read_symlink(kSelf);
  if (!here.parent_path().filename().string().starts_with(kOnceFolder)) return;
  unlink(here.c_str());
  rmdir(here.parent_path().c_str());
}

void write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) throw cannot("speak to hvdrun");
    if (n > 0) bytes.remove_prefix(size_t(n));
  }
}

// "10.0.0.1 40000 10.0.0.2 22": sshd's client, which is hvdrun's host unless there is one between
// them, and this host.
void add_addresses(Hello& hello) {
  std::istringstream words(env::get("SSH_CONNECTION").value_or(""));
  words >> hello.hvdrun_address >> hello.hvdrun_port >> hello.own_address;
}

// With the magic, unless frames have gone out before.
void say_hello(const std::string& words, bool is_first = true) {
  std::string bytes(is_first ? kFrameMagic : "");
  append_header(bytes, {uint32_t(words.size()), FrameKind::kHello, Stream::kStdout, 0, 0});
  write_all(bytes + words);
}

void say_hello(const AgentKey& key, bool is_first) {
  Hello first{version(), AgentFile(kSelf).name(), key.request(),       "",
              "",        look_at_this_host(),     look_at_interfaces()};
  first.gpus = look_at_gpus();
  first.gpus_there = present_gpus();
  add_addresses(first);
  say_hello(hello_bytes(first), is_first);
}

// A copy that is used is young: `hvdrun clean` removes old ones.
void note_use() {
  const UniqueFd self(open(kSelf, O_RDONLY | O_CLOEXEC));
  if (self) futimens(self.get(), nullptr);  // fails where it is not ours, or read-only
}

// Shells move what they redirect there meanwhile, and lose it where they cannot.
constexpr rlim_t kKeptByShells = 10;

// hvdrun speaks through it: a pipe or a socket of sshd's.
void check_standard_input() {
  struct stat facts;
  if (fstat(0, &facts) == 0 && (S_ISFIFO(facts.st_mode) || S_ISSOCK(facts.st_mode))) return;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur <= kKeptByShells)
    throw Error(ErrorCode::kUnavailable,
                "the shell that started it lost its standard input, for want of open files: the "
                "limit is " +
                    std::to_string(files.rlim_cur) +
                    " (ulimit -n); raise it, maybe in a start file of the login shell");
  throw Error(
      ErrorCode::kUnavailable,
      "standard input is not what ssh gave: a start file of the login shell has replaced it "
      "(exec <...), which it should do in interactive shells alone");
}

void check_processes_are_seen() {
  if (const std::string why = why_descendants_are_unseen(); !why.empty())
    throw Error(ErrorCode::kUnavailable, why);
}

bool has(int argc, char** argv, std::string_view word) {
  return std::any_of(argv + 3, argv + argc, [&](const char* one) { return one == word; });
}

std::string value_behind(int argc, char** argv, std::string_view word) {
  const auto at = std::find_if(argv + 3, argv + argc, [&](const char* one) { return one == word; });
  return argv + argc - at > 1 ? at[1] : "";
}

}  // namespace

bool is_remote_agent(int argc, char** argv) {
  if (argc < 3 || std::string_view(argv[1]) != "agent") return false;
  const std::string_view role = argv[2];
  const bool ship = argc > 3 && has(argc, argv, "--ship"),
             once = argc > 3 && has(argc, argv, "--once");
  return (role == "--install" && argc == 5) || role == "--clean" ||
         (role == "--devices" && argc == 4 + once) ||
         (role == "--remote" && argc == 3 + ship + once);
}

void run_remote_agent(int argc, char** argv, const StartState& start) {
  try {
    check_stack();
    settle_signals();
    if (std::string_view(argv[2]) == "--install") {
      install(argv[3], argv[4]);
      _exit(0);
    }
    if (has(argc, argv, "--once"))
      remove_self();
    else
      note_use();
    check_processes_are_seen();
    if (std::string_view(argv[2]) == "--clean") {
      const CleanOrder order{has(argc, argv, "--dry-run"), has(argc, argv, "--all"),
                             value_behind(argc, argv, "--job")};
      say_hello(clean_host(order, AgentFile(kSelf).name()).SerializeAsString());
      _exit(0);
    }
    if (std::string_view(argv[2]) == "--devices") {
      const std::chrono::milliseconds limit(std::max(std::atoi(argv[3]), 1));
      say_hello(to_proto(look_at_gpu_facts(start, limit)).SerializeAsString());
      _exit(0);
    }
    check_standard_input();
    std::optional<Shipped> shipped;
    if (has(argc, argv, "--ship")) shipped = take_shipment();
    // The last moment with one thread. The key is the agent's alone.
    Kept kept = become_kept(argc, argv, -1);
    auto key = std::make_unique<AgentKey>();
    say_hello(*key, !shipped);
    _exit(run_agent(std::move(kept), std::move(key), std::move(shipped)));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "agent: %s\n", error.what());
    _exit(kExitOwnFailure);
  }
}

}  // namespace hvd
