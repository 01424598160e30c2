"""What the end-to-end tests share: a judge that is a subreaper above hvdrun, processes as /proc shows them, and cases.

A script calls main() with its cases; its arguments are HVDRUN [--long] [--sanitizers] [--apart] [WORD]: only cases whose name
holds WORD are run.
After each case no process may be left below this one.
"""
import argparse
import ctypes
import inspect
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
GONE_LIMIT_S = 8.0  # until nobody may be left after a case

options = None


def read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def sockets(pid):
    """The inodes of its sockets, as /proc/net/tcp and such name them."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            what = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if what.startswith("socket:["):
            found.add(what[len("socket:["):-1])
    return found


def state(pid):
    """The letter of /proc/PID/stat, "" when there is no such process."""
    text = read(pid, "stat")
    return text[text.rfind(")") + 2:][:1]


def is_taken(pid):
    """No signal is pending for the process: it has read all that were sent."""
    return "ShdPnd: 0000000000000000" in read(pid, "status").replace("\t", " ")


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        pass
    return found


def descendants(pid):
    found = children(pid)
    for one in found:
        found += children(one)
    return found


def wait_for(condition, limit_s=15):
    """Until `condition()` holds; returns what it gave, and fails after the limit."""
    begin = time.monotonic()
    while True:
        seen = condition()
        if seen:
            return seen
        assert time.monotonic() - begin < limit_s, f"waited {limit_s} s in vain for {inspect.getsource(condition).strip()}"
        time.sleep(0.002)


def wait_until_still(look, still_s=0.4, limit_s=60):
    """Until what `look()` gives has been the same for so long."""
    seen, since = look(), time.monotonic()

    def still():
        nonlocal seen, since
        now = look()
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since >= still_s
    wait_for(still, limit_s)


def read_until(stream, words, limit_s=30):
    """Reads what comes there until it holds the words; returns its end with them. There may come more than is kept."""
    end, seen = time.monotonic() + limit_s, b""
    while words not in seen:
        assert select.select([stream], [], [], max(end - time.monotonic(), 0))[0], f"waited {limit_s} s in vain for {words}: {seen}"
        came = os.read(stream.fileno(), 1 << 16)
        assert came and time.monotonic() < end, (words, seen)
        seen = seen[-100:] + came
    return seen


def wait_for_words(job, words, limit_s=60):
    """Until a line on its stderr holds the words, and that line; what says nothing more within the limit is killed."""
    limit = threading.Timer(limit_s, job.kill)
    limit.start()
    try:
        said = []
        for line in iter(job.stderr.readline, b""):
            said.append(line)
            if words in line:
                return line
    finally:
        limit.cancel()
    raise AssertionError(f"it ended, or was killed after {limit_s} s, without {words}: {said}")


def wait_for_nobody(limit_s, statuses=None):
    """Reaps until this process has no child, hence no descendant. Returns (seconds, survivors)."""
    begin = time.monotonic()
    pause = 0.0005
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid and statuses is not None:
                statuses[pid] = status
            if pid:
                continue
        except ChildProcessError:
            return time.monotonic() - begin, []
        if time.monotonic() - begin > limit_s:
            return time.monotonic() - begin, [(p, state(p), read(p, "cmdline")) for p in descendants(os.getpid())]
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)


def kill_everything():
    for _ in range(100):
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not wait_for_nobody(0.1)[1]:
            return


def command(*words, np=2):
    apart = ["--pretend-hosts", f"{np}x1"] if options.apart else []
    return [options.hvdrun, "-np", str(np), *apart, *words]


def run(*words, np=2, limit=60, **more):
    """hvdrun with these words, to its end; stdout and stderr as bytes."""
    more.setdefault("stdout", subprocess.PIPE)
    if "input" not in more:
        more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(command(*words, np=np), stderr=subprocess.PIPE, timeout=limit, **more)


def sh(script, *flags, **more):
    return run(*flags, "--", "bash", "-c", script, **more)


def start(*words, np=2, **more):
    more.setdefault("stdin", subprocess.DEVNULL)
    more.setdefault("stdout", subprocess.PIPE)
    more.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(command(*words, np=np), **more)


def expect(seen, wanted, note=""):
    assert seen == wanted, f"saw {seen!r}, wanted {wanted!r} {note}"


def keepers_of(launcher):
    """One for each host."""
    return [p for p in children(launcher) if read(p, "comm") == "hvd-keeper"]


def agents_of(launcher):
    return [p for keeper in keepers_of(launcher) for p in children(keeper) if read(p, "comm") == "hvd-agent"]


def keeper_of(launcher):
    return next(iter(keepers_of(launcher)), None)


def agent_of(launcher):
    return next(iter(agents_of(launcher)), None)


def ranks_of(launcher):
    return [p for agent in agents_of(launcher) for p in children(agent) if read(p, "comm") != "hvd-agent"]


def wait_for_ranks(job, count):
    return wait_for(lambda: len(ranks_of(job.pid)) == count and ranks_of(job.pid))


class Tracer:
    """Traces a process without stopping it; only the thread that began can go on. PermissionError without the right to."""
    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, pid):
        self.pid = pid
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_ulong, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self.request(self.SEIZE)

    def request(self, what):
        if self.libc.ptrace(what, self.pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace request {what} on {self.pid}")

    def bury(self):
        """Reaps the dead process as its tracer: only then its parent can."""
        wait_for(lambda: state(self.pid) == "Z")
        while not os.WIFSIGNALED(os.waitpid(self.pid, self.WALL)[1]):
            pass


class Debugger(Tracer):
    """Holds a process, as gdb would."""

    def __init__(self, pid):
        super().__init__(pid)
        self.request(self.INTERRUPT)
        os.waitpid(pid, self.WALL)  # also a process that is not our child reports its stop here
        expect(state(pid), "t")

    def let_go(self):
        self.request(self.DETACH)


NO_TRACING = "left out: no right to trace"


def take_hold(job, pid, kind=Tracer):
    """A tracer of a process of the job; None, and the job killed, without the right to."""
    try:
        return kind(pid)
    except PermissionError:
        job.kill()
        job.communicate(timeout=60)
        return None


class Terminal:
    """A pseudo-terminal with an interactive, job-controlling bash on it."""

    def __init__(self):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["PS1"] = "$ "
            os.environ.pop("PROMPT_COMMAND", None)
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.text = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait(self, wanted, limit_s=30):
        begin = time.monotonic()
        while wanted not in self.text:
            assert time.monotonic() - begin < limit_s, f"no {wanted!r} in {self.text!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        end = self.text.index(wanted) + len(wanted)
        passed, self.text = self.text[:end], self.text[end:]
        return passed

    def launcher(self):
        """The hvdrun that runs on it."""
        return wait_for(lambda: next((p for p in children(self.pid) if read(p, "comm") == "hvdrun"), None))

    def close(self):
        self.type("exit\nexit\n")
        os.close(self.fd)


def note_left_out(test, why):
    """scripts/test lists them: what could not be judged must not hide behind a test that passes."""
    if path := os.environ.get("HVD_TESTS_LEFT_OUT"):
        with open(path, "a") as file:
            file.write(f"{test}: {why}\n")


def say_left_out(case, why):
    script = os.path.basename(sys.argv[0]).removesuffix(".py")
    note_left_out(f"e2e.{script}: {case.__name__.replace('_', ' ')}", why)


def run_case(case):
    begin, note = time.monotonic(), ""
    try:
        note = case() or ""
        verdict = "ok  "
        if note.startswith("left out: "):
            say_left_out(case, note.removeprefix("left out: "))
    except Exception as error:  # the next case still has to run
        verdict, note = "FAIL", f"{type(error).__name__}: {error}"
    _, left = wait_for_nobody(GONE_LIMIT_S)
    if left:
        verdict, note = "FAIL", f"{len(left)} left running: {left[:10]} {note}"
        kill_everything()
    name = case.__name__.replace("_", " ")
    print(f"{verdict} {name} ({time.monotonic() - begin:.1f} s) {note}", flush=True)
    return verdict != "FAIL"


def parse_options(*programs):
    """`programs` are further arguments behind HVDRUN: paths of what a script starts."""
    global options
    parser = argparse.ArgumentParser()
    for name in ("hvdrun",) + programs:
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--sanitizers", action="store_true")  # hvdrun is built with some
    parser.add_argument("--apart", action="store_true")  # each rank on a pretended host of its own
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()


def main(*cases, why_not=None):
    """Runs the cases; with a reason `why_not` none, and each is said to be left out."""
    if options is None:
        parse_options()
    if why_not:
        for case in cases:
            say_left_out(case, why_not)
        print(f"left out: {why_not}")
        sys.exit(0)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # A shell starts what runs in its background with these ignored (nohup HUP, too), and hvdrun leaves that so. What is
    # handled here is as usual in what is started.
    for one in signal.SIGINT, signal.SIGQUIT, signal.SIGHUP:
        if signal.getsignal(one) == signal.SIG_IGN:
            signal.signal(one, lambda *_: None)
    chosen = [case for case in cases if options.word in case.__name__.replace("_", " ")]
    results = [run_case(case) for case in chosen]
    sys.exit(0 if results and all(results) else 1)
