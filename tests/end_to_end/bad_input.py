"""Bad input: one line that says what is wrong and what to do, the right exit status, and nothing started."""
import json
import os
import re
import resource
import subprocess
import tempfile

import support
from support import expect

UNCHANGED = dict(os.environ)


def says_what_to_do(text):
    """Behind a semicolon, or by what would be right in place of the user's own words, which are quoted."""
    return re.search(r"; \w|: try|, not | takes ", re.sub('"[^"]*"', '""', text))


def refused(folder, words, status, *parts, environment=None, output=subprocess.PIPE, before=None):
    """hvdrun with these words and a command that would leave a trace; it must not."""
    trace = os.path.join(folder, "trace")
    words = [trace if word == "TRACE" else word for word in words]
    seen = subprocess.run([support.options.hvdrun, *words], cwd=folder, env=environment or UNCHANGED, timeout=30,
                          stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, preexec_fn=before)
    text = seen.stderr.decode()
    expect(seen.returncode, status, (words, text))
    expect(seen.stdout or b"", b"", words)
    assert text.startswith("hvdrun: ") and text.endswith("\n") and text.count("\n") == 1 and len(text) < 1000, text
    assert says_what_to_do(text), text
    for part in parts:
        assert part in text, f"no {part!r} in {text!r}"
    assert not os.path.exists(trace), f"{words} started something"


TOUCH = ["touch", "TRACE"]


def how_many_ranks():
    with tempfile.TemporaryDirectory() as folder:
        for number in ("0", "-1", "abc", "1.5", "", "99999999999999999999"):
            refused(folder, ["-np", number, *TOUCH], 2, "-np takes")
        refused(folder, ["-np"], 2, "nothing follows")
        refused(folder, ["-np", "2"], 2, "no command", "hvdrun -np 2 ./train")
        refused(folder, ["-np", "2", "--"], 2, "no command")
        refused(folder, [], 2, "no command")
        refused(folder, ["agent"], 2, "hvdrun -np 2 ./agent")
        refused(folder, ["-np", "3", "-H", "localhost:2", *TOUCH], 2, "2 slots", "-np 3")
        no_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        refused(folder, TOUCH, 2, "hvdrun -np 2 touch ", environment=no_gpu)


