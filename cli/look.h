// What lies at a path, as exec and open would see it now.
#pragma once

#include <string>

namespace hvd {

// By stat() and access().
struct Look {
  int error = 0;         // errno; 0: it is there
  bool is_file = false;  // no directory, device, pipe or socket
  bool is_directory = false;
  bool is_socket = false;
  bool may_execute = false;  // of a directory: may be entered

  bool is_program() const { return error == 0 && !is_directory && may_execute; }
};

// By the rights of the effective user; `mode` as of access().
bool may(const std::string& path, int mode);

Look look_at(const std::string& path);

// The loader that an ELF program of 64 bit asks for; empty for a static program, for a library, and
// for what is none of these.
std::string loader_of(int fd);

// The same of a program that this machine runs as it is, which one of 32 bit may be. Empty for one
// of another machine: who emulates that (binfmt_misc) knows where its loader lies.
std::string native_loader_of(int fd);

}  // namespace hvd
