"""Processes below hvdrun that are not the job's: what its process had started before it was hvdrun. None of them is touched.

Each waits at a gate, a fifo that is opened only once hvdrun has ended: had it been killed, nobody would be there.
"""
import contextlib
import os
import subprocess
import tempfile

import support
from support import agent_of, children, descendants, expect, keeper_of, read, state, wait_for, wait_for_ranks
from victims import kill

SAVES_LATER = "read -r x < gate; echo saved > file"


@contextlib.contextmanager
def shell(script):
    """A bash that ends in hvdrun, in a folder with a gate."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("gate", "parent", "rank", "up"):
            os.mkfifo(f"{folder}/{name}")
        with open(f"{folder}/err", "wb") as err:  # no pipe: who waits at the gate would hold it open
            yield subprocess.Popen(["bash", "-c", script, "sh", support.options.hvdrun, "-np"], cwd=folder,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err), folder


def expect_end(job, code):
    expect(job.wait(timeout=30), code)


def open_gate(path):
    """Lets who waits there go on; nobody there is a failure, and no wait without an end."""
    fd = wait_for(lambda: writer_of(path))
    os.write(fd, b"go\n")
    os.close(fd)


def writer_of(path):
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads there (any more)
        return None


def wait_for_text(path, wanted):
    def text():
        with open(path) as file:
            return file.read()
    wait_for(lambda: os.path.exists(path) and text() == wanted)


def a_reader_behind_a_process_substitution_gets_all():
    with shell('"$@" 1 --no-tag-output seq 1 5000 > >(read -r x < gate; exec cat > file); true') as (job, folder):
        expect_end(job, 0)
        open_gate(f"{folder}/gate")
        wait_for_text(f"{folder}/file", "".join(f"{i}\n" for i in range(1, 5001)))


def a_background_process_of_a_script_that_ends_in_hvdrun_goes_on():
    with shell(f'({SAVES_LATER}) & exec "$@" 1 true') as (job, folder):
        expect_end(job, 0)
        open_gate(f"{folder}/gate")
        wait_for_text(f"{folder}/file", "saved\n")


def what_such_a_process_left_goes_on_too():
    # Its parent ends while the job runs, so that it becomes hvdrun's child; in a session of its own, as a daemon is.
    script = f"(setsid bash -c '{SAVES_LATER}' & read -r x < parent) & exec \"$@\" 1 sh -c 'read -r x < rank'"
    with shell(script) as (job, folder):
        wait_for_ranks(job, 1)
        parent = wait_for(lambda: next((p for p in children(job.pid) if read(p, "comm") == "bash"), None))
        orphan = wait_for(lambda: next((p for p in children(parent) if "saved" in read(p, "cmdline")), None))
        open_gate(f"{folder}/parent")
        wait_for(lambda: orphan in children(job.pid))
        open_gate(f"{folder}/rank")
        expect_end(job, 0)
        open_gate(f"{folder}/gate")
        wait_for_text(f"{folder}/file", "saved\n")


def they_go_on_when_hvdrun_ends_the_job_itself():
    """Keeper and agent are killed, so that hvdrun finds its job's processes among its own children."""
    leaves_some = "(setsid sleep 300 &); setsid sleep 300 & sleep 300"
    in_its_own = f"(setsid bash -c 'echo > up; {SAVES_LATER}' & read -r x < parent) & read -r x < up;"  # there before hvdrun is
    for start in (f"({SAVES_LATER}) &", f"setsid bash -c '{SAVES_LATER}' &", f"(({SAVES_LATER}) & read -r x < parent) &", in_its_own):
        with shell(f'{start} exec "$@" 2 bash -c "{leaves_some}"') as (job, folder):
            wait_for(lambda: agent_of(job.pid) and [read(p, "comm") for p in descendants(agent_of(job.pid))].count("sleep") == 6)
            if "parent" in start:
                open_gate(f"{folder}/parent")
                wait_for(lambda: all(read(p, "comm") != "bash" or not children(p) for p in children(job.pid)))
            own = descendants(keeper_of(job.pid))
            kill([keeper_of(job.pid), agent_of(job.pid)])
            expect_end(job, 125)
            assert all(state(p) in ("", "Z") for p in own), (start, own)
            open_gate(f"{folder}/gate")
            wait_for_text(f"{folder}/file", "saved\n")


support.main(a_reader_behind_a_process_substitution_gets_all, a_background_process_of_a_script_that_ends_in_hvdrun_goes_on,
             what_such_a_process_left_goes_on_too, they_go_on_when_hvdrun_ends_the_job_itself)
