"""hvdrun ends with the first failing rank's status, or with one of its own."""
import os
import re
import signal
import subprocess
import tempfile

import support
from support import expect, run, sh


def the_ranks_code_passes_unchanged():
    codes = range(256) if support.options.long or not support.options.sanitizers else [0, 1, 2, 3, 42, 124, 125, 126, 127, 128, 130, 137, 143, 200, 255]
    for code in codes:
        expect(sh(f"exit {code}", np=1).returncode, code)


def a_signal_is_128_and_its_number():
    harmless = {signal.SIGCHLD, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGURG,
                signal.SIGWINCH}
    deadly = sorted(int(one) for one in signal.valid_signals() - harmless)
    assert len(deadly) > 50, deadly
    for number in deadly:
        seen = run("--", "sh", "-c", f"ulimit -c 0; kill -{number} $$; sleep 60")  # bash would not die of SIGQUIT
        expect(seen.returncode, 128 + number, seen.stderr)
        assert re.search(rb"first failure: rank [01] .* was killed by (SIG[A-Z0-9]+|signal \d+) after", seen.stderr), seen.stderr


def the_first_to_fail_decides():
    expect(sh("if [ $HVD_RANK = 2 ]; then exit 7; fi; sleep 60", np=4).returncode, 7)
    expect(sh("exit $((HVD_RANK * 7))").returncode, 7)


def the_order_of_deaths_is_the_true_one():
    # Rank 0 exits as soon as it sees rank 2 dead (a zombie, or reaped already), within less time than hvdrun needs for anything.
    for _ in range(10):
        with tempfile.TemporaryDirectory() as folder:
            script = (f"cd {folder}; case $HVD_RANK in 2) echo $$ > new; mv new pid; exit 12;; "
                      "0) until [ -e pid ]; do :; done; read two < pid; "
                      "while read line 2> /dev/null < /proc/$two/stat; do case $line in *') Z '*) break;; esac; done; exit 10;; "
                      "*) sleep 60;; esac")
            expect(sh(script, np=3).returncode, 12)


def a_command_that_is_not_there():
    expect(run("--", "/nowhere/at/all").returncode, 127)
    expect(run("--", "no-such-command-anywhere").returncode, 127)


def a_command_that_cannot_run():
    expect(run("--", "/etc/passwd").returncode, 126)
    with tempfile.NamedTemporaryFile(suffix=".py") as file:
        seen = run("--", file.name)
        expect(seen.returncode, 126)
        assert b"python" in seen.stderr, seen.stderr


def an_interpreter_that_is_gone():
    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as file:
        file.write("#!/nowhere/sh\n")
    os.chmod(file.name, 0o755)
    try:
        seen = run("--", file.name)
    finally:
        os.unlink(file.name)
    expect(seen.returncode, 126)
    assert b"/nowhere/sh" in seen.stderr, seen.stderr


def wrong_usage():
    for words in (["-np", "x", "true"], ["-np", "0", "true"], ["-np", "2"], ["--no-such-flag", "-np", "2", "true"]):
        seen = subprocess.run([support.options.hvdrun, *words], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=20)
        expect(seen.returncode, 2, words)
        expect(seen.stderr.count(b"\n"), 1, seen.stderr)


support.main(the_ranks_code_passes_unchanged, a_signal_is_128_and_its_number, the_first_to_fail_decides,
             the_order_of_deaths_is_the_true_one, a_command_that_is_not_there, a_command_that_cannot_run,
             an_interpreter_that_is_gone, wrong_usage)
