// Where --result-file points, and how text gets there: a new file that takes the old one's place,
// or what is there already and is no file to be replaced (a pipe, a device, a descriptor of ours).
#pragma once

#include <chrono>
#include <string>

namespace hvd {

struct ResultPlace {
  std::string path;     // no link, or one into nowhere
  int descriptor = -1;  // what /dev/stdout and /dev/fd/63 mean: one of our own; else -1
};

// Follows links. Never fails: what cannot be followed is found out by who opens it.
ResultPlace find_result_place(const std::string& path);

// Whether `folder` is made with the directory that --output-filename names, unless it is there: the
// directory itself, one above it, or a rank's in it.
bool is_folder_of_output(const std::string& folder, const std::string& output, int ranks);

// A reader of a file sees the whole of it or what was there before, unless only the file itself may
// be written. A reader of a pipe that takes nothing for so long is not waited for. Returns what
// went wrong, "" if nothing did.
std::string write_result_file(const std::string& path, const std::string& text,
                              std::chrono::milliseconds patience = std::chrono::seconds(5));

}  // namespace hvd
