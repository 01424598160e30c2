#include "cli/ship/take_shipment.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/frame.h"
#include "cli/pipe.h"
#include "cli/quoted.h"
#include "cli/ship/ask_loader.h"
#include "cli/ship/loader_answer.h"
#include "cli/ship/ship_store.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kReadBytes = 64u << 10;

// hvdrun's end of the dialogue.
class Hvdrun {
 public:
  Hvdrun() { write_all(kFrameMagic); }

  void say(FrameKind kind, std::string_view words) {
    std::string bytes;
    append_header(bytes, {uint32_t(words.size()), kind, Stream::kStdout, 0, 0});
    write_all(bytes.append(words));
  }

  size_t read_some(char* bytes, size_t most) {
    for (pollfd lease{STDIN_FILENO, POLLIN, 0};;) {
      const int ready = poll(&lease, 1, int(kSignOfLife.count()));
      if (ready == 0) give_sign_of_life();
      if (ready <= 0) continue;
      const ssize_t n = read(STDIN_FILENO, bytes, most);
      if (n > 0) return size_t(n);
      if (n == 0) throw Error(ErrorCode::kUnavailable, "hvdrun is gone");
      if (errno != EINTR && errno != EAGAIN)
        throw Error(ErrorCode::kUnavailable, "cannot read from hvdrun: " + error_text(errno));
    }
  }

  // What was sent before us, to a start file that reads its input, is passed over.
  proto::Shipment ask_list() {
    say(FrameKind::kWanted, "list");
    FrameReader frames(true);
    std::string list;
    char bytes[kReadBytes];
    for (;;) {
      std::string_view input(bytes, read_some(bytes, sizeof bytes));
      for (FrameReader::Piece piece; frames.next(input, piece);) {
        list.append(piece.bytes);
        proto::Shipment shipment;
        if (!piece.last) continue;
        if (piece.header.kind != FrameKind::kShipment || !shipment.ParseFromString(list))
          throw Error(ErrorCode::kInternal, "the list of what is shipped cannot be read");
        check_shipment(shipment);
        return shipment;
      }
    }
  }

 private:
  static void write_all(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = write(STDOUT_FILENO, bytes.data(), bytes.size());
      if (n < 0 && errno != EINTR)
        throw Error(ErrorCode::kUnavailable, "cannot speak to hvdrun: " + error_text(errno));
      if (n > 0) bytes.remove_prefix(size_t(n));
    }
  }
};

// Into one folder, or not.
class Taking {
 public:
  Taking(Hvdrun& hvdrun, const proto::Shipment& list, const std::string& place)
      : hvdrun_(hvdrun), list_(list), store_(place) {
    for (const proto::ShippedPath& one : list.paths()) called_.emplace(one.file(), one.path());
    for (const proto::ShippedLibrary& one : list.libraries()) {
      offered_[one.name()] = one.file();
      called_.emplace(one.file(), one.name());
    }
  }

  Shipped run() {
    Shipped shipped;
    std::set<int> files;
    ShipStore::Names names;
    for (const proto::ShippedPath& one : list_.paths()) {
      names[one.path().substr(1)] = one.file() < 0 ? nullptr : &list_.files(one.file());
      if (one.file() >= 0) files.insert(one.file());
    }
    want(files);
    shipped.folder = store_.tree(names, shipped.locks.emplace_back());
    shipped.words.assign(list_.words().begin(), list_.words().end());
    shipped.home_will_do = list_.home_will_do();
    if (list_.programs_size() > 0) take_libraries(shipped);
    return shipped;
  }

 private:
  void want(const std::set<int>& files) {
    std::vector<WantedFile> lacking;
    std::string numbers;
    for (const int one : files) {
      const proto::ShippedFile& file = list_.files(one);
      if (store_.has(file)) continue;
      lacking.push_back({&file, called_.at(one)});
      numbers.append(numbers.empty() ? "" : " ").append(std::to_string(one));
    }
    if (lacking.empty()) return;
    store_.take(
        lacking, [&] { hvdrun_.say(FrameKind::kWanted, numbers); },
        [&](char* bytes, size_t most) { return hvdrun_.read_some(bytes, most); });
  }

