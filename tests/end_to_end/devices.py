"""GPUs as hvdrun sees and hands them out, with stand-ins for nvidia-smi: none of this ran beside a real device."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import support
from support import expect

NO_DRIVER = ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver "
             "is installed and running.\n\n")
BARE = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


class Machine:
    """A folder with an nvidia-smi that gives these answers, by its first argument's beginning; put first on the PATH."""

    def __init__(self, folder, answers=None, script=None, place=None):
        self.folder = pathlib.Path(folder)
        self.log = self.folder / "asked"
        place = place or folder  # as its host knows it
        lines = ["#!/bin/sh", f'echo "$*" >>{place}/asked']
        for number, (words, text) in enumerate((answers or {}).items()):
            answer = self.folder / f"answer{number}"
            answer.write_text(text)
            lines.append(f'case "$*" in {words}*) exec cat {place}/answer{number};; esac')
        lines.append(script or "exit 0")
        program = self.folder / "nvidia-smi"
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)

    def environment(self, **variables):
        bare = {name: value for name, value in os.environ.items() if name not in BARE and not name.startswith("NCCL_")}
        return {**bare, "PATH": f"{self.folder}:{os.environ['PATH']}", **variables}

    def run(self, *words, limit=60, **variables):
        return subprocess.run([support.options.hvdrun, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=limit, env=self.environment(**variables))

    def asked(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


def machine(folder, count, parts=(), uses=(), free=80000, compute="Default", lost=(), place=None):
    """With so many GPUs, the first of them divided into the parts if there are any; these are lost."""
    mode = lambda i: "Enabled" if parts and i == 0 else "Disabled"
    rows = [f"{i}, GPU-{i}{i}aa, NVIDIA H100 80GB HBM3, 00000000:{i}9:00.0, {free}, 81559, {mode(i)}, {compute}, 550.54.14\n" for i in range(count)]
    for i in lost:
        rows[i] = f"{i}" + ", [GPU is lost]" * 8 + "\n"
    listed = [f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i}{i}aa)\n" for i in range(count)]
    listed[1:1] = [f"  MIG 3g.40gb     Device  {n}: (UUID: {part})\n" for n, part in enumerate(parts)]
    columns = "".join(f"\tGPU{i}" for i in range(count))
    matrix = "".join(f" GPU{i}" + "".join("\tX" if i == j else "\tOK" for j in range(count)) + "\t\n" for i in range(count))
    return Machine(folder, {"--query-gpu": "".join(rows) or "No devices were found\n", "--query-compute-apps": "".join(uses),
                            "-L": "".join(listed) or "No devices were found\n", "topo": f" {columns}\t\n{matrix}\nLegend:\n\n  X    = Self\n"}, place=place)


def rows(text):
    """(rank, GPU) of each."""
    return [tuple(line.split()[:2]) for line in text.splitlines() if re.match(r"[-\d]+ +\d+ ", line)]


def table(seen):
    return rows(seen.stdout)


def each_rank_has_a_gpu_of_its_own():
    for count in (1, 2, 8):
        with tempfile.TemporaryDirectory() as folder:
            seen = machine(folder, count).run("devices")
            expect((seen.returncode, seen.stderr), (0, ""))
            expect(table(seen), [(str(i), str(i)) for i in range(count)])
            expect("every other" in seen.stdout, count > 1)
            assert "00000000:09:00.0" in seen.stdout and "GPU-00aa" in seen.stdout, seen.stdout
    with tempfile.TemporaryDirectory() as folder:
        seen = machine(folder, 3, lost=[1], compute="Exclusive_Process").run("devices")
        expect((seen.returncode, seen.stderr, table(seen)), (0, "", [("0", "0"), ("1", "2")]))
        assert "trouble: GPU 1: nvidia-smi says GPU is lost\n" in seen.stdout and "compute mode: GPU 2 is in Exclusive_Process\n" in seen.stdout, seen.stdout
    with tempfile.TemporaryDirectory() as folder:
        seen = machine(folder, 2, uses=["GPU-11aa, 4321, python3, 10240\n"]).run("devices", "-np", "3")
        expect(table(seen), [("0", "0"), ("1", "1")])
        assert "no GPU left: rank 2; " in seen.stdout and "in use: GPU 1 by process 4321, python3, 10240 MiB\n" in seen.stdout, seen.stdout


def variables_that_hide_gpus_count():
    with tempfile.TemporaryDirectory() as folder:
        two = machine(folder, 3, parts=["MIG-a", "MIG-b"])
        for value, rows in (("2,1", ["2", "1"]), ("GPU-22", ["2"]), ("MIG-b,MIG-a", ["0"]), ("1,9,0", ["1"]), ("2,0,1", ["0"])):
            seen = two.run("devices", CUDA_VISIBLE_DEVICES=value)
            expect([gpu for rank, gpu in table(seen) if rank != "-"], rows, seen.stdout)
            expect(seen.stdout.count(" MIG-a\n"), 1)
            assert ", by CUDA_VISIBLE_DEVICES\n" in seen.stdout, seen.stdout
        seen = two.run("devices")  # CUDA shows a part alone
        expect((table(seen)[0], [rank for rank, _ in table(seen)[1:]], seen.returncode), (("0", "0"), ["-"] * 3, 0))
        assert seen.stdout.splitlines()[1].endswith(" MIG-a") and "left out: GPUs 1,2, by CUDA, which shows" in seen.stdout, seen.stdout
        for value in ("", "-1", "0,0", "GPU-22aa,GPU-2", "no\x1bne"):
            seen = two.run("devices", CUDA_VISIBLE_DEVICES=value)
            expect(seen.returncode, 1)
            assert re.fullmatch(r'hvdrun: CUDA_VISIBLE_DEVICES=".*" leaves no GPU; unset it, or name some\n', seen.stderr), seen.stderr
            expect(len(table(seen)), 5)


def troubles_are_told_in_a_line():
    def troubled(code, part, *words, **more):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            seen = Machine(folder, **more).run("devices", *words)
            expect((seen.returncode, seen.stdout, seen.stderr.count("\n")), (code, "", 1), seen.stderr)
            assert seen.stderr.startswith("hvdrun: ") and part in seen.stderr and "; " in seen.stderr, seen.stderr
            return time.monotonic() - begin
    troubled(1, "finds no GPU here", answers={"--query-gpu": "No devices were found\n"})
    troubled(125, "nvidia-smi says \"NVIDIA-SMI has failed because it couldn't", answers={"-": NO_DRIVER, "topo": NO_DRIVER})
    troubled(125, "ends in the middle", answers={"--query-gpu": "0, GPU-00aa, NVIDIA H1"})
    troubled(125, r'nvidia-smi says "\x00\xff\x1b]0;x\x07"', script=r"printf '\000\377\033]0;x\007\n'")
    troubled(125, "is not understood", answers={"--query-gpu": "0, GPU-00aa, x\n"})
    assert 1 < troubled(125, "does not answer", "--timeout", "1", script="exec sleep 600") < 30
    troubled(2, "takes no command", "./train")
    with tempfile.TemporaryDirectory() as folder:
        seen = machine(folder, 1).run("devices", "--ship", "x")
        expect((seen.returncode, seen.stdout), (2, ""))
        assert "--ship means nothing to hvdrun devices, which takes -np" in seen.stderr, seen.stderr
    if not os.path.exists("/dev/nvidia0"):
        seen = subprocess.run([support.options.hvdrun, "devices"], capture_output=True, text=True, env={"PATH": "/nowhere"})
        expect((seen.returncode, seen.stdout), (1, ""))
        assert seen.stderr.startswith("hvdrun: there is no GPU here: no /dev/nvidia0 that may be opened, and no nvidia-smi on the PATH; install"), seen.stderr


def said(seen):
    """Of standard error, without the line on threads."""
    return [line for line in seen.stderr.splitlines() if "OMP_NUM_THREADS" not in line]


PRINT = ["--", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"]


def printed(seen):
    return sorted(re.sub("<stdout>", "", line) for line in seen.stdout.splitlines())


def ranks_see_the_gpus_that_are_named():
    with tempfile.TemporaryDirectory() as folder:
        here = machine(folder, 3, parts=["MIG-a", "MIG-b"])
        seen = here.run("--devices", "2,1", *PRINT)
        expect((seen.returncode, printed(seen)), (0, ["[0]:2,1 PCI_BUS_ID", "[1]:2,1 PCI_BUS_ID"]), seen.stderr)
        expect(said(seen), ["hvdrun: -np is not given: starting 2 ranks, one for each GPU of --devices"])
        seen = here.run("-np", "1", "--devices", "GPU-22,GPU-1", *PRINT, CUDA_VISIBLE_DEVICES="1,2")
        if "has not answered yet" not in seen.stderr:
            expect((printed(seen), said(seen)), (["[0]:GPU-22aa,GPU-11aa"], []))
        seen = here.run("-np", "1", "--devices", "MIG-b,MIG-a", *PRINT)
        expect((printed(seen), said(seen)), (["[0]:MIG-b"], []))
        seen = here.run("-np", "2", "--devices", "MIG-b,MIG-a", "--share-gpu", *PRINT)
        expect((printed(seen), seen.returncode), (["[0]:MIG-b", "[1]:MIG-a"], 0))
        seen = here.run("-np", "2", "--devices", "MIG-b,MIG-a", *PRINT)
        expect((seen.returncode, seen.stdout), (2, ""))
        assert 'word 2, "MIG-a", is a part of the same GPU as word 1' in said(seen)[-1], seen.stderr
        for wanted in (["--devices", "1,2"], ["--devices", "GPU-1"]):
            seen = here.run("devices", "-np", "1", *wanted, CUDA_VISIBLE_DEVICES="2")
            expect((table(seen)[0], seen.returncode), (("0", "1"), 0))
            assert ", by --devices\n" in seen.stdout, seen.stdout
        expect([gpu for _, gpu in table(here.run("devices", "-np", "3", "--devices", "1,2", "--share-gpu"))], ["1", "2", "1", "0", "0", "0"])


def waits_for_go(folder, first=":"):
    """Ranks do this first, and run until the folder has a file `go`; `fifo` is there already."""
    return ["bash", "-c", f"{first}; until [ -e {folder}/go ]; do read -t 0.02 <>{folder}/fifo; done; exit 0"]


def communicated(job):
    out, err = job.communicate(timeout=60)
    return job.returncode, out, err


def beside_two_gpus(words, PATH=os.environ["PATH"], during=None, **variables):
    """In a /dev of its own, with two of the driver's files; None: there is no right to mount. `during` is called beside the job."""
    with tempfile.TemporaryDirectory() as folder:
        here = machine(folder, 2)
        line = (f"mount -t tmpfs none {folder} && mkdir {folder}/dev && cd {folder}/dev && touch null nvidia0 nvidia1 nvidiactl && "
                f"mount --bind /dev/null null && mount --rbind {folder}/dev /dev || exit 77; exec '{support.options.hvdrun}' \"$@\"")
        job = subprocess.Popen(["unshare", "--map-root-user", "--mount", "bash", "-c", line, "bash", *words], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=here.environment(PATH=PATH, **variables))
        if during:
            during(job)
        seen = subprocess.CompletedProcess(words, *communicated(job))
        return None if seen.returncode == 77 or seen.stderr.startswith("unshare: ") else seen


def without_np_there_is_a_rank_for_each_gpu():
    started = beside_two_gpus
    show = ["--", "bash", "-c", "echo $WORLD_SIZE $CUDA_VISIBLE_DEVICES"]
    seen = started(show)
    if seen is None:
        return "left out: no right to mount"
    expect((printed(seen), said(seen)), (["[0]:2", "[1]:2"], ["hvdrun: -np is not given: starting 2 ranks, one for each GPU of this machine"]), seen.stderr)
    one = ["hvdrun: -np is not given: starting 1 rank, for the GPU of this machine"]
    for value, variables, words in (("1", {"CUDA_VISIBLE_DEVICES": "1"}, []), ("GPU-7", {"CUDA_VISIBLE_DEVICES": "GPU-7"}, []),
                                    ("1", {}, ["-x", "CUDA_VISIBLE_DEVICES=1"]), ("MIG-a,MIG-b", {"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, [])):
        seen = started([*words, *show], **variables)
        expect((printed(seen), said(seen)), ([f"[0]:1 {value}"], one), seen.stderr)
    seen = started(["--devices", "1", *show])
    expect((printed(seen), seen.returncode), (["[0]:1 1"], 0), seen.stderr)
    seen = started(["--devices", "1,2", *show])
    expect((seen.returncode, seen.stdout), (2, ""))
    assert 'word 2, "2", names none of the 2 GPUs here; ' in seen.stderr, seen.stderr
    seen = started(["devices"])
    expect((seen.returncode, seen.stdout), (125, ""))
    assert "nvidia-smi, which tells of GPUs, is not on the PATH" in seen.stderr, seen.stderr
    expect(printed(started(["-np", "3", *show])), ["[0]:3", "[1]:3", "[2]:3"])


def jobs_beside_gpus_look_at_them_unless_they_are_hidden():
    in_use = "hvdrun: GPU 1 is in use by process 1 (first, 5 MiB); hvdrun devices tells of all"
    for words, variables, notes in ((["-np", "2"], {}, [in_use]), (["-H", "localhost:2"], {}, [in_use]), (["-np", "1"], {}, []),
                                    (["-np", "1", "-x", "CUDA_VISIBLE_DEVICES=1"], {}, [in_use]), (["-np", "2", "--log-level", "error"], {}, None),
                                    (["-np", "2"], {"CUDA_VISIBLE_DEVICES": ""}, None), (["-np", "2", "-x", "CUDA_VISIBLE_DEVICES=-1"], {}, None)):
        with tempfile.TemporaryDirectory() as folder:
            there = machine(folder, 2, uses=["GPU-11aa, 1, first, 5\n"])
            os.mkfifo(there.folder / "fifo")
            told = []

            def during(job):
                if notes:
                    told.append(job.stderr.readline().rstrip("\n"))
                support.wait_for(lambda: notes is None or job.poll() is not None or len(there.asked()) == 2)
                (there.folder / "go").touch()
            seen = beside_two_gpus([*words, "--", *waits_for_go(folder)], PATH=there.environment()["PATH"], during=during, **variables)
            if seen is None:
                return "left out: no right to mount"
            expect((seen.returncode, told + said(seen)), (0, notes or []), words)
            expect(len(there.asked()), 0 if notes is None else 2, words)


def who_need_not_use_gpus_waits_for_none():
    """And nothing of a look that is under way is left."""
    with tempfile.TemporaryDirectory() as folder:
        there = Machine(folder, script=f"cat {folder}/fifo")
        os.mkfifo(there.folder / "fifo")
        seen = beside_two_gpus(["-np", "2", "--", "bash", "-c", f"until [ -e {folder}/asked ]; do :; done"], PATH=there.environment()["PATH"])
        if seen is None:
            return "left out: no right to mount"
        expect((seen.returncode, said(seen)), (0, []))
        support.wait_for(lambda: not any(folder in support.read(pid, "cmdline") for pid in os.listdir("/proc") if pid.isdigit()))


def wrong_lists_start_nothing():
    with tempfile.TemporaryDirectory() as folder:
        here = machine(folder, 2)
        for words, variables, part in ((["0,2"], {}, 'word 2, "2", names none of the 2 GPUs here'),
                                       (["GPU-11,GPU-11a"], {}, 'word 2, "GPU-11a", is the same GPU as word 1'),
                                       (["GPU-3"], {}, 'word 1, "GPU-3", names none'), (["0,0"], {}, 'word 2, "0", is there as word 1'),
                                       (["0"], {"CUDA_VISIBLE_DEVICES": "1"}, 'word 1, "0", is not among what CUDA_VISIBLE_DEVICES leaves'),
                                       (["0", "-np", "2"], {}, '2 ranks on "localhost", but --devices names 1 GPU; start 1')):
            for more in ([], ["--dry-run"]):
                seen = here.run("--devices", *words, *more, "--", "echo", "started", **variables)
                expect((seen.returncode, seen.stdout), (2, ""), seen.stderr)
                assert part in said(seen)[-1], seen.stderr
    with tempfile.TemporaryDirectory() as folder:
        seen = Machine(folder, {"-L": NO_DRIVER}).run("--devices", "GPU-1", "echo", "started")
        expect((seen.returncode, seen.stdout), (125, ""))
        assert said(seen)[-1].startswith("hvdrun: --devices cannot be used: nvidia-smi says \"NVIDIA-SMI has failed"), seen.stderr
    with tempfile.TemporaryDirectory() as folder:
        seen = Machine(folder, script="exec sleep 600").run("--devices", "GPU-1", "echo", "started")
        expect((seen.returncode, seen.stdout), (0, "[0]<stdout>:started\n"))
        assert any("the GPUs of --devices go unchecked: nvidia-smi does not answer" in line for line in said(seen)), seen.stderr


def jobs_that_ask_for_no_gpu_are_left_alone():
    with tempfile.TemporaryDirectory() as folder:
        here = machine(folder, 1)
        seen = here.run("-np", "3", *PRINT)
        expect((seen.returncode, printed(seen), said(seen)), (0, ["[0]:", "[1]:", "[2]:"], []))
        seen = here.run("-np", "2", *PRINT, CUDA_VISIBLE_DEVICES="0")
        expect((printed(seen), said(seen)), (["[0]:0", "[1]:0"], []))
        expect(here.asked(), [])


def ranks_share_a_gpu_as_hosts_of_their_own():
    with tempfile.TemporaryDirectory() as folder:
        here = machine(folder, 1)
        show = ["--", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES $NCCL_HOSTID $NCCL_NET $NCCL_SOCKET_IFNAME"]
        seen = here.run("-np", "2", "--devices", "0", "--share-gpu", *show)
        expect((seen.returncode, printed(seen)), (0, ["[0]:0 hvd-0 Socket =lo", "[1]:0 hvd-1 Socket =lo"]), seen.stderr)
        expect(said(seen), ["hvdrun: --share-gpu is for trying a program out: NCCL moves everything through sockets, slowly"])
        seen = here.run("-np", "2", "--share-gpu", "-x", "NCCL_NET=IB", *show)
        expect(printed(seen), ["[0]:hvd-0 IB =lo", "[1]:hvd-1 IB =lo"])
        assert "NCCL_NET is set to something else than --share-gpu needs (Socket) and wins" in seen.stderr, seen.stderr


def nccl_tells_in_the_ranks_that_are_asked():
    with tempfile.TemporaryDirectory() as folder:
        here = machine(folder, 1)
        tell = ["--", "bash", "-c", "[ -z $NCCL_DEBUG ] || echo told $RANK $NCCL_DEBUG >$NCCL_DEBUG_FILE"]
        seen = here.run("-np", "3", "--nccl-debug", "1-2", *tell)
        expect(sorted(said(seen)), ["[1]<stderr>:told 1 INFO", "[2]<stderr>:told 2 INFO"])
        out = pathlib.Path(folder) / "100%h"
        for place in (out, out.name):
            seen = subprocess.run([support.options.hvdrun, "-np", "3", "--nccl-debug", "1", "--output-filename", place, "--wdir", "/", *tell[:3],
                                   tell[3].replace("$NCCL_DEBUG_FILE", '"${NCCL_DEBUG_FILE//%%/%}"')],
                                  cwd=folder, env=here.environment(), capture_output=True, text=True, timeout=60)
            expect((seen.returncode, said(seen)), (0, []))
            file = out / "rank.1" / "nccl"
            expect(file.read_text(), "told 1 INFO\n")
            file.unlink()
            assert not (out / "rank.0" / "nccl").exists()


def kernels_are_fixed_or_waited_for():
    with tempfile.TemporaryDirectory() as folder:
        seen = machine(folder, 1).run("-np", "1", "--deterministic", "--launch-blocking", "--", "bash", "-c",
                                      "echo $NCCL_ALGO $NCCL_PROTO $NCCL_MIN_NCHANNELS $NCCL_MAX_NCHANNELS $CUBLAS_WORKSPACE_CONFIG $CUDA_LAUNCH_BLOCKING")
        expect((printed(seen), said(seen)), (["[0]:Ring Simple 8 8 :4096:8 1"], []))


def job_that_waits(here, *words, first=":", **variables):
    return subprocess.Popen([support.options.hvdrun, *words, "--", *waits_for_go(here.folder, first)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=here.environment(**variables))


def until_in_time(attempt):
    """Whom the machine keeps for so long that ranks wait for nvidia-smi no longer tries again."""
    assert any("has not answered yet" not in attempt() for _ in range(10))


def ranks_start_when_the_look_is_over():
    for hosts in ([], ["--pretend-hosts", "2x1"]):
        def attempt():
            with tempfile.TemporaryDirectory() as folder:
                here = Machine(folder, script=f"""exec 3<>{folder}/fifo; timeout 0.3 cat <&3
case "$*" in --query-gpu*) echo 0, GPU-00aa, H100, 00000000:09:00.0, 300, 81559, Disabled, Default, 1;; *) echo GPU-00aa, 999999999, elsewhere, 5;; esac
echo answered >>{folder}/asked""")
                os.mkfifo(here.folder / "fifo")
                seen = here.run("-np", "2", *hosts, "-x", "CUDA_VISIBLE_DEVICES=0", "--share-gpu", "--", "bash", "-c", f"echo started >>{folder}/asked")
                expect(seen.returncode, 0, seen.stderr)
                if "has not answered yet" not in seen.stderr:
                    expect(said(seen)[-1], "hvdrun: GPU 0 is in use by process 999999999 (elsewhere, 5 MiB); hvdrun devices tells of all")
                    expect(here.asked()[2:], ["answered"] * 2 + ["started"] * 2)
                return seen.stderr
        until_in_time(attempt)


def who_waits_for_the_look_can_be_interrupted():
    def attempt():
        with tempfile.TemporaryDirectory() as folder:
            here = Machine(folder, script="exec sleep 600")
            os.mkfifo(here.folder / "fifo")
            job = job_that_waits(here, "-np", "1", "--share-gpu", first="echo started")
            support.wait_for(lambda: len(here.asked()) == 2)
            job.send_signal(signal.SIGINT)
            out, err = job.communicate(timeout=60)
            if b"has not answered yet" not in err:
                expect((job.returncode, out), (-signal.SIGINT, b""), err)
                assert b"hvdrun: interrupted; ending the ranks" in err, err
            return err.decode()
    until_in_time(attempt)


def a_gpu_for_one_process_is_not_shared():
    def started(folder, *words, **variables):
        here = machine(folder, 1, compute="Exclusive_Process")
        seen = here.run(*words, "--", "echo", "started", **variables)
        return seen, "has not answered yet" in seen.stderr

    def attempt():
        with tempfile.TemporaryDirectory() as folder:
            seen, late = started(folder, "-np", "2", "--share-gpu")
            if not late:
                expect((seen.returncode, seen.stdout), (125, ""), seen.stderr)
                assert "--share-gpu: GPU 0 is in compute mode Exclusive_Process, which lets one process use it; change" in seen.stderr, seen.stderr
            return seen.stderr
    until_in_time(attempt)
    for words, variables in ((["-np", "1"], {}), (["-np", "2"], {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"})):
        with tempfile.TemporaryDirectory() as folder:
            seen, _ = started(folder, *words, "--share-gpu", **variables)
            expect((seen.returncode, seen.stdout.count("started")), (0, int(words[1])), seen.stderr)


def parts_are_found_out_where_a_gpu_is_divided():
    with tempfile.TemporaryDirectory() as folder:
        here = machine(folder, 1, parts=["MIG-a", "MIG-b"], uses=["MIG-b, 1, second, 5\n", "MIG-a, 1, first, 5\n"])
        os.mkfifo(here.folder / "fifo")
        job = job_that_waits(here, "-np", "1", "--share-gpu")  # CUDA shows it the first part
        expect(support.wait_for_words(job, b"hvdrun: GPU "), b"hvdrun: GPU 0 is in use by process 1 (first, 5 MiB); hvdrun devices tells of all\n")
        (here.folder / "go").touch()
        job.communicate(timeout=60)
        expect((job.returncode, len(here.asked())), (0, 3))
        seen = here.run("--devices", "0", "--", "echo", "started")
        expect((seen.returncode, seen.stdout), (2, ""))
        assert 'word 1, "0", is divided (MIG), and CUDA uses its parts alone; name MIG devices: MIG-a,MIG-b' in said(seen)[-1], seen.stderr


def gpus_in_use_are_said():
    for uses, free, words in ((["GPU-11aa, 1, python3, 10240\n", "GPU-00aa, 1, other, 5\n"], 80000,
                               b"hvdrun: GPU 1 is in use by process 1 (python3, 10240 MiB); hvdrun devices tells of all\n"),
                              ([], 300, b"hvdrun: GPU 1 has 300 of 81559 MiB free; hvdrun devices tells of all\n")):
        for options in (["--devices", "1"], ["-np", "1", "--share-gpu", "-x", "CUDA_VISIBLE_DEVICES=1,0"]):
            with tempfile.TemporaryDirectory() as folder:
                here = machine(folder, 2, uses=uses, free=free)
                os.mkfifo(here.folder / "fifo")
                job = job_that_waits(here, *options)
                expect(support.wait_for_words(job, b"hvdrun: GPU "), words)
                (here.folder / "go").touch()
                _, err = job.communicate(timeout=60)
                expect((job.returncode, err), (0, b""))


def nobody_waits_for_who_does_not_answer():
    with tempfile.TemporaryDirectory() as folder:
        here = Machine(folder, {"-L": "GPU 0: H100 (UUID: GPU-00aa)\n"}, script="exec sleep 600")
        seen = here.run("--devices", "0", "--", "echo", "done")
        expect((seen.returncode, seen.stdout), (0, "[0]<stdout>:done\n"))
        expect(said(seen)[1:], ["hvdrun: nvidia-smi has not answered yet, and ranks start: who else uses their GPUs is said when it is known"])
        expect(len(here.asked()), 3)
        os.mkfifo(here.folder / "fifo")
        job = job_that_waits(here, "--devices", "0")
        expect(support.wait_for_words(job, b"does not answer"), b"hvdrun: nvidia-smi does not answer; try it by hand: where that hangs too, the driver does\n")
        (here.folder / "go").touch()
        job.communicate(timeout=60)
        expect(job.returncode, 0)


def own_ranks_are_no_strangers():
    """Nor is who cannot be told from them; and the memory that they have may be theirs."""
    with tempfile.TemporaryDirectory() as folder:
        here = Machine(folder, {"-L": "GPU 0: H100 (UUID: GPU-00aa)\nGPU 1: H100 (UUID: GPU-11aa)\n"}, script=f"""until read -r pid 2>&- <{folder}/pid; do :; done
case "$*" in --query-gpu*) for i in 0 1; do echo $i, GPU-$i${{i}}aa, H100, 00000000:09:00.0, 300, 81559, Disabled, Default, 1; done;;
*) echo GPU-00aa, $pid, rank, 5; echo GPU-00aa, 999999999, elsewhere, 5; echo GPU-11aa, 1, first, 5;; esac""")
        os.mkfifo(here.folder / "fifo")
        job = job_that_waits(here, "-np", "2", "--devices", "0,1", first=f"[ $RANK = 1 ] || {{ echo $$ >{folder}/new; mv {folder}/new {folder}/pid; }}")
        expect(support.wait_for_words(job, b"hvdrun: GPU "), b"hvdrun: GPU 1 is in use by process 1 (first, 5 MiB); hvdrun devices tells of all\n")
        (here.folder / "go").touch()
        job.communicate(timeout=60)
        expect(job.returncode, 0)


if __name__ == "__main__":
    support.parse_options()
    support.main(each_rank_has_a_gpu_of_its_own, variables_that_hide_gpus_count, troubles_are_told_in_a_line, without_np_there_is_a_rank_for_each_gpu,
                 ranks_see_the_gpus_that_are_named, wrong_lists_start_nothing, jobs_that_ask_for_no_gpu_are_left_alone,
                 ranks_share_a_gpu_as_hosts_of_their_own, nccl_tells_in_the_ranks_that_are_asked, kernels_are_fixed_or_waited_for,
                 jobs_beside_gpus_look_at_them_unless_they_are_hidden, who_need_not_use_gpus_waits_for_none,
                 a_gpu_for_one_process_is_not_shared, parts_are_found_out_where_a_gpu_is_divided, ranks_start_when_the_look_is_over, who_waits_for_the_look_can_be_interrupted,
                 gpus_in_use_are_said, nobody_waits_for_who_does_not_answer, own_ranks_are_no_strangers)
