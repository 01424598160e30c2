#include "cli/ship/ask_loader.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/subprocess.h"
#include "runtime/base/deadline.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr std::chrono::seconds kAnswerLimit{20};
constexpr size_t kAnswerBytesMax = 4u << 20;

Error cannot(const LoaderQuestion& question, const std::string& why) {
  return Error(ErrorCode::kUnavailable, "cannot find out which libraries " +
                                            in_quotes(question.program) +
                                            " needs: " + in_quotes(question.loader) + " " + why);
}

// False at the end of file.
bool take(int fd, std::string& text) {
  char bytes[16u << 10];
  const ssize_t n = read(fd, bytes, sizeof bytes);
  if (n > 0 && text.size() < kAnswerBytesMax) text.append(bytes, size_t(n));
  return n > 0 || (n < 0 && errno == EINTR);
}

}  // namespace

LoaderAnswer ask_loader(const LoaderQuestion& question) {
  // Another library's would take the question for an order to run the program.
  if (!is_of_glibc(question.loader.substr(question.loader.rfind('/') + 1)))
    throw cannot(question, "is not the loader of a GNU C library; link it statically");
  Pipe out = make_pipe(), words = make_pipe();
  const UniqueFd null = open_null();
  const std::string libraries = "LD_LIBRARY_PATH=" + question.libraries;
  // As ldd does it: `--list` would end at the first library that is missing.
  const char* const environment[] = {"LD_TRACE_LOADED_OBJECTS=1", libraries.c_str(), nullptr};
  SpawnOptions options;
  options.argv = {question.loader, question.program};
  options.environment = environment;
  options.stdin_fd = null.get();
  options.stdout_fd = out.write.get();
  options.stderr_fd = words.write.get();
  options.parent_death_signal = true;
  const SpawnResult child = spawn(options);
  if (child.pid == 0) throw cannot(question, "cannot be run: " + error_text(child.error));
  out.write.reset();
  words.write.reset();
  std::string printed, said;
  const Deadline deadline = Deadline::in(kAnswerLimit);
  pollfd fds[2] = {{out.read.get(), POLLIN, 0}, {words.read.get(), POLLIN, 0}};
  while ((fds[0].fd >= 0 || fds[1].fd >= 0) && !deadline.passed()) {
    if (poll(fds, 2, deadline.poll_timeout_ms()) <= 0) continue;
    if (fds[0].revents != 0 && !take(fds[0].fd, printed)) fds[0].fd = -1;
    if (fds[1].revents != 0 && !take(fds[1].fd, said)) fds[1].fd = -1;
  }
  if (deadline.passed()) kill(child.pid, SIGKILL);  // not reaped, so the number is its own
  while (waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (deadline.passed()) throw cannot(question, "does not end");
  LoaderAnswer answer = read_loader_answer(printed, said);
  if (!answer.trouble.empty()) throw cannot(question, "says " + answer.trouble);
  return answer;
}

}  // namespace hvd
