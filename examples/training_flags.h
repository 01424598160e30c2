// What the command lines of mnist and synthetic_benchmark share: Horovod's flags, and errors in one
// line that names the program.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

// Adds them to those of `app`, whose name is the program's, and parses. Does not return when the
// user asks for help or is wrong.
inline void parse_training_flags(CLI::App& app, int argc, char** argv, bool& fp16_allreduce,
                                 bool& no_cuda) {
  bool use_adasum = false;
  app.add_flag("--fp16-allreduce", fp16_allreduce, "send gradients as float16");
  app.add_flag("--no-cuda", no_cuda, "train on the CPU");
  app.add_flag("--use-adasum", use_adasum, "not supported yet");
  const auto refuse = [&](const std::string& why) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), why.c_str());
    std::exit(2);
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    std::exit(app.exit(asked));
  } catch (const CLI::ParseError& error) {
    refuse(std::string(error.what()) + "; --help lists the flags");
  }
  if (use_adasum) refuse("--use-adasum is not supported yet; leave it out to average");
}
