"""Start files of login shells that print, read, wait, end, or speak as ssh does, on the way of an agent by ssh."""
import os
import pathlib
import subprocess
import sys

import support
from remote_start import expect_failure, expect_started, start, write

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import hosts


def start_files_may_print_read_wait_and_change_the_path():
    loud = "head -c 300000 /dev/zero | tr '[\\000]' n"
    with hosts.Hosts(1) as world:
        write(world, "h1", hosts.home("bash", ".bashrc"), f"echo noise; echo hvdrun-remote; {loud}; echo more >&2; read x; PATH=/nowhere; sleep 0.3\n")
        write(world, "h1", hosts.home("fish", ".config/fish/config.fish"), f"echo noise; {loud}; read x; set -gx PATH /nowhere\n")
        write(world, "h1", hosts.home("csh", ".cshrc"), f"echo noise; {loud}; set x = $<; setenv PATH /nowhere\n")
        write(world, "h1", hosts.home("dash", ".ssh/rc"), f"echo noise; {loud}; sleep 0.3\n")
        write(world, "h1", hosts.home("root", ".bashrc"), "sleep 2.5\n")  # and reads nothing of what comes for those that do
        names = ["bash@h1", "fish@h1", "csh@h1", "dash@h1", "root@h1"]
        for copying in (set(names), set()):
            seen = start(world, *names)
            expect_started(seen, *names)
            support.expect(seen.went_through("copying"), copying)


def what_start_files_say_in_sshs_words_is_not_sshs():
    banner = "@@@@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@       WARNING: REVOKED HOST KEY DETECTED!               @\n" \
             "@ WARNING: POSSIBLE DNS SPOOFING DETECTED! @\nHost key for h1 has changed and you have requested strict checking.\nHost key verification failed.\n"
    with hosts.Hosts(1) as world:
        write(world, "h1", "/tmp/banner", banner)
        write(world, "h1", hosts.home("bash", ".bashrc"), "cat /tmp/banner >&2; cat /tmp/banner\n")
        write(world, "h1", hosts.home("fish", ".config/fish/config.fish"), "cat /tmp/banner >&2\n")
        write(world, "h1", hosts.home("csh", ".cshrc"), "sh -c 'cat /tmp/banner >&2'\n")
        write(world, "h1", hosts.home("dash", ".ssh/rc"), "cat /tmp/banner >&2\n")
        names = ["bash@h1", "fish@h1", "csh@h1", "dash@h1"]
        for _ in range(2):  # a host whose key is new, and one whose key is known
            seen = start(world, *names)
            expect_started(seen, *names)
        support.expect({seen.attempts(name) for name in names}, {1})
        write(world, "h1", hosts.home("bash", ".bashrc"), "cat /tmp/banner >&2; echo bye; exit 255\n")
        expect_failure(start(world, "bash@h1"), "bash@h1", "^ssh failed; the last words were")


def a_start_file_that_never_ends_is_named():
    with hosts.Hosts(1) as world:
        write(world, "h1", hosts.home("bash", ".bashrc"), "echo Good morning; cat >/dev/null\n")
        write(world, "h1", hosts.home("csh", ".cshrc"), "sleep 100\n")
        write(world, "h1", hosts.home("root", ".bashrc"), "echo bye; exit 3\n")
        seen = start(world, "bash@h1", "csh@h1", "h1", limit_s=3)
        expect_failure(seen, "bash@h1", r'printed "Good morning" but ran nothing of ours for [23]\.\d s: does one of its start files')
        expect_failure(seen, "csh@h1", r"there was no answer for [23]\.\d s: .*does a start file of the login shell wait")
        expect_failure(seen, "h1", 'its login shell ended with exit code 3; the last words were "bye": is it a shell')


def start_files_that_end_or_wait_are_named_in_every_shell():
    with hosts.Hosts(1) as world:
        write(world, "h1", hosts.home("bash", ".bashrc"), "exit 0\n")
        write(world, "h1", hosts.home("fish", ".config/fish/conf.d/own.fish"), "echo bye >&2; exec sh -c 'exit 4'\n")
        write(world, "h1", hosts.home("csh", ".cshrc"), "echo bye; exec sh -c 'exit 5'\n")
        write(world, "h1", hosts.home("dash", ".ssh/rc"), "echo bye; cat; exit 6\n")  # sshd has a shell of its own read this one
        write(world, "h1", hosts.home("root", ".bashrc"), "exec sh -c 'exit 7'\n")
        asks = r"is it a shell .* start files end it\?; try by hand: ssh -o ControlPath=none"
        seen = start(world, "bash@h1", "fish@h1", "csh@h1", "dash@h1", "h1")
        support.expect((sorted(seen.started), set(seen.ended.values())), (["dash@h1"], {"0"}), seen.failed)
        expect_failure(seen, "bash@h1", f"^its login shell ended without running what it was given; it said nothing: {asks} bash@h1 true$")
        for name, words in (("fish@h1", 'exit code 4; the last words were "bye"'), ("csh@h1", 'exit code 5; the last words were "bye"'), ("h1", "exit code 7; it said nothing")):
            expect_failure(seen, name, f"^its login shell ended with {words}: {asks} {name} true$")
        # These shells leave the file alone by it.
        write(world, "h1", hosts.home("fish", ".config/fish/conf.d/own.fish"), "echo bye >&2; exit 4\n")
        write(world, "h1", hosts.home("csh", ".cshrc"), "echo bye; exit 5\n")
        expect_started(start(world, "fish@h1", "csh@h1"), "fish@h1", "csh@h1")
        write(world, "h1", hosts.home("bash", ".bashrc"), "exec cat\n")
        write(world, "h1", hosts.home("fish", ".config/fish/conf.d/own.fish"), "echo Good morning; sleep 100\n")
        write(world, "h1", hosts.home("csh", ".cshrc"), "cat\n")
        write(world, "h1", hosts.home("dash", ".ssh/rc"), "sleep 100\n")
        write(world, "h1", hosts.home("root", ".bashrc"), "exec sh\n")
        names = ["bash@h1", "fish@h1", "csh@h1", "dash@h1", "h1"]
        seen = start(world, *names, limit_s=3)
        for name in names:
            expect_failure(seen, name, r"printed \"Good morning\" but ran nothing of ours" if name == "fish@h1" else "there was no answer for [23]|ran nothing of ours for")


