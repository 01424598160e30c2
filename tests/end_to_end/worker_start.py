"""What a worker starts with: environment, directory, limits, signals, descriptors; and that hvdrun is one static file."""
import ctypes
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile

import support
from support import agent_of, expect, keeper_of, read, run, sh, start, wait_for, wait_for_ranks


def environment(*flags, np=1, **more):
    seen = run("--no-tag-output", *flags, "--", "env", "-0", np=np, **more)
    expect(seen.returncode, 0, seen.stderr)
    return dict(entry.split("=", 1) for entry in seen.stdout.decode().split("\0") if "=" in entry)


def ranks_in_everybodys_words():
    seen = sh("echo $HVD_RANK/$HVD_SIZE $HOROVOD_RANK/$HOROVOD_SIZE $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
              "$HOROVOD_HOSTNAME", "--no-tag-output", np=3)
    expect(sorted(seen.stdout.decode().splitlines()), [f"{r}/3 {r}/3 {r}/3 {r}/3 localhost" for r in range(3)])


def the_users_environment_is_passed_on():
    mine = {"PATH": os.environ["PATH"], "EMPTY": "", "SPACES": " a  b ", "QUOTES": "'\"$x`", "http_proxy": "http://nowhere",
            "GRPC_TRACE": "all"}
    seen = environment("-x", "ADDED=1=2", "-x", "EMPTY", env=mine)
    for name, value in mine.items():
        expect(seen[name], value)
    expect(seen["ADDED"], "1=2")
    expect(seen["PYTHONUNBUFFERED"], "1")
    assert int(seen["OMP_NUM_THREADS"]) >= 1


def master_port_is_held_and_can_be_taken():
    script = ("import os, socket, sys\n"
              "port = int(os.environ['MASTER_PORT'])\n"
              "plain = socket.socket()\n"
              "try: plain.bind(('127.0.0.1', port)); print('anybody could have it')\n"
              "except OSError: print('held')\n"
              "mine = socket.socket(socket.AF_INET6)\n"
              "mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
              "mine.bind(('::', port)); mine.listen()\n"
              "socket.create_connection((os.environ['MASTER_ADDR'], port)); print('taken')\n")
    expect(run("--no-tag-output", "--", "python3", "-c", script, np=1).stdout, b"held\ntaken\n")


def a_working_directory_can_be_given():
    with tempfile.TemporaryDirectory() as folder:
        real = os.path.realpath(folder)
        expect(run("--no-tag-output", "--wdir", folder, "--", "pwd", "-P", np=1).stdout.decode(), real + "\n")
        expect(run("--no-tag-output", "--", "pwd", "-P", np=1, cwd=folder).stdout.decode(), real + "\n")


def pwd_names_the_directory_that_was_given():
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "deep"))
        here, above = os.path.realpath(folder), os.path.dirname(os.path.realpath(folder))
        os.symlink("/", os.path.join(folder, "link"))
        for given, there in {folder: folder, "deep": f"{here}/deep", "..": above, ".": here, "./deep//.": f"{here}/deep",
                             f"{folder}/deep/..//./deep/": f"{folder}/deep", "link/../deep": f"{here}/deep", "link/..": here}.items():
            seen = environment("--wdir", given, cwd=folder, env={"PATH": os.environ["PATH"], "PWD": folder, "OLDPWD": "/"})
            expect((seen["PWD"], seen["OLDPWD"]), (there, "/"))
            expect(run("--no-tag-output", "--wdir", given, "--", "pwd", "-P", np=1, cwd=folder).stdout.decode(), os.path.realpath(there) + "\n")
        expect(environment("--wdir", "deep", "-x", "PWD=mine", cwd=folder)["PWD"], "mine")
        expect(environment(cwd=folder, env={"PATH": os.environ["PATH"], "PWD": "as it was"})["PWD"], "as it was")


def other_user():
    """One that nobody else is, for root; None: whoever runs this is not root, or nobody else may be had."""
    uid = 1_000_000 + os.getpid()
    return uid if os.geteuid() == 0 and is_a_user(uid) else None


