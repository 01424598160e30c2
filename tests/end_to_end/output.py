"""Ranks' output: tags, partial lines, any bytes, files, and sinks that fail."""
import fcntl
import os
import re
import resource
import signal
import subprocess
import tempfile
import termios
import time

import support
from support import expect, run, sh, start


def every_line_has_its_ranks_tag():
    seen = sh("for i in $(seq 200); do echo out $i; echo err $i >&2; done", "-x", "OMP_NUM_THREADS=1", np=4)
    expect(seen.returncode, 0)
    for rank in range(4):
        for name, text in (("stdout", seen.stdout), ("stderr", seen.stderr)):
            tag = f"[{rank}]<{name}>:"
            lines = [line for line in text.decode().splitlines() if line.startswith(tag)]
            expect(lines, [f"{tag}{name[3:]} {i}" for i in range(1, 201)])
    expect(len(seen.stdout.splitlines()) + len(seen.stderr.splitlines()), 1600)


def lines_stay_whole_when_pieces_mix():
    script = r"for i in $(seq 100); do printf 'a%.0s' 1 2 3; printf 'b%.0s' 1 2 3; printf 'c\n'; done"
    seen = sh(script, np=4)
    expect(set(re.sub(rb"^\[\d\]<stdout>:", b"", line) for line in seen.stdout.splitlines()), {b"aaabbbc"})


def two_streams_on_one_file_do_not_tear():
    words = support.command("-x", "OMP_NUM_THREADS=1", "--", "bash", "-c",
                            "for i in $(seq 300); do printf '%0400d\\n' $i; printf '%0400d\\n' $i >&2; done", np=4)
    text = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60).stdout
    assert all(re.fullmatch(rb"\[\d\]<std(out|err)>:\d{400}", line) for line in text.splitlines()), "a torn line"
    expect(len(text.splitlines()), 2400)


def any_byte_comes_through():
    with tempfile.NamedTemporaryFile() as file:
        data = bytes(range(256)) * 512
        file.write(data)
        file.flush()
        expect(run("--no-tag-output", "--", "cat", file.name, np=1).stdout, data)
        tagged = run("--", "cat", file.name, np=1).stdout
        expect(re.sub(rb"(^|(?<=[\n\r]))\[0\]<stdout>:", b"", tagged), data)


def a_carriage_return_ends_a_line():
    seen = sh(r"printf '10%%\r20%%\rdone\r\nnext\n'", np=1)
    expect(seen.stdout, b"[0]<stdout>:10%\r[0]<stdout>:20%\r[0]<stdout>:done\r\n[0]<stdout>:next\n")


def a_last_line_without_an_end_gets_none():
    expect(sh("printf 'a\nb'", np=1).stdout, b"[0]<stdout>:a\n[0]<stdout>:b")


def a_prompt_comes_out():
    job = start("--", "bash", "-c", "printf 'name? '; read name; echo got $name", np=1, stdin=subprocess.PIPE)
    expect(os.read(job.stdout.fileno(), 100), b"[0]<stdout>:name? ")
    out, _ = job.communicate(b"bob\n", timeout=20)
    expect(out, b"got bob\n")


# The reader is never done with what the other rank writes.
def a_prompt_comes_out_beside_a_flood():
    with tempfile.TemporaryDirectory() as folder:
        answered = os.path.join(folder, "answered")
        job = start("--", "bash", "-c", f"""
            if [ $RANK = 0 ]; then printf 'name? '; read name; echo got $name; touch {answered}
            else until [ -e {answered} ]; do yes | head -c 1000000; done; fi""", np=2, stdin=subprocess.PIPE)
        seen = support.read_until(job.stdout, b"[0]<stdout>:name? ")
        out, _ = job.communicate(b"bob\n", timeout=60)
        expect(job.returncode, 0)
        lines = re.split(b"\r?\n", seen + out)
        assert any(line.endswith((b"name? got bob", b"[0]<stdout>+:got bob")) for line in lines), lines[-3:]


# Each rank's next lines come rounds later than they were written, which is no silence of its.
def a_slow_reader_gets_whole_lines():
    job = start("--", "bash", "-c", "while :; do seq 1000000000 1000100000; done", np=4)  # blocks end anywhere
    taken = b""
    for _ in range(12):
        support.wait_until_still(lambda: fcntl.ioctl(job.stdout, termios.FIONREAD, bytes(4)), still_s=0.3)
        taken += os.read(job.stdout.fileno(), 1 << 20)
    job.kill()
    job.communicate(timeout=20)
    for one in taken.split(b"\n")[:-1]:
        assert re.fullmatch(rb"\[\d\]<stdout>:\d{10}", one), one