def a_start_file_that_takes_standard_input_away_is_named():
    with hosts.Hosts(1) as world:
        expect_started(start(world, "bash@h1"), "bash@h1")
        write(world, "h1", hosts.home("bash", ".bashrc"), "exec 0</dev/null\n")
        expect_failure(start(world, "bash@h1"), "bash@h1", "a start file of the login shell has replaced it")


def a_start_file_that_kills_its_shell_or_takes_standard_output_away_is_named():
    with hosts.Hosts(1) as world:
        for _ in range(2):  # where the agent has to be copied, and where it is there
            write(world, "h1", hosts.home("bash", ".bashrc"), "exec 1>&2\n")
            seen = start(world, "bash@h1")
            expect_failure(seen, "bash@h1", "a start file of the login shell redirects its standard output")
            assert "last words" not in seen.failed["bash@h1"], seen.failed
            write(world, "h1", hosts.home("bash", ".bashrc"), "")
            expect_started(start(world, "bash@h1"), "bash@h1")
        write(world, "h1", hosts.home("bash", ".bashrc"), "ulimit -n 8\n")
        expect_failure(start(world, "bash@h1"), "bash@h1", r"lost its standard input, for want of open files: the limit is 8 \(ulimit -n\); raise it")
        world.run("h1", "rm", "-r", hosts.home("bash", ".cache"))
        expect_failure(start(world, "bash@h1"), "bash@h1", r"^its shell cannot write .* too few open files \(ulimit -n\)\?; the words were ")
        write(world, "h1", hosts.home("bash", ".bashrc"), "kill -9 $$\n")
        expect_failure(start(world, "bash@h1"), "bash@h1", r"^ssh failed; it said nothing: does a start file of the login shell kill it, .*; try by hand: ssh .* bash@h1 true$")


def what_start_files_leave_running_goes_on():
    with hosts.Hosts(1) as world:
        write(world, "h1", hosts.home("bash", ".bashrc"), "(read -r x </tmp/gate; echo saved >/tmp/saved) >/dev/null 2>&1 &\n")
        world.run("h1", "mkfifo", "-m", "666", "/tmp/gate", "/tmp/other_gate", "/tmp/never")
        job = [support.options.hvdrun, "-H", "bash@h1", "-x", "OMP_NUM_THREADS=1", "--", "sh", "-c", "setsid cat /tmp/never & exit 3"]
        seen = subprocess.run(world.command("h0", *job), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        support.expect(seen.returncode, 3, seen.stderr)
        assert "keeper" not in seen.stderr, seen.stderr
        os.close(os.open(world.path("h1", "/tmp/gate"), os.O_WRONLY | os.O_NONBLOCK))  # fails where nobody waits
        support.wait_for(lambda: world.path("h1", "/tmp/saved").exists())
        write(world, "h1", hosts.home("bash", ".bashrc"), "cat /tmp/other_gate &\n")  # for which a plain ssh would wait
        seen = subprocess.run(world.command("h0", *job), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        support.expect(seen.returncode, 3, seen.stderr)
        assert "hvdrun: the ssh to h1 does not end, as something there holds its output open; killing it\n" in seen.stderr, seen.stderr
        os.close(os.open(world.path("h1", "/tmp/other_gate"), os.O_WRONLY | os.O_NONBLOCK))


def a_host_that_fails_is_named_before_others_have_ended():
    with hosts.Hosts(1) as world:
        world.run("h1", "mkfifo", "-m", "666", "/tmp/gate", "/tmp/other_gate")
        write(world, "h1", hosts.home("bash", ".bashrc"), "cat /tmp/gate &\n")  # for which its ssh would wait
        write(world, "h1", hosts.home("root", ".bashrc"), "read x </tmp/other_gate; exit 3\n")
        job = subprocess.Popen(world.command("h0", support.options.hvdrun, "-np", "2", "-H", "bash@h1,h1", "--", "true"),
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        support.wait_for(lambda: "hvd-agent" in world.run("h1", "ps", "-A", "-o", "comm=").stdout)
        os.close(support.wait_for(lambda: opened(world.path("h1", "/tmp/other_gate"))))
        _, err = job.communicate(timeout=60)
        support.expect(job.returncode, 125, err)
        named, waited = (err.find(words) for words in ("hvdrun: no agent on h1: ", "the ssh to h1 does not end"))
        assert -1 < named < waited, err
        os.close(os.open(world.path("h1", "/tmp/gate"), os.O_WRONLY | os.O_NONBLOCK))


def opened(fifo):
    """For writing, once somebody reads there."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


support.parse_options("start_remote")
support.main(start_files_may_print_read_wait_and_change_the_path, what_start_files_say_in_sshs_words_is_not_sshs,
             a_start_file_that_never_ends_is_named, start_files_that_end_or_wait_are_named_in_every_shell,
             a_start_file_that_takes_standard_input_away_is_named, a_start_file_that_kills_its_shell_or_takes_standard_output_away_is_named,
             what_start_files_leave_running_goes_on, a_host_that_fails_is_named_before_others_have_ended, why_not=hosts.why_not())
