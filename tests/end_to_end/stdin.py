"""What ranks read from their stdin, byte for byte."""
import hashlib
import os
import subprocess
import tempfile

import support
from support import expect, run, sh

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


support.main(rank_0_gets_it_exactly, all_ranks_get_it_exactly, one_rank_that_does_not_read_holds_nobody_up_when_it_ends,
             none_gets_nothing, what_nobody_reads_is_no_hang, an_endless_writer_is_no_hang)