def timestamps_as_horovods():
    seen = sh("echo hi", "--prefix-output-with-timestamp", np=1).stdout.decode()
    assert re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:hi\n", seen), seen
    when = time.mktime(time.strptime(seen[:24]))
    assert abs(when - time.time()) < 60, seen


def each_rank_has_its_files():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "new")
        seen = sh("echo out; printf 'err' >&2", "--output-filename", path, "-x", "OMP_NUM_THREADS=1", np=11)
        expect(seen.returncode, 0)
        expect(sorted(os.listdir(path)), [f"rank.{rank:02d}" for rank in range(11)])
        for rank in range(11):
            for name, wanted in (("stdout", f"[{rank}]<stdout>:out\n"), ("stderr", f"[{rank}]<stderr>:err")):
                with open(os.path.join(path, f"rank.{rank:02d}", name)) as file:
                    expect(file.read(), wanted)
        expect(seen.stdout.count(b"out\n"), 11)
        one = os.path.join(folder, "one")
        sh("echo out", "--output-filename", one, np=1)
        expect(os.listdir(one), ["rank.0"])


def only_some_ranks_are_shown():
    with tempfile.TemporaryDirectory() as folder:
        seen = sh("echo $HVD_RANK", "--output-ranks", "0,2", "--output-filename", folder, np=4)
        expect(sorted(seen.stdout.splitlines()), [b"[0]<stdout>:0", b"[2]<stdout>:2"])
        expect(sorted(os.listdir(folder)), [f"rank.{rank}" for rank in range(4)])


def colour_only_where_it_is_wanted():
    expect(sh("echo hi", "--color", "always", np=1).stdout, b"\x1b[31m[0]<stdout>:\x1b[0mhi\n")
    expect(sh("echo hi", np=1).stdout, b"[0]<stdout>:hi\n")


def an_output_directory_that_cannot_be_made():
    seen = run("--output-filename", "/proc/nowhere", "--", "true")
    expect(seen.returncode, 2)
    assert b"/proc/nowhere" in seen.stderr, seen.stderr


def a_pipe_that_nobody_reads_in_a_files_place_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "rank.1"))
        os.mkfifo(os.path.join(folder, "rank.1", "stdout"))
        seen = run("--output-filename", folder, "--", "true")
        expect(seen.returncode, 2)
        assert b"rank.1/stdout" in seen.stderr, seen.stderr


def a_reader_that_leaves_is_sigpipe():
    for np in (1, 4):
        line = f"'{support.options.hvdrun}' -np {np} -- yes </dev/null 2>/dev/null | head -1; exit ${{PIPESTATUS[0]}}"
        expect(subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, timeout=30).returncode, 141)


def a_reader_of_stderr_that_leaves_is_sigpipe_too():
    """Each stream alone, while the other one is read to its end."""
    for gone, kept, script in (("stdout", "stderr", "yes"), ("stderr", "stdout", "exec yes >&2")):
        job = start("-x", "OMP_NUM_THREADS=1", "--", "bash", "-c", script)
        assert getattr(job, gone).readline().endswith(b">:y\n")
        getattr(job, gone).close()
        getattr(job, kept).read()
        expect(job.wait(timeout=30), -signal.SIGPIPE, gone)


def a_full_disk_is_said_once_and_is_no_success():
    with open("/dev/full", "w") as full:
        seen = sh("for i in $(seq 2000); do echo $i; done", stdout=full)
        expect(seen.returncode, 125)
        expect(seen.stderr.count(b"No space left on device"), 1)
        expect(sh("echo lost; exit 9", stdout=full).returncode, 9)


NUMBERS = "for i in $(seq 3000); do echo line $i; done"


def may_not_grow():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, 20 << 10))


def output_files_that_may_not_grow_are_said_once_and_the_job_goes_on():
    with tempfile.TemporaryDirectory() as folder:
        seen = sh(f"{NUMBERS}; grep SigIgn /proc/self/status", "--output-filename", folder, "-x", "OMP_NUM_THREADS=1",
                  preexec_fn=may_not_grow)
        expect(seen.returncode, 125, seen.stderr)
        expect(seen.stderr.count(b"File too large"), 1, seen.stderr)
        expect(len(seen.stdout.splitlines()), 2 * 3001)  # who reads that stream misses nothing
        for line in seen.stdout.splitlines():
            if b"SigIgn" in line:
                expect(int(line.split()[-1], 16) >> 24 & 1, 0, "hvdrun's own SIGXFSZ setting reached a worker")
        assert os.path.getsize(os.path.join(folder, "rank.0", "stdout")) <= 20 << 10
        expect(sh(f"{NUMBERS}; exit 9", "--output-filename", folder, preexec_fn=may_not_grow).returncode, 9)


