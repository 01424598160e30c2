"""What hvdrun says of its own work: --verbose, --log-level, and the note about OMP_NUM_THREADS."""
import fcntl
import os
import re
import tempfile

import support
from support import expect, run, sh

STEPS = [r"info: job .*: 2 ranks of \"bash -c", "info: starting ranks 0, 1 on localhost",
         r"info: exit status 0 after \d+\.\d+ s"]
UP = r"info: the agent on localhost is up \(pid \d+, its keeper \d+\)"
LAST = "info: the last word of the agent on localhost: all ranks are over"
NOTE = b"OMP_NUM_THREADS="


def without_omp():
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def logged(seen):
    """The log's lines, without hvdrun's name and the time."""
    found = [re.fullmatch(r"hvdrun: \d\d:\d\d:\d\d\.\d{3} (.*)", line) for line in seen.stderr.decode().splitlines()]
    return [match[1] for match in found if match]


def matches(pattern, lines):
    return sum(bool(re.match(pattern, line)) for line in lines)


def every_step_is_logged_once():
    for flags in (["--verbose"], ["--log-level", "info"], ["--log-level", "debug"]):
        seen = sh("true", *flags)
        expect(seen.returncode, 0)
        lines = logged(seen)
        for pattern in [*STEPS, UP, LAST]:
            expect(matches(pattern, lines), 1, f"of {pattern} in {lines}")
        for rank in (0, 1):
            # In one line, unless something happened between their starts.
            expect(matches(rf"info: started (rank 0 \(pid \d+\), )?rank {rank} \(pid \d+\)", lines), 1, lines)
            expect(matches(rf"info: rank {rank} \(pid \d+\) exited with code 0 after", lines), 1, lines)
        assert re.match(STEPS[0], lines[0]) and re.match(STEPS[-1], lines[-1]), lines


def a_world_is_logged():
    seen = run("--verbose", "--", support.options.worker, "leave", "0")
    lines = logged(seen)
    expect(matches("info: epoch 1: ranks 0, 1 form a world", lines), 1, lines)
    for rank in (0, 1):
        expect(matches(rf"debug: rank {rank} \(pid \d+\) uses libhvd", lines), 1, lines)


def the_cause_of_an_end_is_logged():
    lines = logged(sh("[ $RANK = 1 ] && exit 3; sleep 60", "--verbose"))
    expect(matches(r"info: rank 1 \(pid \d+\) exited with code 3", lines), 1, lines)
    expect(matches("info: ending the job with SIGTERM: .*rank 1", lines), 1, lines)
    expect(matches("info: exit status 3", lines), 1, lines)


def what_was_logged_before_hvdrun_fails_itself_comes_out():
    sealed = os.memfd_create("sealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(sealed, b"kept")
    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # nobody can empty it
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "rank.0"))
        os.symlink(f"/proc/{os.getpid()}/fd/{sealed}", os.path.join(folder, "rank.0", "stdout"))
        seen = sh("true", "--verbose", "--output-filename", folder)
    os.close(sealed)
    expect(seen.returncode, 125)
    lines = logged(seen)
    expect([matches(pattern, lines) for pattern in STEPS[:2]], [1, 1], lines)
    assert re.fullmatch(rb"hvdrun: cannot empty the output file .*", seen.stderr.splitlines()[-1]), seen.stderr


def log_lines_are_not_torn_by_the_ranks_lines():
    script = "for i in $(seq 300); do printf '%0400d\\n' $i >&2; done"
    seen = sh(script, "--verbose", "-x", "OMP_NUM_THREADS=1", np=4)
    for line in seen.stderr.decode().splitlines():
        assert re.fullmatch(r"hvdrun: [\d:.]+ (info|debug): .*|\[\d\]<stderr>:\d{400}", line), line


def by_default_nothing_is_logged():
    for flags in ([], ["--log-level", "warning"], ["--log-level", "error"]):
        expect(sh("true", *flags, "-x", "OMP_NUM_THREADS=1").stderr, b"")


def the_threads_note_comes_once_and_only_when_it_is_news():
    expect(sh("true", np=12, env=without_omp()).stderr.count(NOTE), 1)
    expect(sh("true", np=1, env=without_omp()).stderr, b"")
    expect(sh("true", "-x", "OMP_NUM_THREADS=2", env=without_omp()).stderr, b"")
    expect(sh("true", env=without_omp() | {"OMP_NUM_THREADS": "2"}).stderr, b"")
    expect(sh("true", "--log-level", "error", env=without_omp()).stderr, b"")


def the_threads_note_is_for_ranks_that_have_no_number_of_their_own():
    show = "echo $OMP_NUM_THREADS"
    expect(sh(show, "-x@0-1", "OMP_NUM_THREADS=5", env=without_omp()).stderr, b"")
    expect(sh(show, "-x@0", "OMP_NUM_THREADS=5", "-x@1", "OMP_NUM_THREADS=6", env=without_omp()).stderr, b"")
    seen = sh(show, "-x@0", "OMP_NUM_THREADS=5", env=without_omp())
    ranks = dict(re.findall(rb"\[(\d)\]<stdout>:(\d+)\n", seen.stdout))
    expect(ranks[b"0"], b"5")
    assert seen.stderr.startswith(b"hvdrun: OMP_NUM_THREADS=%s for each rank that has none of its own, " % ranks[b"1"]), seen.stderr
    expect(seen.stderr.count(b"\n"), 1)


def warnings_go_with_the_level():
    expect(sh("true", "--gloo", "-x", "OMP_NUM_THREADS=1").stderr.count(b"--gloo"), 1)
    expect(sh("true", "--gloo", "--log-level", "error", "-x", "OMP_NUM_THREADS=1").stderr, b"")


support.parse_options("worker")
support.main(every_step_is_logged_once, a_world_is_logged, the_cause_of_an_end_is_logged,
             what_was_logged_before_hvdrun_fails_itself_comes_out,
             log_lines_are_not_torn_by_the_ranks_lines, by_default_nothing_is_logged,
             the_threads_note_comes_once_and_only_when_it_is_news,
             the_threads_note_is_for_ranks_that_have_no_number_of_their_own, warnings_go_with_the_level)