def containers_without_dev_or_proc():
    for place, text in (("/dev", "/dev/null cannot be opened: No such file or directory; the container needs /dev mounted"),
                        ("/proc", "the container needs /proc: mount -t proc proc /proc"),
                        ("/proc/$$/task", "of a kernel that was built with CONFIG_PROC_CHILDREN")):
        line = f"mount -t tmpfs none {place} || exit 77; exec '{support.options.hvdrun}' -np 2 cat"
        seen = subprocess.run(["unshare", "--map-root-user", "--mount", "bash", "-c", line], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        if seen.returncode == 77 or seen.stderr.startswith(b"unshare: "):
            return "left out: no right to mount"
        expect(seen.returncode, 125, seen.stderr)
        expect(seen.stdout, b"")
        lines = seen.stderr.decode().splitlines()
        assert len(lines) == 1 and lines[0].startswith("hvdrun: ") and lines[0].endswith(text), seen.stderr


def programs_on_a_file_system_mounted_noexec():
    elsewhere = "lies on a file system mounted noexec; copy it to another"
    with tempfile.TemporaryDirectory() as folder:
        for command, text in (("./train", f'"./train" {elsewhere}'), ("train", f'"{folder}/train" {elsewhere}'),
                              ("./train.py", '"./train.py" has no permission to be executed; try: hvdrun -np 2 python')):
            line = (f"mount -t tmpfs -o noexec none {folder} || exit 77; cd {folder} && cp /bin/true train && cp train train.py && "
                    f"PATH=$PATH:{folder} exec '{support.options.hvdrun}' -np 2 {command}")
            seen = subprocess.run(["unshare", "--map-root-user", "--mount", "bash", "-c", line], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
            if seen.returncode == 77 or seen.stderr.startswith(b"unshare: "):
                return "left out: no right to mount"
            expect((seen.returncode, seen.stdout), (126, b""), seen.stderr)
            lines = seen.stderr.decode().splitlines()
            assert len(lines) == 1 and lines[0].startswith("hvdrun: " + text), seen.stderr
    return ""


def options_that_are_not_known_or_not_there_yet():
    with tempfile.TemporaryDirectory() as folder:
        refused(folder, ["-np", "2", "--hostsfile", "x", *TOUCH], 2, "did you mean --hostfile?")
        refused(folder, ["-np", "2", "--autotune", *TOUCH], 2, "--autotune is not supported yet")
        refused(folder, ["-np", "2", "--timeout", "soon", *TOUCH], 2, "--timeout takes")
        refused(folder, ["-np", "2", *TOUCH], 2, "HOROVOD_START_TIMEOUT",
                environment={**os.environ, "HOROVOD_START_TIMEOUT": "soon"})
        for hosts in (["-np", "2"], ["-H", "localhost:2"]):
            refused(folder, [*hosts, "--output-ranks", "0,5", *TOUCH], 2, "--output-ranks names rank 5")


def words_by_which_ssh_would_go_to_another_host():
    with tempfile.TemporaryDirectory() as folder:
        there = ["-H", "nowhere.invalid", "--ssh-command", "false"]
        for words, part in ((["foo"], "--ssh-arg=foo"), (["--"], "--ssh-arg=--"), (["-v", "-p"], "--ssh-arg=-p"), (["-n"], "--ssh-arg=-n")):
            given = there + [f"--ssh-arg={word}" for word in words]
            refused(folder, ["-np", "1", *given, *TOUCH], 2, part)
            for errand in ("clean", "devices"):
                refused(folder, [errand, *given], 2, part)
        seen = subprocess.run([support.options.hvdrun, *there, "--ssh-arg=-p", "--ssh-arg=22", "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
        expect(seen.returncode, 125, seen.stderr)


def host_lists():
    with tempfile.TemporaryDirectory() as folder:
        for hosts, part in (("a:", "column 1"), ("a:-1", "column 3"), ("a:2,,", "column 5"), ("x" * 65536, "at most 253"),
                            ("-oProxyCommand=x", "not a host name"), ("a;reboot", "not a host name"), ("", "empty word")):
            refused(folder, ["-np", "2", "-H", hosts, *TOUCH], 2, part)


# Each would leave a canary if a shell or ssh were given it; a file may hold what no list can.
HOSTILE = ["-oProxyCommand=touch${IFS}canary", "--", "-F/dev/null", "$(touch canary)", "`touch canary`", "a;touch canary", "a|touch canary", "a&touch canary",
           "a\ttouch\tcanary", "a>canary", "'a", '"a', "a\\\ntouch canary", "../canary", "a/../../canary", "~root", "*", "{a,b}", "user@-oProxyCommand=touch",
           "-oProxyCommand=touch@a", "$(touch canary)@a", "h\u00f6st", "h\u202est", "x" * 65536, "[$(touch canary)]:2", "[fe80::1%$(touch canary)]", "a[1-2;touch canary]"]
HOSTILE_BYTES = [b"a\0b", b"\0", b"a\x1b[2Jb", b"\xff\xfe", b"a\r touch canary", b"[::1\0]:2", b"localhost slots=$(touch canary)", b"localhost slots=2 ;touch canary"]


def hostile_host_names_are_refused_and_run_nowhere():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "hosts")
        for name in HOSTILE + HOSTILE_BYTES:
            text = name if isinstance(name, bytes) else name.encode()
            with open(path, "wb") as file:
                file.write(text + b"\n")
            refused(folder, ["-np", "2", "--hostfile", "hosts", *TOUCH], 2, "hosts:")
            if b"\0" not in text and not isinstance(name, bytes) and len(text) < 60_000:
                refused(folder, ["-np", "2", "-H", text, *TOUCH], 2)
        expect(os.listdir(folder), ["hosts"])


def host_files():
    with tempfile.TemporaryDirectory() as folder:
        refused(folder, ["--hostfile", "gone", *TOUCH], 2, '"gone"', "No such file")
        path = os.path.join(folder, "hosts")
        for content, part in ((b"localhost slots=2\nb slots=x\n", "hosts:2: "), (b"\n# only this\n", "no host"),
                              (b"\x7fELF\x00\x00", "hosts:1: "), (b"\n" * (2 << 20), "1 MiB")):
            with open(path, "wb") as file:
                file.write(content)
            refused(folder, ["--hostfile", "hosts", *TOUCH], 2, part)


def commands():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "train.py"), "w") as file:
            file.write("print(1)\n")
        for name in ("train.py", "./train.py"):
            refused(folder, ["-np", "2", name, "--lr", "1"], 126, "try: hvdrun -np 2 python", f"{name} --lr 1")
        refused(folder, ["-np", "2", "no-such-command"], 127, "not found")
        refused(folder, ["-np", "2", "./no-such-command"], 127, "No such file")
        refused(folder, ["-np", "2", folder], 126, "directory")
        refused(folder, ["-np", "2", "--wdir", "gone", *TOUCH], 2, "--wdir", "No such file")


def a_job_that_is_not_started_has_a_result_all_the_same():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        for words, code in ((["./no-such-command"], 127), (["/"], 126), (["--wdir", "/gone", "true"], 2), (["--dry-run", "./no-such-command"], 127)):
            with open(path, "w") as file:
                file.write('"an earlier job\'s"')
            seen = subprocess.run([support.options.hvdrun, "-np", "2", "--result-file", path, *words], stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=30)
            expect((seen.returncode, seen.stderr.count(b"\n")), (code, 1), seen.stderr)
            with open(path) as file:
                result = json.load(file)
            if code == 2 or words[0] == "--dry-run":
                expect(result, "an earlier job's", words)
                continue
            expect((result["cause"], result["exit_code"], result["size"]), ("not_started", code, 2))
            expect(f"hvdrun: {result['cause_text']}\n".encode(), seen.stderr)
        # Also where its folder would have come with the job.
        for output, path in (("logs", "logs/result.json"), ("a/b", "a/result.json"), ("ranks", "ranks/rank.1/result.json")):
            seen = subprocess.run([support.options.hvdrun, "-np", "2", "--output-filename", output, "--result-file", path, "./no-such-command"], cwd=folder,
                                  stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
            expect((seen.returncode, seen.stderr.count(b"\n")), (127, 1), seen.stderr)
            with open(os.path.join(folder, path)) as file:
                expect(json.load(file)["exit_code"], 127)
        expect(sorted(os.listdir(folder)), ["a", "logs", "ranks", "result.json"])


def places_that_cannot_be_written():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "file"), "w"):
            pass
        for place in ("file", "file/logs", "/proc/logs"):
            refused(folder, ["-np", "2", "--output-filename", place, *TOUCH], 2, place)
        for place in ("gone/result.json", "."):
            refused(folder, ["-np", "2", "--result-file", place, *TOUCH], 2, "--result-file")
        with open("/dev/full", "w") as full:
            refused(folder, ["--help"], 125, "No space left", output=full)
        with open(os.path.join(folder, "file"), "w") as output:
            refused(folder, ["-np", "2", "--result-file", "file", *TOUCH], 2, "--result-file", "hvdrun's output goes there", output=output)


