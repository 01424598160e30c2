"""What ranks read from their stdin, byte for byte."""
import hashlib
import json
import os
import select
import socket
import subprocess
import tempfile

import support
from support import expect, run, sh, start

SUM = "if [ $HVD_RANK = 0 ]; then sha256sum; else wc -c; fi"


def sizes():
    large = [64 << 20] if support.options.long else [4 << 20]
    return [0, 1, 65535, 65536, 65537, 1 << 20] + large


def some_bytes(size):
    block = os.urandom(min(size, 1 << 20)) or b""
    return (block * (size // max(1, len(block)) + 1))[:size]


def rank_0_gets_it_exactly():
    for size in sizes():
        data = some_bytes(size)
        wanted = hashlib.sha256(data).hexdigest().encode()
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            for more in ({"stdin": file}, {"input": data}):
                seen = sh(SUM, "--no-tag-output", **more)
                expect(seen.returncode, 0)
                assert wanted in seen.stdout, (size, seen.stdout)
                assert b"\n0\n" in b"\n" + seen.stdout, "rank 1 got something"


def all_ranks_get_it_exactly():
    for size in sizes()[:-1] + [3 << 20]:
        data = some_bytes(size)
        seen = sh("sha256sum", "--stdin", "all", "--no-tag-output", np=3, input=data)
        expect(seen.returncode, 0)
        expect(seen.stdout.count(hashlib.sha256(data).hexdigest().encode()), 3, size)


def one_rank_that_does_not_read_holds_nobody_up_when_it_ends():
    seen = sh("if [ $HVD_RANK = 1 ]; then exit 0; fi; sha256sum", "--stdin", "all", np=3, input=some_bytes(1 << 20))
    expect(seen.returncode, 0)
    expect(seen.stdout.count(hashlib.sha256(b"").hexdigest().encode()), 0)


def none_gets_nothing():
    expect(sh("wc -c", "--stdin", "none", "--no-tag-output", input=b"x" * 1000).stdout, b"0\n0\n")


def what_nobody_reads_is_no_hang():
    expect(run("--", "true", input=b"x" * (4 << 20), limit=20).returncode, 0)


def an_endless_writer_is_no_hang():
    line = f"yes | '{support.options.hvdrun}' -np 2 -- head -c 100000 >/dev/null; exit ${{PIPESTATUS[1]}}"
    expect(subprocess.run(["bash", "-c", line], stderr=subprocess.DEVNULL, timeout=30).returncode, 0)


def what_no_rank_can_read_any_more_is_not_read():
    """Else hvdrun and its agent would be as busy as the writer."""
    job = start("--", "sh", "-c", "exec <&-; echo closed; exec tail -f /dev/null", stdin=subprocess.PIPE)
    for _ in range(2):
        assert b"closed" in job.stdout.readline()
    os.set_blocking(job.stdin.fileno(), False)
    written, most = 0, 64 << 20
    while written < most and select.select([], [job.stdin], [], 2)[1]:
        written += os.write(job.stdin.fileno(), b"x" * 65536)
    job.terminate()
    job.communicate(timeout=20)
    assert written <= 1 << 20, written
    return f"{written} bytes were taken"


def input_that_cannot_be_read_is_no_success():
    wanted = "hvdrun: cannot read standard input: {}; {} its end and the exit status will not be 0"
    for path, reason in ((tempfile.gettempdir(), "Is a directory"), ("/proc/self/mem", "Input/output error")):
        with tempfile.TemporaryDirectory() as folder:
            result = os.path.join(folder, "result.json")
            file = os.open(path, os.O_RDONLY)
            seen = sh("wc -c", "--no-tag-output", "--result-file", result, stdin=file)
            expect((seen.returncode, seen.stdout), (125, b"0\n0\n"), seen.stderr)
            expect(seen.stderr.decode().splitlines().count(wanted.format(reason, "rank 0 sees")), 1, seen.stderr)
            with open(result) as text:
                end = json.load(text)
            expect((end["exit_code"], end["input"]), (125, {"error": reason}))
            expect(sh("cat >/dev/null; exit 3", stdin=file).returncode, 3)
            expect(sh("cat", "--stdin", "none", stdin=file).returncode, 0)
            seen = sh("cat", "--stdin", "all", stdin=file)
            expect(seen.returncode, 125)
            assert wanted.format(reason, "all ranks see").encode() in seen.stderr, seen.stderr
            os.close(file)


def what_came_before_the_error_is_read():
    mine, other = socket.socketpair()
    data = some_bytes(100_000)
    mine.send(b"never read, hence a reset")
    other.sendall(data)
    other.close()
    seen = sh("sha256sum", "--no-tag-output", np=1, stdin=mine)
    expect(seen.returncode, 125, seen.stderr)
    assert b"cannot read standard input: Connection reset by peer; rank 0 sees" in seen.stderr, seen.stderr
    assert hashlib.sha256(data).hexdigest().encode() in seen.stdout, seen.stdout


def further_descriptors_are_the_ranks_too():
    with tempfile.TemporaryDirectory() as folder:
        for fd in (3, 4, 9):
            with open(f"{folder}/{fd}", "w") as file:
                file.write(f"of {fd}")
        line = f"'{support.options.hvdrun}' -np 1 --no-tag-output bash -c 'cat <&3; cat <&4; cat <&9'"
        seen = subprocess.run(["bash", "-c", f"exec 3<'{folder}/3' 4<'{folder}/4' 9<'{folder}/9'; {line}"], timeout=30,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        expect((seen.returncode, seen.stdout), (0, b"of 3of 4of 9"), seen.stderr)


support.main(further_descriptors_are_the_ranks_too, rank_0_gets_it_exactly, all_ranks_get_it_exactly, one_rank_that_does_not_read_holds_nobody_up_when_it_ends,
             none_gets_nothing, what_nobody_reads_is_no_hang, what_no_rank_can_read_any_more_is_not_read, an_endless_writer_is_no_hang,
             input_that_cannot_be_read_is_no_success, what_came_before_the_error_is_read)