def standard_output_that_may_not_grow_is_said_once_and_the_job_goes_on():
    with tempfile.TemporaryFile() as file:
        seen = sh(NUMBERS, "-x", "OMP_NUM_THREADS=1", stdout=file, preexec_fn=may_not_grow)
        expect(seen.returncode, 125, seen.stderr)
        expect(seen.stderr.count(b"cannot write standard output: File too large"), 1, seen.stderr)
        expect(os.fstat(file.fileno()).st_size, 20 << 10)


def output_files_on_a_full_disk_are_said_once_and_the_job_goes_on():
    with tempfile.TemporaryDirectory() as folder:
        line = (f"mount -t tmpfs -o size=16k none '{folder}' || exit 77; '{support.options.hvdrun}' -np 2 -x OMP_NUM_THREADS=1 "
                f"--output-filename '{folder}/logs' -- bash -c '{NUMBERS}'")
        seen = subprocess.run(["unshare", "--map-root-user", "--mount", "bash", "-c", line], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        if seen.returncode in (1, 77):
            return "left out: no right to mount"
        expect(seen.returncode, 125, seen.stderr)
        expect(seen.stderr.count(b"No space left on device"), 1, seen.stderr)
        expect(len(seen.stdout.splitlines()), 2 * 3000)


def closed_descriptors_are_no_trap():
    line = f"'{support.options.hvdrun}' -np 2 -- true <&- >&- 2>&-"
    expect(subprocess.run(["bash", "-c", line], timeout=20).returncode, 0)
    for closed in ("<&-", "<&- 2>&-"):  # who reads comes to an end
        line = f"'{support.options.hvdrun}' -np 2 -- sh -c 'cat; echo read' {closed}"
        seen = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, timeout=20)
        expect(seen.returncode, 0)
        expect(seen.stdout.count(b"read\n"), 2)
    line = f"'{support.options.hvdrun}' -np 2 -- sh -c 'echo words >&2' >&- 2>/dev/null"
    expect(subprocess.run(["bash", "-c", line], timeout=20).returncode, 0)
    for words in ("-np 2 -- echo lost", "--version"):
        seen = subprocess.run(["bash", "-c", f"'{support.options.hvdrun}' {words} >&-"], stderr=subprocess.PIPE, timeout=20)
        expect(seen.returncode, 125)
        assert re.search(rb"(?m)^hvdrun: cannot write (to )?standard output: Bad file descriptor;", seen.stderr), seen.stderr


def a_grandchild_that_holds_the_pipe_does_not_hold_hvdrun():
    seen = sh("(setsid sleep 60 &); echo done", limit=20)
    expect(seen.returncode, 0)
    expect(seen.stdout.count(b"done"), 2)
    assert b"ended 2 processes that the ranks had left running" in seen.stderr, seen.stderr


LATE = "sort -n | while read -r line; do echo got $line; done"  # says nothing before it has read the end


def a_filter_of_the_ranks_own_is_not_cut_off():
    wanted = b"".join(b"got %d\n" % i for i in range(1, 101))
    seen = sh(f"exec > >({LATE}); seq 100", "--no-tag-output", np=1)
    expect((seen.returncode, seen.stdout, seen.stderr), (0, wanted, b""))
    with tempfile.TemporaryDirectory() as folder:  # it does not hold the rank's pipe
        seen = sh(f"exec > >({LATE} > {folder}/$HVD_RANK); seq 100", "-x", "OMP_NUM_THREADS=1")
        expect((seen.returncode, seen.stdout, seen.stderr), (0, b"", b""))
        for rank in "01":
            with open(os.path.join(folder, rank), "rb") as file:
                expect(file.read(), wanted)


support.main(every_line_has_its_ranks_tag, lines_stay_whole_when_pieces_mix, two_streams_on_one_file_do_not_tear,
             any_byte_comes_through, a_carriage_return_ends_a_line, a_last_line_without_an_end_gets_none, a_prompt_comes_out,
             a_prompt_comes_out_beside_a_flood, a_slow_reader_gets_whole_lines,
             timestamps_as_horovods, each_rank_has_its_files, only_some_ranks_are_shown, colour_only_where_it_is_wanted,
             an_output_directory_that_cannot_be_made, a_pipe_that_nobody_reads_in_a_files_place_is_refused,
             a_reader_that_leaves_is_sigpipe,
             a_reader_of_stderr_that_leaves_is_sigpipe_too,
             a_full_disk_is_said_once_and_is_no_success, output_files_that_may_not_grow_are_said_once_and_the_job_goes_on,
             standard_output_that_may_not_grow_is_said_once_and_the_job_goes_on,
             output_files_on_a_full_disk_are_said_once_and_the_job_goes_on, closed_descriptors_are_no_trap,
             a_grandchild_that_holds_the_pipe_does_not_hold_hvdrun, a_filter_of_the_ranks_own_is_not_cut_off)
