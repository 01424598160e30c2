"""GPUs of other hosts, with stand-ins for nvidia-smi there: none of this ran beside a real device."""
import pathlib
import re

import devices
import support
from remote_jobs import hosts
from support import expect

world = None  # hosts.on_hosts()


def equip(host, count, **more):
    """What the host's nvidia-smi says: a folder of its own, bound over one that is on its PATH."""
    folder = f"/run/smi-{host}"
    seen_here = pathlib.Path(world.path(host, folder))
    seen_here.mkdir()
    devices.machine(seen_here, count, place=folder, **more)
    world.run(host, "mount", "--bind", folder, "/usr/local/sbin")


def asked(host):
    log = pathlib.Path(world.path(host, f"/run/smi-{host}/asked"))
    return log.read_text() if log.exists() else ""


def run(*words):
    return world.run("h0", support.options.hvdrun, *words, check=False)


def each_host_tells_of_its_own():
    equip("h1", 2, uses=["GPU-11aa, 4321, python3, 10240\n"])
    equip("h2", 1)
    seen = run("devices", "-H", "h1:2,h2:2")
    expect((seen.returncode, seen.stderr), (0, ""))
    parts = dict(re.findall(r"(h\d):\n((?:.+: .*\n|.*  .*\n)+)", seen.stdout))
    first, second = parts["h1"], parts["h2"]
    expect((devices.rows(first), devices.rows(second)), ([("0", "0"), ("1", "1")], [("2", "0")]))
    assert "in use: GPU 1 by process 4321, python3, 10240 MiB\n" in first and "no GPU left: rank 3; " in second, seen.stdout
    seen = run("devices", "-H", "h1")
    expect((seen.returncode, devices.rows(seen.stdout)), (0, [("0", "0"), ("-", "1")]))
    seen = run("devices", "-H", "h1", "--devices", "1,0")
    expect(devices.rows(seen.stdout), [("0", "1"), ("1", "0")])


def hosts_without_gpus_are_named():
    equip("h1", 1)
    seen = run("devices", "-H", "h1:1,h2:1,nowhere:1")
    expect((seen.returncode, devices.rows(seen.stdout)), (125, [("0", "0")]))
    lines = sorted(seen.stderr.splitlines())
    expect(len(lines), 2, lines)
    assert lines[0].startswith("hvdrun: h2: there is no GPU here: no /dev/nvidia0 that may be opened, and no nvidia-smi on the PATH"), lines
    assert lines[1].startswith("hvdrun: nowhere: cannot be asked: its name is not known here"), lines
    seen = run("devices", "-H", "h1:1,h2:1", "--devices", "1")
    expect(seen.returncode, 2)
    assert "hvdrun: h1: --devices: word 1, \"1\", names none of the 1 GPU here" in seen.stderr, seen.stderr
    expect(run("devices", "-H", "h2").returncode, 1)


def ranks_there_see_the_gpus_that_are_named():
    seen = run("--devices", "2,1", "-H", "h1,h2", "--", "bash", "-c", "echo $CUDA_VISIBLE_DEVICES")
    expect((seen.returncode, sorted(seen.stdout.splitlines())), (0, [f"[{rank}]<stdout>:2,1" for rank in range(4)]), seen.stderr)
    seen = run("--devices", "0", "-H", f"h1,{world.address('h1')}", "--", "echo", "started")
    expect((seen.returncode, seen.stdout), (125, ""))
    assert '2 ranks on "h1", but --devices names 1 GPU; start 1 there' in seen.stderr, seen.stderr
    words = ["-np", "2", "-H", "h0:1,h1:1", "--nccl-debug", "0-1", "--output-filename", "/tmp/out", "--", "bash", "-c", "echo told >$NCCL_DEBUG_FILE"]
    expect(run(*words).returncode, 0)
    read = lambda name: world.path("h0", f"/tmp/out/{name}").read_text()
    expect((read("rank.0/nccl"), read("rank.0/stderr"), read("rank.1/stderr")), ("told\n", "", "[1]<stderr>:told\n"))


def a_job_tells_of_gpus_elsewhere_before_it_starts():
    equip("h1", 2, uses=["GPU-11aa, 4321, python3, 10240\n"])
    equip("h2", 1, compute="Exclusive_Process")
    in_use = "hvdrun: h1: GPU 1 is in use by process 4321 (python3, 10240 MiB); hvdrun devices tells of all"

    def attempt(*words, command=("echo", "started")):
        """Whom the machine keeps for so long that ranks wait no longer tries again."""
        for _ in range(10):
            seen = run(*words, "--", *command)
            if "has not answered yet" not in seen.stderr:
                return seen
        raise AssertionError(seen.stderr)
    for words in (["--devices", "0,1", "-H", "h1"], ["-np", "1", "-H", "h1:1", "--devices", "GPU-1"]):
        seen = attempt(*words)
        expect((seen.returncode, "started" in seen.stdout), (0, True), seen.stderr)
        assert in_use in seen.stderr.splitlines(), seen.stderr
    seen = attempt("-np", "2", "-H", "h1:2", "--devices", "GPU-11,GPU-0", command=["bash", "-c", "echo $CUDA_VISIBLE_DEVICES"])
    expect(sorted(seen.stdout.splitlines()), ["[0]<stdout>:GPU-11aa,GPU-00aa", "[1]<stdout>:GPU-11aa,GPU-00aa"])
    for words, part in ((["-np", "3", "-H", "h1:1,h2:2", "--share-gpu"], "h2: --share-gpu: GPU 0 is in compute mode Exclusive_Process, which lets one"),
                        (["-np", "1", "-H", "h1:1", "--devices", "GPU-33"], 'h1: --devices: word 1, "GPU-33", names none of the 2 GPUs here')):
        seen = attempt(*words)
        expect((seen.returncode, seen.stdout), (125, ""), seen.stderr)
        assert part in seen.stderr, seen.stderr
    before = asked("h1")
    expect(run("-np", "2", "-H", "h1:1,h2:1", "--", "echo").returncode, 0)
    expect(asked("h1"), before)


if __name__ == "__main__":
    support.parse_options()
    cases = [each_host_tells_of_its_own, hosts_without_gpus_are_named, ranks_there_see_the_gpus_that_are_named,
             a_job_tells_of_gpus_elsewhere_before_it_starts]
    support.main(*map(hosts.on_hosts, cases), why_not=hosts.why_not())
