"""--ship on hosts that lack the program, its libraries, its loader: what is sent, once, where it lies, and what hinders it."""
import functools
import os
import pathlib
import re
import signal
import subprocess
import time

import remote_jobs
import support
from remote_jobs import hosts, launcher, processes
from support import expect, wait_for

LONELY = ["-x", "OMP_NUM_THREADS=1", "--no-tag-output"]
CACHE = ".cache/hvdrun/shipped"
PROJECT = "/tmp/project"  # on h0 alone: every host has a /tmp of its own
LARGE = 20_000_000
SLOW = "25mbit"  # LARGE takes 6 s
DAY_S = 24 * 3600

world = None  # on_hosts()


def prepare(made):
    remote_jobs.keep(made)
    made.path("h0", PROJECT).mkdir()


on_hosts = functools.partial(hosts.on_hosts, bare=1, prepare=prepare)


def command(*words):
    """From within PROJECT."""
    return world.command("h0", "sh", "-c", f'cd {PROJECT} && exec "$@"', "sh", support.options.hvdrun, *LONELY, *words)


def run(*words, code=0):
    seen = subprocess.run(command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    expect(seen.returncode, code, seen.stdout + seen.stderr)
    return seen


def start(*words):
    return subprocess.Popen(command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def write(name, text, mode=0o644):
    path = world.path("h0", f"{PROJECT}/{name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)


def store(host, place=None):
    return world.path(host, place or hosts.home("root", CACHE))


def kept(host, place=None):
    """What is there: names and inodes, so that what came anew is another."""
    return {str(path.relative_to(store(host, place))): path.lstat().st_ino for path in store(host, place).rglob("*") if not path.is_dir()}


def files(host, place=None):
    folder = store(host, place) / "files"
    return list(folder.iterdir()) if folder.exists() else []


def libraries(host):
    """Of the one job that was shipped there."""
    return {path.name for tree in (store(host) / "trees").iterdir() for path in tree.iterdir() if path.is_file()}


def being_made(host):
    return [path for path in store(host).glob("new.*")] if store(host).exists() else []


def give_libm(host):
    """Bare hosts have what sshd needs of the C library, which is not all of it."""
    listed = subprocess.run(["ldd", support.options.allreduce], check=True, stdout=subprocess.PIPE, text=True, timeout=20).stdout
    path = re.search(r"libm\.so\.6 => (\S+)", listed).group(1)
    world.path(host, path).write_bytes(pathlib.Path(path).read_bytes())


def a_bare_host_gets_a_program_and_the_libraries_it_lacks_once():
    program = support.options.allreduce
    give_libm("b1")
    seen = run("-np", "2", "-H", "b1:2", "--ship", program, "--", program)
    expect(seen.stdout, "2 ranks: 3\n")
    sent = libraries("b1")
    assert "libstdc++.so.6" in sent and any(name.startswith("libhvd.so") for name in sent), sent
    assert not any(name.startswith(("libc.so", "ld-linux")) for name in sent), sent
    before = kept("b1")
    expect(run("-np", "2", "-H", "b1:2", "--ship", program, "--", program).stdout, "2 ranks: 3\n")
    expect(kept("b1"), before, "nothing is sent the second time")


def libhvd_comes_with_its_part_for_gpus():
    """That is opened while the program runs, from beside libhvd, so that no loader lists it."""
    listed = subprocess.run(["ldd", support.options.allreduce], check=True, stdout=subprocess.PIPE, text=True, timeout=20).stdout
    libhvd = pathlib.Path(re.search(r"=> (\S+/libhvd\.so\S*)", listed).group(1))
    give_libm("b1")
    write("train", pathlib.Path(support.options.allreduce).read_bytes(), 0o755)
    write(f"lib/{libhvd.name}", libhvd.read_bytes())
    write("lib/libhvd_nccl.so", "no library: who has no GPU never opens it")
    seen = run("-x", f"LD_LIBRARY_PATH={PROJECT}/lib", "-H", "b1", "--ship", "./train", "--", "./train")
    expect(seen.stdout, "1 ranks: 1\n")
    sent = libraries("b1")
    assert {libhvd.name, "libhvd_nccl.so"} <= sent, sent


def a_new_program_comes_without_the_libraries_that_are_there():
    program = world.path("h0", f"{PROJECT}/train")
    program.write_bytes(pathlib.Path(support.options.allreduce).read_bytes())
    program.chmod(0o755)
    expect(run("-H", "b1", "--ship", "./train", "--", "./train").stdout, "1 ranks: 1\n")
    before = kept("b1")
    program.write_bytes(program.read_bytes() + b"rebuilt")
    expect(run("-H", "b1", "--ship", "./train", "--", "./train").stdout, "1 ranks: 1\n")
    after = kept("b1")
    expect((len(set(after.values()) - set(before.values())), {name: after[name] for name in before}), (1, before), "one new file")


def hosts_that_have_the_libraries_are_sent_none():
    program = support.options.allreduce
    seen = run("-np", "4", "-H", "h1:2,h2:2", "--ship", program, "--", program)
    expect(seen.stdout, "4 ranks: 10\n")
    expect((len(files("h1")), len(files("h2")), files("h0")), (1, 1, []))


def a_host_without_the_loader_gets_the_c_library_and_others_keep_theirs():
    loader = b"/lib64/ld-linux-x86-64.so.2\0"
    bash = pathlib.Path("/bin/bash").read_bytes()
    if loader not in bash:
        return "left out: this machine's programs have another loader"
    write("shell", bash.replace(loader, b"/tmp/x/ld-linux-x86-64.so.2\0"), 0o755)
    world.path("h0", "/tmp/x").symlink_to("/lib64")
    words = ["-np", "2", "-H", "b1:2", "--ship", "./shell", "--", "./shell", "-c",
             'echo $RANK; busybox sh -c "echo child; echo \\${LD_LIBRARY_PATH-unset}"']
    seen = run(*words)
    expect(sorted(seen.stdout.split()), ["0", "1", "child", "child", "unset", "unset"], seen.stderr)
    assert {"libc.so.6", "ld-linux-x86-64.so.2"} <= libraries("b1"), libraries("b1")
    before = kept("b1")
    run(*words)
    expect(kept("b1"), before)
    seen = run("-H", "b1", "--ship", "./shell", "--", "sh", "./shell", code=125)
    assert re.search(r'no agent on b1: what is shipped cannot be put there: its C library is none that "/tmp/project/shell" can use, and the one from here can', seen.stderr), seen.stderr


def folders_and_words_of_the_command_are_found_there():
    write("main.py", "import sys, os, pkg.name; print(os.environ['RANK'], pkg.name.NAME, open(sys.argv[1] + '/a.txt').read(), sys.argv[2:], os.getcwd(), os.environ['PWD'])")
    write("pkg/__init__.py", "")
    write("pkg/name.py", "NAME = 'packed'")
    write("data/a.txt", "text")
    seen = run("-H", "h1,h2", "--ship", "main.py", "--ship", "pkg", "--ship", "data", "--", "python3", "main.py", "./data/", "--x=data")
    home = hosts.home("root")
    expect(sorted(seen.stdout.splitlines()), [f"{rank} packed text ['--x=data'] {home} {home}" for rank in (0, 1)])
    expect(sorted(line for line in seen.stderr.splitlines() if not re.match("hvdrun: (waiting for|other hosts reach) ", line)),
           [f"hvdrun: {host}: there is no {PROJECT}; its ranks start in {home} (--wdir names another)" for host in ("h1", "h2")])
    seen = run("-H", "localhost:1,h1:1", "--ship", "main.py", "--ship", "pkg", "--ship", "data", "--wdir", PROJECT, "--", "python3", "main.py", "data", code=125)
    assert f"rank 1 on h1 could not be started (chdir to {PROJECT}: No such file or directory)" in seen.stderr, seen.stderr
    seen = run("-H", "localhost:1,h1:1", "--ship", "main.py", "--ship", "pkg", "--ship", "data", "--", "python3", "main.py", "data")
    expect(sorted(seen.stdout.splitlines()), [f"0 packed text [] {PROJECT} {PROJECT}", f"1 packed text [] {home} {home}"], "what is here is used where it is")


def what_was_changed_there_is_sent_again():
    write("hello", "#!/bin/sh\necho hello $RANK\n", 0o755)
    words = ["-H", "h1", "--ship", "./hello", "--", "./hello"]
    expect(run(*words).stdout, "hello 0\n")
    [there] = store("h1").glob(f"trees/*{PROJECT}/hello")
    expect(there.stat().st_mode & 0o777, 0o500)
    there.write_text("#!/bin/sh\necho howdy $RANK\n")
    expect(run(*words).stdout, "hello 0\n")
    [there] = files("h1")
    there.write_text("")
    expect(run(*words).stdout, "hello 0\n")
    expect((len(files("h1")), being_made("h1")), (1, []))


def what_ranks_write_beside_it_stays_whoever_starts_again():
    write("project/state", "shipped")
    write("project/main.py", """import os, sys
here = os.path.dirname(os.path.abspath(__file__))
print(os.path.exists(here + "/checkpoint"), open(here + "/state").read(), flush=True)
with open(here + "/new", "w") as file:
    file.write("changed")
os.replace(here + "/new", here + "/state")
if not os.path.exists(here + "/checkpoint"):
    with open(here + "/checkpoint", "w") as file:
        file.write("weights")
if sys.argv[1:]:
    print("at work", flush=True)
    sys.stdin.read()
    print(open(here + "/checkpoint").read())
""")
    words = ["-H", "h1", "--ship", "project", "--", "python3", "project/main.py"]
    job = subprocess.Popen(command(*words, "wait"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    expect([job.stdout.readline(), job.stdout.readline()], ["False shipped\n", "at work\n"])
    wait_for(lambda: "tree-use" in world.run("h1", "ps", "-eLo", "comm=").stdout.split())  # keeps it young
    for _ in range(2):
        expect(run(*words).stdout, "True shipped\n")
    out, err = job.communicate("", timeout=60)
    expect((job.returncode, out), (0, "weights\n"), err)
    expect((len(list((store("h1") / "trees").iterdir())), being_made("h1")), (1, []))


def jobs_that_race_for_one_folder_all_start():
    write("large", os.urandom(LARGE // 4))
    write("hello", "#!/bin/sh\nwc -c <$1\n", 0o755)
    jobs = [start("-H", "h1", "--ship", "hello", "--ship", "large", "--", "./hello", "large") for _ in range(4)]
    for job in jobs:
        out, err = job.communicate(timeout=60)
        expect((job.returncode, out.strip()), (0, str(LARGE // 4)), err)
    expect((len(files("h1")), being_made("h1")), (2, []))


def mount(where, options):
    world.run("h1", "mount", "-n", "-t", "tmpfs", "-o", options, "none", where)


def places_that_cannot_take_it_are_passed_over():
    write("hello", "#!/bin/sh\necho hello\n", 0o755)
    write("large", os.urandom(LARGE // 4))
    mount("/var/tmp", "mode=1777")
    mount(hosts.home("bash"), "size=2m,uid=47000")
    mount(hosts.home("dash"), "ro")
    mount(hosts.home("fish"), "noexec,uid=47002")
    world.run("h1", "rm", "-rf", hosts.home("csh"))
    users = {"bash": 47000, "dash": 47001, "fish": 47002, "csh": 47003}
    words = ["--ship", "hello", "--ship", "large", "--", "./hello"]
    for _ in range(2):
        for user, uid in users.items():
            before = kept("h1", f"/var/tmp/hvdrun-{uid}/shipped")
            expect(run("-H", f"{user}@h1", *words).stdout, "hello\n")
            after = kept("h1", f"/var/tmp/hvdrun-{uid}/shipped")
            assert len(after) == 4 and before in ({}, after), (before, after)
    # What somebody else has put there is not used.
    world.run("h1", "sh", "-c", "rm -rf /var/tmp/hvdrun-*; mkdir -m 777 /var/tmp/hvdrun-47000; mount -n -t tmpfs -o size=1m,mode=1777 none /tmp")
    seen = run("-H", "bash@h1", *words, code=125)
    assert re.search(r"no folder there takes it; make room, or let programs be run in one: /run/home/bash/\S+: No space left on device; "
                     r"/var/tmp/hvdrun-47000/shipped: it is there, and others may write to it; /tmp/\S+: No space left", seen.stderr), seen.stderr


def what_others_may_change_from_above_is_no_place_for_it():
    write("hello", "#!/bin/sh\necho hello\n", 0o755)
    words = ["-H", "bash@h1", "--ship", "hello", "--", "./hello"]
    mount("/var/tmp", "mode=1777")
    world.run("h1", "chmod", "777", "/run/home")
    expect(run(*words).stdout, "hello\n")
    expect((kept("h1", hosts.home("bash", CACHE)), len(files("h1", "/var/tmp/hvdrun-47000/shipped"))), ({}, 1))
    world.run("h1", "chmod", "755", "/run/home")
    expect(run(*words).stdout, "hello\n")
    expect(len(files("h1", hosts.home("bash", CACHE))), 1)


def what_cannot_be_shipped_is_named_before_anything_starts():
    write("data/a.txt", "text")
    world.run("h0", "mkfifo", f"{PROJECT}/data/pipe")
    for words, wanted in ((["--ship", "train"], f'--ship: "{PROJECT}/train" cannot be read: No such file or directory'),
                          (["--ship", "data/pipe"], f'--ship: "{PROJECT}/data/pipe" is neither a file nor a folder; leave it out'),
                          (["--ship", "/bin/bash", "--ship-limit", "1K"], "what is to be shipped comes to 1.3 MB, and --ship-limit allows 1.0 kB; the largest: \"/bin/bash\"")):
        seen = run("-H", "h1", *words, "--", "true", code=2)
        assert seen.stderr.startswith("hvdrun: " + wanted) and seen.stderr.count("\n") == 1, seen.stderr
    expect(processes("h1"), [])
    seen = run("-H", "b1", "--ship", support.options.allreduce, "--ship-limit", "300K", "--", support.options.allreduce, code=2 if os.path.getsize(support.options.allreduce) > 300 << 10 else 125)
    assert "--ship-limit allows" in seen.stderr, seen.stderr


def a_command_that_cannot_be_started_there_is_told_with_what_to_do():
    write("plain.sh", "exit 0\n")
    for words, code, advice in [
            ("--wdir /tmp ./plain.sh".split(), 127, "copy it there, or send it with --ship ./plain.sh"),
            ("--ship plain.sh ./plain.sh".split(), 126, "\"./plain.sh\" has no permission to be executed; try: hvdrun ... sh ./plain.sh"),
            (["--wdir", "/tmp", "--", "sh -c :"], 127, "try: hvdrun ... sh -c :"),
            ("--wdir /tmp -- /tmp".split(), 126, "\"/tmp\" is a directory; name the program in it to run")]:
        last = run("-H", "h1", *words, code=code).stderr.splitlines()[-1]
        assert re.fullmatch(rf"hvdrun: first failure: rank 0 on h1 could not be started \(exec of .*\): .*{re.escape(advice)}", last), last


def what_is_no_file_is_left_out_of_a_folder_and_a_dry_run_says_how_much_would_go():
    write("data/a.txt", "text")
    write("data/b.txt", "text")
    world.run("h0", "mkfifo", f"{PROJECT}/data/pipe")
    left_out = f'hvdrun: --ship leaves out what is neither a file nor a folder: "{PROJECT}/data/pipe"'
    seen = run("-H", "h1", "--dry-run", "--ship", "data", "--", "ls", "data")
    expect((seen.stdout.splitlines()[-1], seen.stderr), ("ships: 2 files, 4 bytes", left_out + "\n"))
    expect(files("h1"), [])
    seen = run("-H", "h1", "--ship", "data", "--", "ls", "data")
    expect((seen.stdout, seen.stderr.splitlines()[0]), ("a.txt\nb.txt\n", left_out))


def a_home_that_is_a_link_and_a_script_of_a_shipped_interpreter():
    write("disk/run.py", "import sys; print(open(sys.argv[1]).read())")
    write("disk/data/a.txt", "text")
    world.run("h0", "ln", "-s", f"{PROJECT}/disk", "/tmp/home")
    seen = run("-H", "h1", "--ship", "/tmp/home/run.py", "--ship", "/tmp/home/data", "--", "python3", "disk/run.py", "disk/data/a.txt")
    expect(seen.stdout, "text\n", seen.stderr)
    write("env/tool", f"#!{PROJECT}/env/sh\necho tool $1 $RANK\n", 0o755)
    write("env/sh", pathlib.Path("/bin/sh").read_bytes(), 0o755)
    seen = run("-H", "h1", "--ship", "env", "--", "env/tool", "x", code=2)
    words = f"{PROJECT}/env/sh env/tool"
    assert seen.stderr.endswith(f"lies elsewhere there; write {words}\n"), seen.stderr
    expect(run("-H", "h1", "--ship", "env", "--", *words.split(), "x").stdout, "tool x 0\n")


def a_slow_host_holds_nobody_up_and_a_broken_off_start_leaves_nothing():
    write("first", os.urandom(LARGE // 20))
    write("second", os.urandom(LARGE))
    run("-H", "h1,h2", "--wdir", "/", "--", "true")  # the agent is there
    for end in (signal.SIGKILL, signal.SIGINT):
        world.limit("h1", SLOW)
        job = start("-H", "h1,h2", "--ship", "first", "--ship", "second", "--", "true")
        wait_for(lambda: len(files("h2")) == 2)
        wait_for(lambda: len(files("h1")) == 1 and being_made("h1"))
        first = files("h1")[0].lstat().st_ino
        os.kill(launcher(job), end)
        _, err = job.communicate(timeout=30)
        expect(job.returncode, -end, err)
        world.limit("h1", None)
        wait_for(lambda: not processes("h1") and not being_made("h1"))
        expect([path.lstat().st_ino for path in files("h1")], [first], "what is whole stays")
    expect(run("-H", "h1,h2", "--ship", "first", "--ship", "second", "--", "true").stdout, "")
    expect(first in [path.lstat().st_ino for path in files("h1")], True)


def a_slow_line_has_its_time_and_one_that_stands_still_is_told_how_far_it_had_come():
    write("large", os.urandom(LARGE))
    run("-H", "h1", "--wdir", "/", "--", "true")
    world.limit("h1", "8mbit")  # 20 s
    begin = time.monotonic()
    seen = run("-H", "h1", "--ship", "large", "--start-timeout", "8", "--", "true")
    assert re.search(r"waiting for h1: shipping 20 MB, \d+ %(, \d+ s left)?, for \d\.\d s\n", seen.stderr), seen.stderr
    assert time.monotonic() - begin > 8, "it was not slow"
    write("large", os.urandom(LARGE))
    job = start("-H", "h1", "--ship", "large", "--start-timeout", "8", "--", "true")
    wait_for(lambda: re.search(r"shipping 20 MB, [1-9]", job.stderr.readline()), limit_s=60)
    world.cut("h1")
    _, err = job.communicate(timeout=60)
    assert re.search(r"no agent on h1: [\d.]+ MB of 20 MB had been shipped to it in \d+\.\d s, and it took no more: .*; try by hand: ", err), err
    world.heal("h1")
    world.limit("h1", None)
    wait_for(lambda: not processes("h1") and not being_made("h1"), limit_s=30)


def a_long_list_of_files_has_its_time_on_a_slow_line_too():
    for k in range(20_000):  # 4.8 MB of names, of which ssh takes 2 MiB at once
        write(f"many/{k:0230}", b"")
    run("-H", "h1", "--wdir", "/", "--", "true")
    world.limit("h1", "2mbit")
    begin = time.monotonic()
    run("-H", "h1", "--ship", "many", "--start-timeout", "4", "--", "true")
    assert time.monotonic() - begin > 8, "it was not slow"
    world.limit("h1", None)


def who_is_cut_off_while_files_come_ends_after_the_heal():
    write("large", os.urandom(LARGE))
    run("-H", "h1", "--wdir", "/", "--", "true")
    world.limit("h1", SLOW)
    job = start("-H", "h1", "--ship", "large", "--", "true")
    wait_for(lambda: being_made("h1"))
    os.kill(launcher(job), signal.SIGSTOP)
    support.wait_until_still(lambda: [path.lstat().st_size for path in being_made("h1")])  # what is under way arrives, and is acknowledged
    world.cut("h1")
    os.kill(launcher(job), signal.SIGKILL)
    os.kill(job.pid, signal.SIGCONT)  # nsenter stops with its child
    job.communicate(timeout=30)
    world.reset("h0")  # which forgets the connection: no word of its end ever reaches h1
    world.heal("h1")
    world.limit("h1", None)
    wait_for(lambda: not processes("h1") and not being_made("h1"), limit_s=30)


def a_file_that_changes_meanwhile_is_named():
    write("a-first", os.urandom(LARGE))
    write("b-second", "text")
    run("-H", "h1", "--wdir", "/", "--", "true")
    for change in ("b-second", "a-first"):  # one that is still to come, and one that is on its way
        world.limit("h1", SLOW)
        job = start("-H", "h1", "--ship", "a-first", "--ship", "b-second", "--", "true")
        wait_for(lambda: being_made("h1") and any(path.lstat().st_size > LARGE // 100 for path in being_made("h1")))
        with world.path("h0", f"{PROJECT}/{change}").open("r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"xy")
        _, err = job.communicate(timeout=60)
        expect((job.returncode, err.splitlines()[-1]), (125, f'hvdrun: --ship: "{PROJECT}/{change}" has changed since hvdrun read it; start again when it is whole'), err)
        assert "no agent" not in err, err
        world.limit("h1", None)
        wait_for(lambda: not processes("h1") and not being_made("h1"))


def grow_old(host):
    for tree in (store(host) / "trees").iterdir():
        os.utime(tree, (0, time.time() - 31 * DAY_S))


def clean(*words):
    return world.run("h0", support.options.hvdrun, "clean", *words).stdout.splitlines()


def hvdrun_clean_leaves_what_ranks_wrote():
    write("large", os.urandom(LARGE))
    write("main.sh", "here=$(dirname $0); mkdir -p $here/out; echo weights >$here/out/checkpoint; echo log >$here/out/log; echo $here\n", 0o755)
    here = run("-H", "h1", "--ship", "large", "--ship", "main.sh", "--", "sh", "./main.sh").stdout.strip()
    grow_old("h1")
    [tree] = (store("h1") / "trees").iterdir()
    left = f'h1: left alone 2 files, 12 bytes, that ranks wrote in "{hosts.home("root", CACHE)}/trees/{tree.name}", which nobody has used for long; remove it when nobody needs them'
    expect(clean("-H", "h1", "--dry-run"), ["h1: would remove 19 MiB that were shipped, and that nobody has used for long", left])
    expect(clean("-H", "h1"), ["h1: removed 19 MiB that were shipped, and that nobody has used for long", left])
    expect((files("h1"), world.path("h1", f"{here}/out/checkpoint").read_text(), world.path("h1", f"{here}/large").exists()), ([], "weights\n", False))
    expect(clean("-H", "h1"), [left])
    expect(run("-H", "h1", "--ship", "large", "--ship", "main.sh", "--", "sh", "./main.sh").stdout.strip(), here)


def hvdrun_clean_removes_what_nobody_has_used_for_long():
    write("large", os.urandom(LARGE))
    write("hello", "#!/bin/sh\necho hello\n", 0o755)
    run("-H", "h1", "--ship", "large", "--", "true")
    grow_old("h1")
    run("-H", "h1", "--ship", "hello", "--", "./hello")
    for words, text, left in ((["--dry-run"], "would remove", 2), ([], "removed", 1)):
        expect(clean("-H", "h1", *words)[-1], f"h1: {text} 19 MiB that were shipped, and that nobody has used for long")
        expect((len(files("h1")), len(list((store("h1") / "trees").iterdir()))), (left, left))
    expect(run("-H", "h1", "--ship", "hello", "--", "./hello").stdout, "hello\n")


support.parse_options("allreduce")
cases = [a_bare_host_gets_a_program_and_the_libraries_it_lacks_once, libhvd_comes_with_its_part_for_gpus, a_new_program_comes_without_the_libraries_that_are_there,
         hosts_that_have_the_libraries_are_sent_none, a_host_without_the_loader_gets_the_c_library_and_others_keep_theirs,
         folders_and_words_of_the_command_are_found_there, what_was_changed_there_is_sent_again,
         what_ranks_write_beside_it_stays_whoever_starts_again, jobs_that_race_for_one_folder_all_start,
         places_that_cannot_take_it_are_passed_over, what_others_may_change_from_above_is_no_place_for_it, what_cannot_be_shipped_is_named_before_anything_starts,
         a_command_that_cannot_be_started_there_is_told_with_what_to_do,
         what_is_no_file_is_left_out_of_a_folder_and_a_dry_run_says_how_much_would_go, a_home_that_is_a_link_and_a_script_of_a_shipped_interpreter,
         a_slow_host_holds_nobody_up_and_a_broken_off_start_leaves_nothing, a_slow_line_has_its_time_and_one_that_stands_still_is_told_how_far_it_had_come,
         a_long_list_of_files_has_its_time_on_a_slow_line_too,
         who_is_cut_off_while_files_come_ends_after_the_heal, a_file_that_changes_meanwhile_is_named, hvdrun_clean_removes_what_nobody_has_used_for_long, hvdrun_clean_leaves_what_ranks_wrote]
support.main(*map(on_hosts, cases), why_not=hosts.why_not())
