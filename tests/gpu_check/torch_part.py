"""LibTorch's CUDA part, which the examples and device_steps do not link: found once, to be loaded before them."""
import os
import re
import sys
from typing import NamedTuple

from verdicts import CouldNotRun, Failed

PROGRAM = "device_steps"  # the others are linked as it is
WHOLE = "scripts/setup --peers installs a whole one"


class TorchPart(NamedTuple):
    folder: str = ""  # of the LibTorch that programs find, as pip installs it
    version: str = ""
    cuda_part: str = ""  # its shared object, where that can be loaded
    why_not: str = ""


def find(place):
    """Does not load anything yet."""
    if not place.has(PROGRAM):
        return TorchPart(why_not=f"{PROGRAM} is not built: it needs LibTorch")
    try:
        found = re.search(r"libtorch_cpu\.so => (/\S+)", place.run(["ldd", place.program(PROGRAM)]).out)
    except (Failed, OSError) as error:
        return TorchPart(why_not=f"{PROGRAM}'s LibTorch cannot be looked for: {error}")
    if not found:
        return TorchPart(why_not=f"the loader does not find {PROGRAM}'s LibTorch")
    folder = os.path.dirname(os.path.dirname(found[1]))
    library = os.path.join(folder, "lib", "libtorch_cuda.so")
    there = os.path.exists(library)
    return TorchPart(folder, version_in(folder), library if there else "", "" if there else f"the LibTorch of this build has no CUDA part, {library}; {WHOLE}")


def version_in(folder):
    try:
        with open(os.path.join(folder, "version.py")) as file:
            found = re.search(r"__version__ = '([^']+)'", file.read())
    except OSError:
        found = None
    return found[1] if found else "of a version that is not told"


def tried(place, part):
    """With the reason where the loader does not take it. Whatever programs load then comes from the machine's memory."""
    if not part.cuda_part:
        return part
    try:
        ended = place.run([place.program(PROGRAM), "--help"], LD_PRELOAD=part.cuda_part)
        if "cannot be preloaded" not in ended.err and "usage: " in ended.err:
            return part
        missing = re.findall(r"(\S+) => not found", place.run(["ldd", part.cuda_part]).out)
    except Failed as error:
        return part._replace(cuda_part="", why_not=f"LibTorch's CUDA part does not load in time: {error}")
    why = f"not found: {', '.join(missing)}" if missing else ended.words()
    return part._replace(cuda_part="", why_not=f"LibTorch's CUDA part cannot be loaded, {why}; {WHOLE}")


def torch_words(place, program):
    """hvdrun's, for a program with LibTorch that is to train on the GPU."""
    if place.torch.why_not:
        raise CouldNotRun(place.torch.why_not)
    if not place.has(program):
        raise CouldNotRun(f"{program} is not built")
    return ["-x", "LD_PRELOAD=" + ":".join(filter(None, [place.torch.cuda_part, place.environment.get("LD_PRELOAD")]))]


def python_with_cuda(place):
    """A Python whose torch has the GPU, and NCCL: the one that has this LibTorch, else ours."""
    own = os.path.normpath(os.path.join(place.torch.folder, *[".."] * 4, "bin", "python3"))
    question = "import torch, torch.distributed as d; print(torch.cuda.is_available() and d.is_nccl_available())"
    asked = {}
    for python in (own, sys.executable):
        if python in asked or not os.access(python, os.X_OK):
            continue
        asked[python] = place.run([python, "-c", question])
        if re.search(r"^True$", asked[python].out, re.MULTILINE):
            return python
    raise CouldNotRun("no Python's torch has the GPU and NCCL: " + "; ".join(f"{python}: {ended.words()}" for python, ended in asked.items()) +
                      "; scripts/setup --peers installs one")