def the_way_to_a_directory_need_not_be_open():
    """As for who takes on another user in it: the directory is open, the one above it is closed."""
    user = other_user()
    if os.geteuid() == 0 and user is None:
        return "left out: root without another user, whom a closed directory would keep out"
    with tempfile.TemporaryDirectory() as folder:
        closed = os.path.join(folder, "closed")
        here = os.path.join(closed, "here")
        os.makedirs(os.path.join(here, "deep"))
        for path in folder, here, os.path.join(here, "deep"):
            os.chmod(path, 0o755)
        train = os.path.join(here, "train")
        with open(train, "w") as file:
            file.write("#!/bin/sh\nls -d deep train\n")
        os.chmod(train, 0o755)
        shutil.copy(train, os.path.join(here, "deep/train"))
        os.mkdir(os.path.join(here, "deep/deep"))

        def enter():
            os.chdir(here)
            os.chmod(closed, 0)
            if user:
                os.setuid(user)
        try:
            # By descriptor: another user may not be let into the folder.
            with open(support.options.hvdrun, "rb") as program:
                for where in ([], ["--wdir", "deep"]):
                    seen = subprocess.run([f"/proc/self/fd/{program.fileno()}", "-np", "2", "--no-tag-output", *where, "./train"],
                                          stdin=subprocess.DEVNULL, capture_output=True, preexec_fn=enter, pass_fds=[program.fileno()], timeout=30)
                    os.chmod(closed, 0o755)
                    expect((seen.returncode, sorted(seen.stdout.split())), (0, [b"deep"] * 2 + [b"train"] * 2), seen.stderr)
        finally:
            os.chmod(closed, 0o755)


def workers_start_clean():
    def before():
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    out = sh("grep -E 'SigBlk|SigIgn' /proc/self/status; ls -m /proc/$$/fd; ulimit -n; umask",
             "--no-tag-output", np=1, preexec_fn=before).stdout.decode().splitlines()
    expect(int(out[0].split()[-1], 16), 0, "blocked signals")
    expect(int(out[1].split()[-1], 16) & 0x7fffffff, 0, "ignored signals")
    expect(set(out[2].split(", ")) - {"255"}, {"0", "1", "2"}, "descriptors")
    expect(out[3], "200")
    expect(out[4], "0027")


def the_kernel_takes_a_worker_before_hvdrun():
    own = int(read("self", "oom_score_adj"))
    for its in own, max(own, 300), max(own, 700):
        def before():
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(its))
        seen = sh("cat /proc/self/oom_score_adj", "--no-tag-output", np=1, preexec_fn=before).stdout
        expect(int(seen), min(its + 500, 1000))


def core_dumps_are_off_above_the_workers():
    """Theirs would hold the job's secrets; whether a worker leaves one is the user's to say."""
    def limit(pid):
        return re.search(r"Max core file size +(\S+) +(\S+)", read(pid, "limits")).groups()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == 0:
        return "left out: no right to core dumps"
    job = start("--", "sleep", "60", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)))
    ranks = wait_for_ranks(job, 2)
    for pid in (job.pid, keeper_of(job.pid), agent_of(job.pid)):
        expect(limit(pid)[0], "1", read(pid, "comm"))  # 0 would let those pass that go through a pipe
        # A hard limit of 0 may be one. The agent's memory is the ranks', too, until they are programs of their own.
        wait_for(lambda pid=pid: int(read(pid, "coredump_filter"), 16) == 0)
    for rank in ranks:
        expect(limit(rank)[0], limit(rank)[1])
        assert limit(rank)[0] != "0"
        expect(read(rank, "coredump_filter"), read("self", "coredump_filter"))
    job.terminate()
    job.communicate(timeout=20)


def each_worker_leads_a_session():
    seen = run("--no-tag-output", "--", "python3", "-c", "import os; print(os.getsid(0) == os.getpid() == os.getpgrp())")
    expect(seen.stdout, b"True\nTrue\n")


def it_needs_no_library_and_no_loader():
    seen = subprocess.run(["readelf", "--dynamic", "--program-headers", "--wide", support.options.hvdrun], stdout=subprocess.PIPE)
    expect(seen.returncode, 0)
    assert b"LOAD" in seen.stdout, seen.stdout
    assert b"NEEDED" not in seen.stdout and b"INTERP" not in seen.stdout, seen.stdout