  // The host's own libraries count as they are now, so that its loader is asked each time; what it
  // lacks may lack others in turn.
  void take_libraries(Shipped& shipped) {
    Scratch scratch(store_.new_path());
    if (std::error_code failed; !std::filesystem::create_directory(scratch.path(), failed))
      throw NoPlace(failed.message());
    std::set<std::string> offered, sent;
    for (const auto& [name, file] : offered_) offered.insert(name);
    bool own_loader = false;
    for (bool more = true; more;) {
      more = false;
      for (const proto::ShippedProgram& program : list_.programs()) {
        const LibrariesToSend next =
            lacking_of(program, shipped.folder, scratch.path(), own_loader, sent, offered);
        own_loader |= next.own_loader;
        if (next.own_loader) check_is_command(program);
        more |= add(next.names, scratch.path());
        sent.insert(next.names.begin(), next.names.end());
      }
    }
    if (sent.empty()) return;
    ShipStore::Names names;
    for (const std::string& name : sent) names[name] = &list_.files(offered_.at(name));
    shipped.libraries = store_.tree(names, shipped.locks.emplace_back());
    if (own_loader) shipped.loader = shipped.libraries + "/" + loader_name(list_.programs(0));
  }

  static std::string loader_name(const proto::ShippedProgram& program) {
    return program.loader().substr(program.loader().rfind('/') + 1);
  }

  LibrariesToSend lacking_of(const proto::ShippedProgram& program, const std::string& folder,
                             const std::string& libraries, bool own_loader,
                             const std::set<std::string>& sent,
                             const std::set<std::string>& offered) const {
    const std::string loader =
        own_loader ? libraries + "/" + loader_name(program) : program.loader();
    if (access(loader.c_str(), X_OK) != 0) {
      LibrariesToSend all = all_of_glibc(offered);
      if (own_loader || all.names.empty())
        throw Error(ErrorCode::kUnavailable,
                    "it has no " + hvd::in_quotes(program.loader()) + " to load programs with");
      return all;
    }
    return libraries_to_send(
        ask_loader({loader, folder + program.path(), sent.empty() ? "" : libraries}), sent,
        offered);
  }

  bool add(const std::set<std::string>& names, const std::string& folder) {
    std::set<int> files;
    for (const std::string& name : names) files.insert(offered_.at(name));
    want(files);
    for (const std::string& name : names)
      store_.link(list_.files(offered_.at(name)), folder + "/" + name);
    return !names.empty();
  }

  // The kernel starts other programs by the loader that their file names, which is not there.
  void check_is_command(const proto::ShippedProgram& program) const {
    for (const proto::ShippedWord& word : list_.words())
      if (word.index() == 0 && word.path() == program.path()) return;
    throw Error(ErrorCode::kUnavailable,
                "its C library is none that " + hvd::in_quotes(program.path()) +
                    " can use, and the one from here can only be given to the command itself; make "
                    "that the command, or link it statically");
  }

  Hvdrun& hvdrun_;
  const proto::Shipment& list_;
  ShipStore store_;
  std::map<std::string, int> offered_;
  std::map<int, std::string> called_;
};

Shipped take_anywhere(Hvdrun& hvdrun, const proto::Shipment& list) {
  std::string reasons;
  for (const std::string& place : ship_places()) {
    try {
      return Taking(hvdrun, list, place).run();
    } catch (const NoPlace& why) {
      reasons.append(reasons.empty() ? "" : "; ").append(place + ": " + why.what());
    }
  }
  throw Error(ErrorCode::kUnavailable,
              "no folder there takes it; make room, or let programs be run in one: " + reasons);
}

}  // namespace

Shipped take_shipment() {
  Hvdrun hvdrun;
  try {
    const proto::Shipment list = hvdrun.ask_list();
    return take_anywhere(hvdrun, list);
  } catch (const std::exception& error) {
    hvdrun.say(FrameKind::kNotShipped, error.what());
    throw;
  }
}

}  // namespace hvd
