// Reads host lists (-H) and host files.
//
//   list := item ("," item)*                 a:2, node[1-4]:8, user@host, [::1]:2
//   item := [user "@"] name [":" slots]      name may hold ranges: node[01-03,7], r[1-2]n[1-4]
//   file := one item a line, also "name slots=2 other=word", blank lines, "# comments"
//
// Pure. Limits: a name 253 bytes, a user 64, 65,536 hosts, 65,535 slots each, 1 MiB of text. Names
// hold letters, digits, dots, dashes and underscores and begin with no dash, so that none can ever
// be an option or a shell's word on a carrier's command line.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

struct GivenHost {
  std::string name;  // an address with colons without its brackets
  std::string user;
  std::optional<int> slots;  // nothing: as many as its GPUs, or 1

  friend bool operator==(const GivenHost&, const GivenHost&) = default;
};

inline constexpr size_t kHostTextBytesMax = 1 << 20;
inline constexpr int kSlotsMax = 65'535;  // of one host

// Throws kInvalidArgument, "-H, column 3: ...".
std::vector<GivenHost> parse_host_list(std::string_view text);

// Throws kInvalidArgument, "hosts.txt:3: ...".
std::vector<GivenHost> parse_host_file(std::string_view text, std::string_view file_name);

}  // namespace hvd