def no_descriptor_is_left_for_it():
    if support.options.long:
        for limit in (64, 256):
            seen = run("--", "true", np=4, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
            expect(seen.returncode, 0, limit)
    for limit in (12, 20, 21, 22, 23):  # fewer than gRPC can do with
        seen = run("--", "true", limit=30, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        expect(seen.returncode, 125, (limit, seen.stderr))
        assert b"ulimit -n" in seen.stderr and b".cc" not in seen.stderr, (limit, seen.stderr)
    seen = run("--", "sleep", "60", np=64, limit=30, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
    expect(seen.returncode, 125)
    assert b"ulimit -n" in seen.stderr, seen.stderr


def too_small_a_stack_is_named():
    def under(kilobytes, **environment):
        limit = kilobytes << 10
        return run("--", "true", env={**os.environ, **environment}, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (limit, limit)))

    for kilobytes in (64, 255):
        seen = under(kilobytes)
        words = b"hvdrun: ulimit -s %d leaves hvdrun too small a stack; raise it to 256 or more\n" % kilobytes
        expect((seen.returncode, seen.stderr), (125, words))
    expect(under(256, LONG="x" * 100_000).returncode, 0)  # where the stack begins


def is_a_user(uid):
    with open("/proc/self/uid_map") as known:
        ranges = [[int(word) for word in line.split()] for line in known]
    return any(first <= uid < first + count for first, _, count in ranges)


def can_start_one_too_many():
    """Whether this user may start a process beyond the limit; in one that ends at once."""
    tries = ("import os, resource; resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)); pid = os.fork();"
             "pid or os._exit(0); os.waitpid(pid, 0)")
    return subprocess.run([sys.executable, "-c", tries], stderr=subprocess.DEVNULL, timeout=30).returncode == 0


def a_limit_that_stops_threads_is_named_with_its_value():
    def under(resource_kind, value, user=None):
        def enter():
            # Where there is no such limit glibc's stacks are smaller than what is left here.
            hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
            resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, hard))
            resource.setrlimit(resource_kind, (value, value))
            if user:
                os.setuid(user)
        # By descriptor: another user may not be let into the folder.
        with open(support.options.hvdrun, "rb") as program, tempfile.TemporaryFile("w+") as told:
            seen = subprocess.run([f"/proc/self/fd/{program.fileno()}", "-np", "2", "--result-file", f"/dev/fd/{told.fileno()}", "true"],
                                  stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=enter,
                                  pass_fds=[program.fileno(), told.fileno()], timeout=30)
            told.seek(0)
            result = json.load(told)
        expect(seen.returncode, 125, seen.stderr)
        # Its agent, with the same limit, may be the first that is stopped by it.
        assert result["cause"] in ("own_failure", "agent_lost"), result
        expect((result["exit_code"], [one["outcome"] for one in result["ranks"]]), (125, ["unknown"] * 2))
        assert result["cause_text"].encode() in seen.stderr, (result, seen.stderr)
        return seen.stderr

    for kind, value, option in ((resource.RLIMIT_DATA, 20_000, b"-d"), (resource.RLIMIT_AS, 60_000, b"-v")):
        said = under(kind, value << 10)
        # What is left for a stack may be too little for something else before.
        assert re.search(rb"hvdrun: (cannot start .* thread: .*; a stack of \d+ KiB|what hvdrun needs) finds no room within ulimit %s %d;" %
                         (option, value), said), said
    nobody_elses = other_user()  # no limit holds for root
    if os.geteuid() == 0 and nobody_elses is None:
        return "left out: root without another user, for whom a limit on threads would hold"
    if not nobody_elses and can_start_one_too_many():
        return "left out: no limit on threads holds for who is root outside of this user namespace"
    threads = 4 if nobody_elses else 1  # of another user's there is one already
    said = under(resource.RLIMIT_NPROC, threads, nobody_elses)
    assert b"either ulimit -u (%d) of this user, or pids.max or threads-max " % threads in said, said


def one_static_file_runs_in_an_empty_root():
    """Needs root; an unprivileged run of the tests has no way to make such a place."""
    if os.geteuid() != 0:
        return "left out: not root"
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(root + "/proc")
        os.makedirs(root + "/dev")
        shutil.copy(support.options.hvdrun, root + "/hvdrun")

        def enter():
            libc.unshare(0x00020000)  # CLONE_NEWNS
            libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE
            if libc.mount(b"/proc", (root + "/proc").encode(), None, 0x1000 | 0x4000, None) != 0:
                raise OSError(ctypes.get_errno(), "mount")
            open(root + "/dev/null", "w").close()
            if libc.mount(b"/dev/null", (root + "/dev/null").encode(), None, 0x1000, None) != 0:
                raise OSError(ctypes.get_errno(), "mount")
            os.chroot(root)
            os.chdir("/")
        try:
            seen = subprocess.run(["/hvdrun", "-np", "2", "/hvdrun", "--version"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=enter, timeout=30)
        except subprocess.SubprocessError:
            return "left out: no right to mount"
        expect(seen.returncode, 0, seen.stderr)
        assert seen.stdout.startswith(b"[0]<stdout>:") or seen.stdout.startswith(b"[1]<stdout>:"), seen.stdout


support.parse_options()
# The sanitizers' run time is a library, needs descriptors and memory of its own, and forbids core dumps itself.
of_the_product = [] if support.options.sanitizers else [it_needs_no_library_and_no_loader, no_descriptor_is_left_for_it, too_small_a_stack_is_named,
                                                        a_limit_that_stops_threads_is_named_with_its_value,
                                                        one_static_file_runs_in_an_empty_root,
                                                        core_dumps_are_off_above_the_workers]
support.main(ranks_in_everybodys_words, the_users_environment_is_passed_on, master_port_is_held_and_can_be_taken,
             a_working_directory_can_be_given, pwd_names_the_directory_that_was_given, the_way_to_a_directory_need_not_be_open,
             workers_start_clean, the_kernel_takes_a_worker_before_hvdrun,
             each_worker_leads_a_session, *of_the_product)
