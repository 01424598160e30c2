#include "cli/ssh/remote_script.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/error.h"

namespace hvd {
namespace {

bool is_plain(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](unsigned char letter) {
    return std::isalnum(letter) || letter == '_';
  });
}

// Where others could put something else in the place of what we make or start, nothing is made and
// nothing started: `safe` knows by the rule of unsafe_on_the_way() (cli/ship/folders.h), from the
// folder up to the root, and gives in `way` its path without links; `alone` is is_group_of_one(),
// and a mode that ends in + has an access list (a busybox shows none).
// Not all of ~/.cache/hvdrun/NAME is there before the first start: what was missing when the rest
// was looked at may be another's by now, so nothing there is started, and it is looked at once
// made. A folder for one start is made under a name that nobody can guess, so that in a place where
// anybody may write, nobody can have put something there; the agent removes it as soon as it runs.
// A copy that lost its end to a broken disk may well start, so one of another length than ours is
// not started (ls tells it of the file's node, beside the folders; some wc would read it through),
// nor is one that others may write.
// Every program that runs before the agent costs each host a millisecond, and the hosts may share
// their processors: what the kernel's files say is read there.
// A file of no bytes can be run where files can be run at all. Bytes that do not fit are still read
// to the last, so that those of the next attempt are not taken for them. A file that is cut off, as
// the connection may be, is not run: some shells would take it for a script. However this ends
// before it has become the agent, what it has made goes.
constexpr std::string_view kFunctions =
    R"(say() { echo "$mark$*"; }; )"
    R"(clean() { [ -z "$made" ] || rm -rf "$made"; made=; }; )"
    R"(take() { true >"$1/$new" && chmod 700 "$1/$new" && "$1/$new" || return; say need || exit 1; )"
    R"(bytes=; while [ -z "$bytes" ]; do read bytes sum || exit 1; done; )"
    R"(head -c "$bytes" | { cat >"$1/$new" || { cat >/dev/null; exit 1; }; } || return; )"
    R"([ $(wc -c <"$1/$new") = "$bytes" ] && "$1/$new" agent --install "$sum" "$1/hvdrun" && )"
    R"(say copied && return; say damaged; exit 1; }; )"
    R"(alone() { who=; known=; while IFS=: read -r name x id gid x; do [ "$gid" = "$1" ] || continue; )"
    R"([ "$id" = "$me" ] || return 1; who=$name; done </etc/passwd; [ "$who" ] || return 1; )"
    R"(while IFS=: read -r name x gid list; do [ "$gid" = "$1" ] || continue; )"
    R"(case $list in ""|"$who") known=1;; *) return 1;; esac; done </etc/group; [ "$known" ]; }; )"
    R"(safe() { way=$(cd -P "$1" && pwd -P) || return; up=$way; file=${2:+${way%/}/$2}; set -- /; )"
    R"(while [ "${up%/}" ]; do set -- "$@" "$up"; up=${up%/*}; done; [ ! "$file" ] || set -- "$@" "$file"; )"
    R"((unset BLOCK_SIZE LS_BLOCK_SIZE; exec ls -ldn "$@") | (left=$#; while read -r mode x id gid bytes x; do )"
    R"(case $id in 0|$me) ;; *) exit 1;; esac; )"
    R"(case $mode in d????????[tT]*|d????-??-*) ;; d????w??-*+) exit 1;; d????w??-*) alone $gid || exit 1;; )"
    R"(-????-??-*) [ "$bytes" = "$length" ] || exit 1;; *) exit 1;; esac; )"
    R"(left=$((left - 1)); done; [ $left = 0 ]); }; )"
    R"(keep() { mkdir -p "$1" && safe "$1" && [ "$way" = "$1" ] && made=$1/$new && )"
    R"(take "$1" && exec "$1/hvdrun" agent $role; clean; }; )"
    R"(once() { made=; mkdir "$1" && made=$1 && take "$1" && exec "$1/hvdrun" agent $role --once; clean; }; )";

// The user's own PATH comes last: there are systems where programs are nowhere else, and where they
// are, nothing that start files put first is run.
constexpr std::string_view kSteps =
    R"(PATH=/usr/local/bin:/usr/bin:/bin${PATH:+:$PATH}; umask 077; )"
    R"(kind=; [ ! -r /proc/sys/kernel/arch ] || read -r kind </proc/sys/kernel/arch; [ "$kind" ] || kind=$(uname -m 2>/dev/null); )"
    R"(case $kind in "$machine"|"") ;; *) say machine $kind; exit 1;; esac; )"
    R"(me=; [ ! -r /proc/self/status ] || while [ ! "$me" ] && read -r word x id x; do [ "$word" = Uid: ] && me=$id; done </proc/self/status; )"
    R"([ "$me" ] || me=$(id -u); home=; if [ -d "$HOME" ]; then at=$HOME/.cache/hvdrun/$name; rest=; )"
    R"([ ! "$anew" ] && [ -x "$at/hvdrun" ] && safe "$at" hvdrun && say found && exec "$way/hvdrun" agent $role; )"
    R"(until [ -d "$at" ]; do rest=/${at##*/}$rest; at=${at%/*}; done; )"
    R"(safe "$at" && home=${way%/}$rest; fi; )"
    R"(made=; trap clean EXIT; trap "exit 1" HUP INT TERM; trap "" PIPE; )"
    R"([ "$home" ] && keep "$home"; )"
    R"(for folder in "$TMPDIR" /tmp /var/tmp /dev/shm "$XDG_RUNTIME_DIR"; do )"
    R"([ -n "$folder" ] && safe "$folder" && once "$way/$new"; done; say nowhere; exit 1)";

}  // namespace

std::string remote_script(const RemoteAgent& agent, std::string_view unique) {
  HVD_CHECK(is_plain(agent.name) && is_plain(agent.machine) && is_plain(unique),
            "a word of the remote script is not plain");
  std::string role;
  for (const std::string& word : agent.role) {
    const bool plain = !word.empty() && std::ranges::all_of(word, [](char letter) {
      return letter == '-' || (letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9');
    });
    HVD_CHECK(plain, "a word of the role is not plain");
    role.append(role.empty() ? "" : " ").append(word);
  }
  std::string script = "exec /bin/sh -c '";
  script.append("name=").append(agent.name);
  script.append("; length=").append(std::to_string(agent.bytes));
  script.append("; machine=").append(agent.machine);
  script.append("; new=").append(kOnceFolder).append(unique);
  script.append("; anew=").append(agent.anew ? "1" : "");
  script.append("; role=\"").append(role).append("\"");
  script.append("; mark=\"").append(kRemoteMark).append("\"; ");
  script.append(kFunctions).append(kSteps).append("'");
  return script;
}

}  // namespace hvd
