// Where --result-file points, and how text gets there: a new file that takes the old one's place,
// or what is there already and is no file to be replaced (a pipe, a device, a descriptor of ours).
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <functional>
#include <string>

namespace hvd {

struct ResultPlace {
  std::string path;          // no link, or one into nowhere, or one that is not to be followed
  int descriptor = -1;       // what /dev/stdout and /dev/fd/63 mean: one of our own; else -1
  std::string refusal = {};  // why the link at `path` is not followed; empty: it is none
};

// Whether `us` may follow a link that lies in `folder`: not where anybody may put one (/tmp),
// unless it is our own or the folder's owner's. Else whoever guesses a name there picks the file
// that we write. The kernel's own rule (fs.protected_symlinks) knows nothing of links followed by
// hand.
bool may_follow(const struct stat& link, const struct stat& folder, uid_t us);

using LinkRule = std::function<bool(const struct stat& link, const struct stat& folder)>;
LinkRule our_link_rule();  // may_follow() for who this process acts as

// Follows links. Never fails: what cannot be followed is found out by who opens it.
ResultPlace find_result_place(const std::string& path, const LinkRule& rule = our_link_rule());

// Whether `folder` is made with the directory that --output-filename names, unless it is there: the
// directory itself, one above it, or a rank's in it.
bool is_folder_of_output(const std::string& folder, const std::string& output, int ranks);

// Whether `file` is where a rank's standard output or error goes.
bool is_file_of_output(const std::string& file, const std::string& output, int ranks);

// Makes the folder that `file` lies in where it would have come with that directory: for a job that
// ends before the directory is made. Who then writes the file finds out whether it could be.
void make_folder_of_result(const std::string& file, const std::string& output, int ranks);

// Whether that is a file, or will be one: what is written there twice leaves the later text alone,
// which a pipe's reader or a descriptor's next user would get behind the first.
bool is_result_file(const std::string& path, const LinkRule& rule = our_link_rule());

// A reader of a file sees the whole of it or what was there before, unless only the file itself may
// be written. A reader of a pipe that takes nothing for so long is not waited for. Returns what
// went wrong, "" if nothing did.
std::string write_result_file(const std::string& path, const std::string& text,
                              std::chrono::milliseconds patience = std::chrono::seconds(5),
                              const LinkRule& rule = our_link_rule());

}  // namespace hvd