def a_limit_that_the_output_files_exceed():
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(os.path.join(folder, "logs/rank.00"))
        earlier = os.path.join(folder, "logs/rank.00/stdout")
        with open(earlier, "w") as file:
            file.write("of an earlier job")
        refused(folder, ["-np", "32", "--output-filename", "logs", *TOUCH], 125, "64 files", "ulimit -n",
                before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)))
        expect(os.listdir(os.path.join(folder, "logs")), ["rank.00"])
        with open(earlier) as file:
            expect(file.read(), "of an earlier job")


def files_of_an_earlier_job_stay_when_no_host_comes():
    with tempfile.TemporaryDirectory() as folder:
        earlier = os.path.join(folder, "rank.0")
        os.mkdir(earlier)
        for name in ("stdout", "stderr"):
            with open(os.path.join(earlier, name), "w") as file:
                file.write("of an earlier job")
        result = os.path.join(folder, "result.json")
        seen = subprocess.run([support.options.hvdrun, "-np", "1", "-H", "198.51.100.1:1", "--ssh-command", "false", "--output-filename", folder,
                               "--result-file", result, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        assert seen.returncode == 125 and b"no agent on 198.51.100.1" in seen.stderr, seen.stderr
        for name in ("stdout", "stderr"):
            with open(os.path.join(earlier, name)) as file:
                expect(file.read(), "of an earlier job")
        with open(result) as file:
            expect(json.load(file)["exit_code"], 125)


def a_link_that_anybody_may_have_put_there():
    if os.geteuid() != 0:
        return "left out: only root can make another user's link"
    with tempfile.TemporaryDirectory() as folder:
        anybodys = os.path.join(folder, "tmp")
        os.mkdir(anybodys)
        os.chmod(anybodys, 0o1777)
        link, victim = os.path.join(anybodys, "result.json"), os.path.join(folder, "victim")
        with open(victim, "w") as file:
            file.write("precious")
        os.symlink(victim, link)
        os.lchown(link, 65534, 65534)
        refused(folder, ["-np", "2", "--result-file", link, *TOUCH], 2, "--result-file", f'the link "{link}" belongs to user 65534')
        os.unlink(link)  # it may come later
        words = ["sh", "-c", f"ln -s {victim} {link}; chown -h 65534 {link}"]
        seen = subprocess.run([support.options.hvdrun, "-np", "1", "--result-file", link, *words], timeout=60,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        expect(seen.returncode, 125, seen.stderr)
        assert f'cannot write the result file {link}: the link "{link}" belongs to user'.encode() in seen.stderr, seen.stderr
        with open(victim) as file:
            expect(file.read(), "precious")


def what_is_accepted_starts_exactly_the_ranks_asked_for():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "hosts"), "w") as file:
            file.write("# this machine\n\nlocalhost slots=4  # four\n")
        for words, count in ((["-np", "2", "-H", "localhost:4"], 2), (["-H", "localhost:3"], 3),
                             (["-H", "localhost:1,127.0.0.1:1"], 2), (["-np", "1", "--hostfile", "hosts"], 1),
                             (["--hostfile", "hosts"], 4), (["--num-proc=2", "--gloo"], 2)):
            seen = subprocess.run([support.options.hvdrun, *words, "--no-tag-output", "--", "sh", "-c", "echo $HOROVOD_SIZE"],
                                  cwd=folder, timeout=60, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
            expect(seen.returncode, 0, (words, seen.stderr))
            expect(seen.stdout.split(), [str(count).encode()] * count, words)


def a_host_without_slots_has_no_part_in_the_job():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "hosts"), "w") as file:
            file.write("head slots=0\nlocalhost slots=2\n")
        longer = ["--start-timeout", "4", "--", "sleep", "5"]  # than its agent may take to report
        jobs = [subprocess.Popen([support.options.hvdrun, *words, *longer], cwd=folder, stdin=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE) for words in (["-H", "node7:0,localhost:2"], ["--hostfile", "hosts"])]
        for job in jobs:
            said = job.communicate(timeout=60)[1]
            expect(job.returncode, 0, said)
        seen = subprocess.run([support.options.hvdrun, "-H", "node7:0,localhost:1", "sh", "-c", "kill -9 $PPID; sleep 60"],
                              timeout=60, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        expect(seen.returncode, 125, seen.stderr)
        assert b"the agent on localhost" in seen.stderr, seen.stderr


def an_output_directory_is_made_with_those_above_it():
    with tempfile.TemporaryDirectory() as folder:
        seen = subprocess.run([support.options.hvdrun, "-np", "2", "--output-filename", "deep/er/logs/", "--no-tag-output",
                               "echo", "hi"], cwd=folder, timeout=60, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        expect(seen.returncode, 0)
        for rank in "01":
            with open(os.path.join(folder, f"deep/er/logs/rank.{rank}/stdout")) as file:
                expect(file.read(), "hi\n")


def a_dry_run_starts_nothing_and_shows_no_value():
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace")
        seen = subprocess.run([support.options.hvdrun, "-np", "2", "-x", "TOKEN=secret", "--dry-run", "touch", trace],
                              cwd=folder, timeout=30, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        expect(seen.returncode, 0)
        assert b"TOKEN" in seen.stdout and b"secret" not in seen.stdout and b"1 of 2" in seen.stdout, seen.stdout
        # Also those that name the network between ranks.
        for hosts in ("localhost:2", "localhost:1,198.51.100.1:1"):
            seen = subprocess.run([support.options.hvdrun, "-H", hosts, "--dry-run", "touch", trace], cwd=folder, timeout=30,
                                  env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
            expect([name in seen.stdout.split() for name in (b"NCCL_SOCKET_IFNAME", b"GLOO_SOCKET_IFNAME")], [True] * 2, seen.stdout)
        expect(os.listdir(folder), [])


support.parse_options()
# AddressSanitizer itself needs /proc.
of_the_product = [] if support.options.sanitizers else [containers_without_dev_or_proc]
support.main(how_many_ranks, *of_the_product, programs_on_a_file_system_mounted_noexec,
             options_that_are_not_known_or_not_there_yet, words_by_which_ssh_would_go_to_another_host, host_lists, hostile_host_names_are_refused_and_run_nowhere, host_files, commands,
             a_job_that_is_not_started_has_a_result_all_the_same, places_that_cannot_be_written, a_limit_that_the_output_files_exceed, files_of_an_earlier_job_stay_when_no_host_comes,
             a_link_that_anybody_may_have_put_there,
             what_is_accepted_starts_exactly_the_ranks_asked_for, a_host_without_slots_has_no_part_in_the_job,
             an_output_directory_is_made_with_those_above_it, a_dry_run_starts_nothing_and_shows_no_value)
