#include "cli/ship/shipped.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string_view>

#include "cli/quoted.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr std::string_view kLibraryPath = "LD_LIBRARY_PATH=";
constexpr size_t kSumDigits = 64, kPathBytesMax = 4096, kNameBytesMax = 255;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "the list of what is shipped holds " + what);
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= kNameBytesMax &&
         name.find_first_of(std::string_view("/\0", 2)) == name.npos;
}

// Stays below the folder that it is put behind.
bool is_plain_path(std::string_view path) {
  if (path.size() < 2 || path.size() > kPathBytesMax || path.front() != '/') return false;
  while (!path.empty()) {
    path.remove_prefix(1);  // a slash
    const std::string_view name = path.substr(0, path.find('/'));
    if (!is_plain_name(name)) return false;
    path.remove_prefix(name.size());
  }
  return true;
}

bool is_sum(std::string_view text) {
  return text.size() == kSumDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// `entry` with our folder before what is in it.
std::string before(const std::string& libraries, std::string_view entry) {
  const std::string_view users = entry.substr(kLibraryPath.size());
  return libraries + (users.empty() ? "" : ":") + std::string(users);
}

}  // namespace

void check_shipment(const proto::Shipment& list) {
  const auto is_file = [&](int number) { return number >= 0 && number < list.files_size(); };
  for (const proto::ShippedFile& one : list.files())
    if (!is_sum(one.sum())) refuse("a sum that is none: " + in_quotes(one.sum()));
  for (const proto::ShippedPath& one : list.paths()) {
    if (!is_plain_path(one.path())) refuse("the path " + in_quotes(one.path()));
    if (one.file() != -1 && !is_file(one.file())) refuse("no file for " + in_quotes(one.path()));
  }
  for (const proto::ShippedLibrary& one : list.libraries())
    if (!is_plain_name(one.name()) || !is_file(one.file()))
      refuse("the library " + in_quotes(one.name()));
  std::set<std::string_view> paths;
  for (const proto::ShippedPath& one : list.paths()) paths.insert(one.path());
  const auto is_path = [&](const std::string& path) { return paths.contains(path); };
  for (const proto::ShippedProgram& one : list.programs())
    if (!is_path(one.path()) || !is_plain_path(one.loader()))
      refuse("the program " + in_quotes(one.path()));
  for (const proto::ShippedWord& one : list.words())
    if (one.index() < 0 || !is_path(one.path())) refuse("the word " + in_quotes(one.path()));
}

void start_from_shipped(const Shipped& shipped, proto::StartWorkers& start) {
  for (const proto::ShippedWord& one : shipped.words)
    if (one.index() < start.argv_size()) start.set_argv(one.index(), shipped.folder + one.path());
  if (shipped.libraries.empty()) return;
  std::string of_all = std::string(kLibraryPath);
  for (const std::string& entry : start.environment())
    if (entry.starts_with(kLibraryPath)) of_all = entry;
  if (!shipped.loader.empty()) {
    const std::vector<std::string> command(start.argv().begin(), start.argv().end());
    start.clear_argv();
    for (const std::string& word :
         {shipped.loader, std::string("--library-path"), before(shipped.libraries, of_all)})
      start.add_argv(word);
    for (const std::string& word : command) start.add_argv(word);
    return;
  }
  auto& entries = *start.mutable_environment();
  entries.erase(
      std::remove_if(entries.begin(), entries.end(),
                     [](const std::string& entry) { return entry.starts_with(kLibraryPath); }),
      entries.end());
  start.add_environment(std::string(kLibraryPath) + before(shipped.libraries, of_all));
  for (proto::RankVariable& own : *start.mutable_of_ranks())
    if (own.entry().starts_with(kLibraryPath))
      own.set_entry(std::string(kLibraryPath) + before(shipped.libraries, own.entry()));
}

std::string where_to_start(const Shipped& shipped, const std::string& wanted) {
  struct stat facts{};
  if (!shipped.home_will_do || stat(wanted.c_str(), &facts) == 0 ||
      (errno != ENOENT && errno != ENOTDIR))
    return wanted;
  const std::string home = env::get("HOME").value_or("");
  return !home.empty() && stat(home.c_str(), &facts) == 0 ? home : "/";
}

}  // namespace hvd
