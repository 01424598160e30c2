#!/bin/sh
# Runs a build's tests as a user who owns nothing here and has no capability: root becomes nobody, in mounts of its own.
#
# usage: unprivileged_user.sh CTEST BUILD_DIR PATH...
# Folders above the paths that only their owner may search (root's home) can be searched there, and all in them is as it was;
# ctest's own files go to memory. Who is not root has no capability to begin with. Where no mounts can be made, says so.
set -eu
leave_out() {
  echo "unprivileged_user: $1" >>"${HVD_TESTS_LEFT_OUT:-/dev/stderr}"
  exit 0
}
user=65534 # nobody

if [ "${1-}" != --in-own-mounts ]; then
  [ "$(id -u)" = 0 ] || leave_out "who runs this is not root: all tests ran so"
  unshare --mount true || leave_out "no mounts can be made here"
  exec unshare --mount --propagation private -- "$0" --in-own-mounts "$@"
fi
shift
ctest=$1 build=$2

# The folder, with all that lies in it, in one that everybody may search.
open_folder() {
  mount --rbind "$1" "$aside"
  mount -t tmpfs -o mode=755 none "$1"
  find "$aside" -mindepth 1 -maxdepth 1 '(' -type d -o -type f ')' | while read -r entry; do
    place=$1/${entry##*/}
    if [ -d "$entry" ]; then mkdir "$place"; else : >"$place"; fi
    mount --rbind "$entry" "$place"
  done
  umount -R "$aside"
}

aside=$(mktemp -d)
for path in "$@"; do
  folder=
  set -f
  IFS=/
  for name in ${path#/}; do
    folder=$folder/$name
    if [ -d "$folder" ] && [ -z "$(find "$folder" -maxdepth 0 -perm -o+x)" ]; then open_folder "$folder"; fi
  done
  unset IFS
  set +f
done
rmdir "$aside"
mount -t tmpfs -o "uid=$user,gid=$user" none "$build/Testing"
own=$(mktemp -d)
chown "$user:$user" "$own"
trap 'rm -rf "$own"' EXIT

as_user() {
  setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all -- "$@"
}
for word in CapInh:0000000000000000 CapPrm:0000000000000000 CapEff:0000000000000000 CapBnd:0000000000000000 NoNewPrivs:1; do
  if ! as_user sh -c 'test "$(id -u)" = "$2" && tr -d "\t " </proc/self/status | grep -qx "$1"' sh "$word" "$user"; then
    echo "unprivileged_user: who was made here is not without privileges: no $word" >&2
    exit 1
  fi
done
left_out=${HVD_TESTS_LEFT_OUT:-/dev/stderr}
unset XDG_CACHE_HOME
export HOME="$own" HVD_TESTS_LEFT_OUT="$own/left_out"
as_user touch "$HVD_TESTS_LEFT_OUT"
echo "install_test: as another user, for cmake writes what it installed into the build" >>"$HVD_TESTS_LEFT_OUT"
status=0
as_user "$ctest" --test-dir "$build" -LE 'long|check' -E '^install_test$' --output-on-failure --no-tests=error || status=$?
sed 's/^/unprivileged_user: /' "$HVD_TESTS_LEFT_OUT" >>"$left_out"
exit "$status"
