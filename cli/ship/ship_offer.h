// What --ship names, read and summed on this machine: what is offered to each host that is reached
// by ssh, and the files that those ask for which lack them.
//
// Pure.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hvd {

struct OfferedFile {
  std::string path;
  uint64_t bytes = 0;
  int64_t changed_ns = 0;  // when it was written last, as its sum was made
};

struct ShipOffer {
  std::string list;                        // a proto::Shipment, as it goes there
  std::vector<OfferedFile> files;          // in its order
  uint64_t bytes_max = 0;                  // of all that may be sent to a host
  size_t named = 0;                        // files by their paths: `files` are contents
  size_t libraries_from = 0;               // those before it are what was named
  std::vector<std::string> left_out = {};  // paths of what cannot be shipped, below folders
};

// When it was written last.
inline int64_t changed_ns(const struct stat& facts) {
  return int64_t(facts.st_mtim.tv_sec) * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

// "812 MB", "2.1 GB".
std::string size_text(uint64_t bytes);

// For --dry-run, a line: how much would be shipped.
std::string plan_text(const ShipOffer& offer);

// Names some; empty where nothing was left out.
std::string left_out_text(const ShipOffer& offer);

// Names the largest of them; empty where they come to no more than `bytes_max`.
std::string limit_objection(std::span<const OfferedFile> files, uint64_t bytes_max);

}  // namespace hvd
