#!/bin/sh
# Runs a command as a user without any right: no user id 0, no capability, none to be had. Files and processes of who runs this
# stay its own, so that it can use the build.
# Where the kernel or a container does not let such a user be made, says that it was left out.
nobody() { setpriv --no-new-privs unshare --user --map-user=1000 --map-group=1000 -- "$@"; }
if ! nobody true; then
  echo "unprivileged_user: no such user can be made here" >>"${HVD_TESTS_LEFT_OUT:-/dev/stderr}"
  exit 0
fi
unset HVD_TESTS_LEFT_OUT
nobody "$@"
