// Ranks of the stand-ins as processes: the test binary started again, as tests/support/main.cc
// does.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace hvd {

class Process {
 public:
  // `variables` are added to the environment: "NAME=value".
  Process(const std::string& rank_program, std::vector<std::string> variables);
  ~Process();  // ends it if it lives
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill();
  // What it wrote on stderr up to a whole line that begins with this; throws when it ends before.
  void wait_for_line(const std::string& begin);
  // Waits for its end. The status is as waitpid() tells it.
  int wait();
  // After wait().
  const std::string& text() const { return text_; }

 private:
  bool read_more();

  pid_t id_ = -1;
  int stderr_ = -1;
  std::string text_;
};

}  // namespace hvd
