"""Where system calls are refused, as by filters of containers and sandboxes: jobs run, end and leave nobody."""
import ctypes
import errno
import functools
import os
import signal
import struct
import subprocess
import time

import support
from support import agent_of, expect, start, wait_for, wait_for_ranks
from victims import SHAPES

# As all architectures number them.
PIDFD_SEND_SIGNAL, PIDFD_OPEN, FUTEX_WAITV = 424, 434, 449
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def refuse(numbers, error):
    """From here on the kernel answers this process, and all that it starts, with the error."""
    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    steps = [(LOAD_NUMBER, 0, 0, 0), *((JUMP_IF_EQUAL, len(numbers) - i, 0, number) for i, number in enumerate(numbers)),
             (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | error)]
    program = Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "a filter of system calls")


def start_without(numbers, error, *words, **more):
    return start(*words, preexec_fn=functools.partial(refuse, numbers, error), **more)


def whoever_may_not_be_held_by_a_pidfd_is_ended_all_the_same():
    for error in (errno.EPERM, errno.ENOSYS):
        job = start_without((PIDFD_SEND_SIGNAL, PIDFD_OPEN), error, "--", *SHAPES["setsid"])
        wait_for_ranks(job, 2)
        agent = agent_of(job.pid)
        wait_for(lambda: [support.read(pid, "comm") for pid in support.descendants(agent)].count("sleep") == 4)
        job.send_signal(signal.SIGINT)
        _, words = job.communicate(timeout=20)
        expect(job.returncode, -signal.SIGINT, words)
        assert b"does not die" not in words, words
        done = start_without((PIDFD_SEND_SIGNAL, PIDFD_OPEN), error, "--", "bash", "-c", "setsid tail -f /dev/null & :")
        _, words = done.communicate(timeout=20)
        expect(done.returncode, 0, words)
        assert b"left running" in words, words


# Its thread that watches for deaths would not sleep, and use a CPU for as long as the job runs.
def an_agent_that_may_not_wait_for_many_words_sleeps_all_the_same():
    for error in (errno.EPERM, errno.EINVAL):
        job = start_without((FUTEX_WAITV,), error, "--no-tag-output", "-x", "OMP_NUM_THREADS=1", "--", support.options.worker, "idle", "1")
        for _ in range(2):
            expect(job.stdout.readline(), b"going\n")
        clock = ~agent_of(job.pid) << 3 | 2  # clock_getcpuclockid(3), which Python lacks
        begin, used_s = time.monotonic(), time.clock_gettime(clock)
        wait_for(lambda: time.monotonic() - begin > 1)
        used_s, took_s = time.clock_gettime(clock) - used_s, time.monotonic() - begin
        assert used_s < took_s / 4, (used_s, took_s)
        job.send_signal(signal.SIGTERM)
        job.communicate(timeout=20)


def memory_that_may_be_executed_is_not_asked_for():
    if os.geteuid() != 0 or not os.path.exists("/proc/sys/vm/memfd_noexec"):
        return "left out: it needs root, and Linux 6.3"
    strict = "echo 2 >/proc/sys/vm/memfd_noexec && exec \"$@\""
    for words in ([], [support.options.hvdrun, "-np", "2", "--no-tag-output"]):
        below = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", strict, "sh", *words]
        seen = subprocess.run([*below, support.options.worker, "epochs", "0"], capture_output=True, timeout=60, check=False)
        expect(seen.returncode, 0, seen)


support.parse_options("worker")
support.main(whoever_may_not_be_held_by_a_pidfd_is_ended_all_the_same, an_agent_that_may_not_wait_for_many_words_sleeps_all_the_same,
             memory_that_may_be_executed_is_not_asked_for)
