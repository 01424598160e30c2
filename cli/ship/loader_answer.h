// What a program needs of shared libraries, as a dynamic loader lists it (what `ldd` prints), and
// what of that a host has to be sent.
//
// Pure.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// A library that has no version that another object asks for.
struct TooOld {
  std::string path, wanted_by;  // of the library, and of the other one
  std::string version;

  friend bool operator==(const TooOld&, const TooOld&) = default;
};

struct LoaderAnswer {
  std::map<std::string, std::string> found = {};  // by the name that a program asks for -> path
  std::set<std::string> missing = {};             // names
  std::vector<TooOld> too_old = {};
  std::string trouble = {};  // its own words, when it listed nothing

  friend bool operator==(const LoaderAnswer&, const LoaderAnswer&) = default;
};

// `printed` and `words` are the standard output and error of a loader that is asked as ldd asks it.
// What the kernel brings (linux-vdso) and what is asked for by a path is left out.
LoaderAnswer read_loader_answer(std::string_view printed, std::string_view words);

// libhvd opens its part for GPUs while it runs, from beside itself (runtime/devices.cc), so that no
// loader lists it: it goes where libhvd goes.
inline constexpr std::string_view kPlugIn = "libhvd_nccl.so";
bool is_libhvd(std::string_view name);

// Of the C library: its parts and its loader fit each other alone, so that all of them come from
// one host.
bool is_of_glibc(std::string_view name);

struct LibrariesToSend {
  std::set<std::string> names;  // beside those that were sent before
  bool own_loader = false;      // the program has to be started by the loader that is among them
};

// `answer` is the host's, with the libraries `sent` before the host's own; `offered` can be sent.
// Throws kUnavailable, in words for the user, when no library that can be sent would help.
LibrariesToSend libraries_to_send(const LoaderAnswer& answer, const std::set<std::string>& sent,
                                  const std::set<std::string>& offered);
// What a host needs that has no loader for it.
LibrariesToSend all_of_glibc(const std::set<std::string>& offered);

}  // namespace hvd
