// hvdrun's end of one agent's pipes: frames into its stdin, bytes out of its stdout and stderr.
//
// Lives on the supervisor's loop. The lease is held as long as this object has it open.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/carrier.h"
#include "cli/frame.h"
#include "cli/loop.h"

namespace hvd {

class AgentPipes {
 public:
  struct Callbacks {
    std::function<void(std::string_view)> output;  // what its stdout holds; magic and frames
    std::function<void(std::string_view)> words;   // a line of its stderr, without its end
  };
  // `buffer` is to read into, one for all agents of a loop.
  AgentPipes(Loop& loop, AgentChannels channels, Callbacks callbacks, std::vector<char>& buffer);

  pid_t pid() const { return channels_.pid; }

  void send_frame(FrameKind kind,
                  std::string_view bytes);  // never blocks; a dead agent's are dropped
  void close_lease();
  bool leased() const { return bool(channels_.lease); }

  // What is read but cannot be written on has to wait in the pipes.
  void pause_output();
  void resume_output();
  bool output_paused() const { return output_paused_; }
  int unread_output() const;
  int unread_bytes() const;  // of output and words
  void read_words_there();   // so many as a pipe holds, also while output is paused
  bool drained() const { return !output_open_ && !words_open_; }

 private:
  void flush_lease();
  void on_output();
  void on_words();
  void say_words(bool all);

  Loop& loop_;
  AgentChannels channels_;
  const Callbacks callbacks_;
  std::string lease_pending_;  // bounded by the stdin credit, plus the bootstrap
  bool lease_watched_ = false;
  std::vector<char>& buffer_;
  bool output_open_ = true, output_paused_ = false, words_open_ = true;
  std::string words_;  // of a line that has not ended yet
};

}  // namespace hvd
