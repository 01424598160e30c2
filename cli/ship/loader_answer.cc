#include "cli/ship/loader_answer.h"

#include <algorithm>

#include "cli/quoted.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// "\tlibm.so.6 => /lib/libm.so.6 (0x00007fcc)", "\tlibx.so => not found"
void read_line(std::string_view line, LoaderAnswer& answer) {
  constexpr std::string_view kArrow = " => ";
  if (!line.starts_with('\t')) return;
  line.remove_prefix(1);
  const size_t arrow = line.find(kArrow);
  if (arrow == line.npos) return;
  const std::string name(line.substr(0, arrow));
  std::string_view target = line.substr(arrow + kArrow.size());
  if (name.empty() || name.find('/') != name.npos) return;
  if (target == "not found") {
    answer.missing.insert(name);
    return;
  }
  const size_t address = target.rfind(" (0x");
  if (address != target.npos) target = target.substr(0, address);
  if (target.starts_with('/')) answer.found[name] = std::string(target);
}

// "./train: /lib/libc.so.6: version `GLIBC_2.38' not found (required by ./train)"
void read_words(std::string_view line, LoaderAnswer& answer) {
  constexpr std::string_view kVersion = ": version `", kMissing = "' not found (required by ";
  const size_t version = line.find(kVersion), missing = line.find(kMissing);
  if (version == line.npos || missing == line.npos || missing < version || !line.ends_with(')'))
    return;
  const size_t name = line.substr(0, version).rfind(": ");
  TooOld one;
  one.path = std::string(line.substr(0, version).substr(name == line.npos ? 0 : name + 2));
  one.version =
      std::string(line.substr(version + kVersion.size(), missing - version - kVersion.size()));
  line.remove_prefix(missing + kMissing.size());
  line.remove_suffix(1);
  one.wanted_by = std::string(line);
  answer.too_old.push_back(std::move(one));
}

// By which name the loader came to this path; the file's own where none is known.
std::string name_of(const LoaderAnswer& answer, const std::string& path) {
  for (const auto& [name, found] : answer.found)
    if (found == path) return name;
  return path.substr(path.rfind('/') + 1);
}

Error cannot(const std::string& why) { return Error(ErrorCode::kUnavailable, why); }

}  // namespace

LoaderAnswer read_loader_answer(std::string_view printed, std::string_view words) {
  LoaderAnswer answer;
  for (const std::string_view line : lines_of(printed)) read_line(line, answer);
  for (const std::string_view line : lines_of(words)) read_words(line, answer);
  if (!printed.starts_with('\t') && answer.too_old.empty())
    answer.trouble = in_quotes(lines_of(words).empty() ? "" : lines_of(words).front(), 200);
  return answer;
}

bool is_of_glibc(std::string_view name) {
  constexpr std::string_view kParts[] = {
      "ld-linux",    "ld64.so",     "ld.so",       "libc.so.",         "libm.so.",
      "libmvec.so.", "libdl.so.",   "librt.so.",   "libpthread.so.",   "libresolv.so.",
      "libanl.so.",  "libutil.so.", "libnsl.so.1", "libthread_db.so.", "libBrokenLocale.so.",
      "libnss_"};
  return std::ranges::any_of(kParts, [&](std::string_view one) { return name.starts_with(one); });
}

LibrariesToSend all_of_glibc(const std::set<std::string>& offered) {
  LibrariesToSend more;
  more.own_loader = true;
  for (const std::string& name : offered)
    if (is_of_glibc(name)) more.names.insert(name);
  return more;
}

bool is_libhvd(std::string_view name) { return name.starts_with("libhvd.so"); }

LibrariesToSend libraries_to_send(const LoaderAnswer& answer, const std::set<std::string>& sent,
                                  const std::set<std::string>& offered) {
  LibrariesToSend more;
  for (const std::string& name : answer.missing) {
    if (!offered.contains(name) || sent.contains(name))
      throw cannot("it lacks " + in_quotes(name) + ", which this machine does not have either");
    more.names.insert(name);
  }
  // A library from here may be older than what the host's own ones ask for: then those go, too.
  for (const TooOld& one : answer.too_old) {
    const std::string library = name_of(answer, one.path);
    const std::string wanted_by = name_of(answer, one.wanted_by);
    const auto can_go = [&](const std::string& name) {
      return offered.contains(name) && !sent.contains(name);
    };
    if (!can_go(library) && !can_go(wanted_by))
      throw cannot("its libraries and those of this machine do not go together: " +
                   in_quotes(one.wanted_by) + " needs " + in_quotes(one.version) + " of " +
                   in_quotes(one.path));
    more.names.insert(can_go(library) ? library : wanted_by);
  }
  const std::string plug_in(kPlugIn);
  if (std::ranges::any_of(more.names, is_libhvd) && offered.contains(plug_in))
    more.names.insert(plug_in);
  if (std::ranges::any_of(more.names, [](const std::string& one) { return is_of_glibc(one); })) {
    const LibrariesToSend whole = all_of_glibc(offered);
    more.own_loader = true;
    for (const std::string& name : whole.names)
      if (!sent.contains(name)) more.names.insert(name);
  }
  return more;
}

}  // namespace hvd
