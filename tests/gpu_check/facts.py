"""What has to be known of a result: the machine, its GPU and who else uses it, libraries and variables."""
import datetime
import os
import re
import socket

import environment
import place as places  # first: it knows where the next ones are
import machine
import support
import torch_part
from verdicts import CouldNotRun, Failed

NO_GPU = 4  # what device_worker ends with
DEVICE_LIMIT_S, NVIDIA_SMI_LIMIT_S, TORCH_LIMIT_S = 20, 5, 20
DESCRIBE_LIMIT_S = DEVICE_LIMIT_S + NVIDIA_SMI_LIMIT_S + TORCH_LIMIT_S

NOT_TOLD = "not told"
EXCLUSIVE = "Exclusive_Process"
GPU_FIELDS = ("uuid", "pci.bus_id", "compute_mode", "mig.mode.current", "memory.free", "memory.total", "persistence_mode")
USE_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")


class NotUsable(Exception):
    """There is nothing to check with: no GPU, no NCCL. The text is a line."""


def describe(place, commit):
    """(facts by name, why nothing can be checked or ""). Tells the place what it has to know."""
    facts = {
        "stand_ins": False,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "hostname": socket.gethostname(),
        "kernel_driver": kernel_driver(),
        "commit": commit_of(commit),
        "build": place.build,
    }
    place.begin(TORCH_LIMIT_S)
    place.torch = torch_part.find(place)
    if environment.NCCL not in place.environment:
        if library := environment.nccl_library(place.build, place.torch.folder):
            place.environment[environment.NCCL] = library
    facts["variables"] = environment.shown(place.environment)
    facts["variables_left_out"] = place.left_out
    facts["nccl_files"] = environment.nccl_files()
    try:
        facts |= device(place)
        facts |= use(place, facts["pci"])
    except NotUsable as error:
        return facts, str(error)
    facts["torch"] = torch(place)
    return facts, ""


def device(place):
    """As a rank would find them. NotUsable without a GPU, or where it does not answer."""
    place.begin(DEVICE_LIMIT_S)
    try:
        ended = place.run([place.program("device_worker"), "describe"])
    except Failed as error:
        raise NotUsable(f"no GPU can be used here, CUDA or NCCL does not answer: {error}") from None
    if ended.status == places.LOADER_FAILED:
        raise places.NotBuilt(f"device_worker does not start: {last_line(ended)}")
    if ended.status:
        what = "there is no GPU here" if ended.status == NO_GPU else "no GPU can be used here"
        raise NotUsable(f"{what}: {last_line(ended)}")
    said = dict(re.findall(r"^([A-Za-z -]+): (.*)$", ended.out, re.MULTILINE))
    wanted = ("device", "PCI", "GPUs", "CUDA", "driver library", "NCCL library", "stand-ins")
    if missing := [name for name in wanted if name not in said]:
        raise NotUsable(f"device_worker does not tell {', '.join(missing)}: {ended.words()}")
    place.stand_ins, place.gpus = said["stand-ins"] != "no", int(said["GPUs"])
    return {"stand_ins": place.stand_ins, "device": said["device"], "pci": said["PCI"], "gpus": place.gpus, "cuda_of_the_driver": said["CUDA"],
            "driver_library": said["driver library"], "nccl_library": said["NCCL library"]}


def last_line(ended):
    return (ended.err.strip() or ended.words()).splitlines()[-1]


def use(place, pci):
    """As nvidia-smi tells it, of this GPU."""
    place.begin(NVIDIA_SMI_LIMIT_S)
    facts = {"mps": mps(place.environment)}
    try:
        gpu = next(row for row in ask(place, "gpu", GPU_FIELDS) if bus(row["pci.bus_id"]) == bus(pci))
        users = [f"{row['process_name']} ({row['pid']}), {row['used_memory']} MiB" for row in ask(place, "compute-apps", USE_FIELDS) if row["gpu_uuid"] == gpu["uuid"]]
    except StopIteration:
        return {**facts, "nvidia_smi": f"tells of no GPU at {pci}"}
    except CouldNotRun as error:
        return {**facts, "nvidia_smi": str(error)}
    place.exclusive = gpu["compute_mode"] == EXCLUSIVE and facts["mps"] == "no"
    return {**facts, "uuid": gpu["uuid"], "compute_mode": gpu["compute_mode"], "mig": gpu["mig.mode.current"], "persistence": gpu["persistence_mode"],
            "free_memory": f"{gpu['memory.free']} of {gpu['memory.total']} MiB", "other_processes": users}


def ask(place, what, fields):
    try:
        ended = place.run(["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"])
    except FileNotFoundError:
        raise CouldNotRun("there is none on the PATH") from None
    except Failed as error:
        raise CouldNotRun(str(error)) from None
    if ended.status:
        raise CouldNotRun(ended.words())
    rows = [row.split(", ") for row in ended.out.splitlines()]
    return [dict(zip(fields, row)) for row in rows if len(row) == len(fields)]


def bus(address):
    """"00000000:19:00.0" is nvidia-smi's for "0000:19:00.0"."""
    return address.lower().rsplit(":", 2)[-2:], int(address.split(":", 1)[0], 16)


def mps(variables):
    """Ranks that share a GPU run beside each other under it, not in turn."""
    if folder := variables.get("CUDA_MPS_PIPE_DIRECTORY"):
        return f"CUDA_MPS_PIPE_DIRECTORY={folder}"
    running = [pid for pid in os.listdir("/proc") if pid.isdigit() and support.read(pid, "comm").startswith("nvidia-cuda-mps")]
    return f"runs, process {', '.join(running)}" if running else "no"


def torch(place):
    """Tries what it is to load, once for all checks."""
    place.begin(TORCH_LIMIT_S)
    part = place.torch
    if place.stand_ins:
        place.torch = part._replace(cuda_part="", why_not=part.why_not or "LibTorch's CUDA part needs the driver itself")
    else:
        place.torch = torch_part.tried(place, part)
    return f"{part.version} in {part.folder}" if part.folder else part.why_not


def commit_of(word):
    """The checkout's; what the caller says where there is none, as on a machine that was sent a copy."""
    found = machine.commit() if os.path.exists(os.path.join(places.ROOT, ".git")) else "unknown"
    return word if found == "unknown" and word else found


def kernel_driver():
    try:
        with open("/proc/driver/nvidia/version") as file:
            return file.readline().strip()
    except OSError:
        return NOT_TOLD
