// What was shipped to this host, kept by content in one folder, so that it comes once.
//
//   files/SUM, files/SUMx   a file, plain or executable; only what had that sum has such a name
//   trees/NAME/…            those files as hard links under the names that one job gave them; NAME
//                           is the sum of that list
//   new.…                   being made, or removed; who does it ends it, and `hvdrun clean` what a
//                           killed one has left
//
// Nobody but this user can enter the folder. A file there counts as whole as long as it has its
// size, its mode and the time that was put on it when its sum was found right: another one is asked
// for again. A tree stays where it is and keeps what ranks put there, whoever starts from it next;
// what they changed of its own files is put back. Any number of processes may use a store at once:
// each holds a shared lock on it while it takes files, and on its tree while it lives, and who
// cleans holds one alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/ship/store_layout.h"
#include "proto/rendezvous.pb.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// Folders of a store, the better ones first: below the home folder and the temporary ones.
std::vector<std::string> ship_places();

// A file that is asked for, and what to call it to the user.
struct WantedFile {
  const proto::ShippedFile* file;
  std::string name;
};

class ShipStore {
 public:
  // Makes the folder. Throws NoPlace.
  explicit ShipStore(const std::string& folder);

  bool has(const proto::ShippedFile& file) const;

  // Takes files in this order; `read` gives the next bytes, at least one, and throws when there are
  // none: some megabytes that came last are then lost. Room for all is made before the first is
  // asked for by `ask`. Throws NoPlace when there is
  // none, or none any more, and then has read all that was asked for; kUnavailable when what came
  // has another sum, or cannot be written for another reason.
  using ReadSome = std::function<size_t(char* bytes, size_t most)>;
  void take(const std::vector<WantedFile>& files, const std::function<void()>& ask,
            const ReadSome& read);

  // A folder with these files, by path below it; an empty one with nullptr for a folder of its own.
  // All files are there (has()). `lock` keeps it from `hvdrun clean`. Throws NoPlace when something
  // that ranks made there is in the way.
  using Names = std::map<std::string, const proto::ShippedFile*>;
  std::string tree(const Names& names, UniqueFd& lock);

  // A folder for a while, and a file of the store in it; false: there is one of that name.
  std::string new_path() const;
  bool link(const proto::ShippedFile& file, const std::string& path);

 private:
  struct Arrivals;

  std::string path_of(const proto::ShippedFile& file) const;
  void take_one(const WantedFile& wanted, const ReadSome& read, Arrivals& arrivals);
  void settle(Arrivals& arrivals);
  void copy(const proto::ShippedFile& file);
  void fill(const std::string& tree, const Names& names);
  [[noreturn]] void cannot_keep(const WantedFile& wanted) const;

  std::string folder_;  // by a way without links
  UniqueFd lock_;
};

}  // namespace hvd
