#!/bin/sh
# Runs a command without capabilities: a user id other than 0, none had, none to be had. That makes no other user: what belongs
# to who runs this is its own still, and so is all that root owns where root runs it; the build can be used as it is.
# Where the kernel or a container does not let such a user be made, says that it was left out.
without() { setpriv --no-new-privs unshare --user --map-user=1000 --map-group=1000 -- "$@"; }
if ! without true; then
  echo "no_capabilities: no such user can be made here" >>"${HVD_TESTS_LEFT_OUT:-/dev/stderr}"
  exit 0
fi
for word in CapInh:0000000000000000 CapPrm:0000000000000000 CapEff:0000000000000000 CapAmb:0000000000000000 NoNewPrivs:1; do
  if ! without sh -c 'test "$(id -u)" = 1000 && tr -d "\t " </proc/self/status | grep -qx "$1"' sh "$word"; then
    echo "no_capabilities: who was made here is not without them: no $word" >&2
    exit 1
  fi
done
unset HVD_TESTS_LEFT_OUT
without "$@"
