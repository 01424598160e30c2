// Where things lie in a store of shipped files (ship_store.h), and by what a file there is whole:
// what those who fill one and those who clean one have to agree on.
#pragma once

#include <sys/stat.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace hvd {

inline constexpr std::string_view kBeingMade = "new.";  // how the names of what is not done begin

// This folder takes nothing, or not so much, or nothing that is to be run.
struct NoPlace : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// In a store, or about to be: removed with all that is in it unless it was kept.
class Scratch {
 public:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }
  bool keep_as(const std::string& path);  // false: it cannot be; errno says why

 private:
  std::string path_;
};

// What the folder is in that holds all of ours: ~/.cache, /tmp.
std::string folder_above(const std::string& store);

// The store by a way without links. Throws NoPlace when what it lies in is not there, or others may
// change anything on the way.
std::string way_to_store(const std::string& store);

// Of a store, from the outside in; the folder that the first is in is there before.
std::vector<std::string> own_folders(const std::string& store);

// Ours alone: in a place where anybody may write, what somebody else made there is not entered.
// Throws NoPlace.
void check_own(const std::string& folder);

UniqueFd open_folder(const std::string& path);
std::string new_in(const std::string& store);  // a path that nothing else has
std::vector<std::string> names_in(const std::string& folder);

// A file gets its mode and a time that nothing else puts on it once its sum was found right. False:
// it cannot be; errno says why.
bool mark(int fd, const std::string& sum, bool executable);
bool is_marked(const struct stat& facts, const std::string& sum, bool executable);
// Whatever its sum is: of anything else hardly ever, but possibly.
bool bears_a_mark(const struct stat& facts);

}  // namespace hvd
