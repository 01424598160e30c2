"""What of the caller's environment checks have: no setting of CUDA's, NCCL's, Horovod's or hvdrun's that decides what comes of them."""
import glob
import os
import re

LEFT_OUT = re.compile(r"(NCCL|TORCH_NCCL|HOROVOD|HVD)_|CUDA_LAUNCH_BLOCKING$")
# Which libraries are used, and what their stand-ins do, which nothing else reads.
KEPT = re.compile(r"HVD_(CUDA|NCCL)_LIBRARY$|HVD_STANDIN_")
# What else may matter on a GPU, for the report.
SHOWN = re.compile(r"(CUDA|NVIDIA|CUBLAS|CUDNN|CUPTI|KINETO|TORCH|PYTORCH|HVD|LD|OMP)_")
NCCL = "HVD_NCCL_LIBRARY"
NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")  # NCCL reads them whatever the environment is


def split(variables):
    """(those that are kept, the names of the others)"""
    left_out = sorted(name for name in variables if LEFT_OUT.match(name) and not KEPT.match(name))
    return {name: value for name, value in variables.items() if name not in left_out}, left_out


def shown(variables):
    return [f"{name}={value}" for name, value in sorted(variables.items()) if SHOWN.match(name)]


def nccl_files():
    return [path for path in map(os.path.expanduser, NCCL_FILES) if os.path.exists(path)]


def nccl_library(build, torch_folder):
    """Where the loader may not look: beside the header that the tree was built with, else as pip installs it beside torch; or None."""
    places = []
    if include := cached(build, "HVD_NCCL_INCLUDE"):
        above = os.path.dirname(include)
        places += [f"{above}/lib64", f"{above}/lib", *sorted(glob.glob(f"{above}/lib/*-linux-gnu*"))]
    if torch_folder:
        places.append(os.path.join(os.path.dirname(torch_folder), "nvidia", "nccl", "lib"))
    return next(filter(os.path.exists, (f"{place}/libnccl.so.2" for place in places)), None)


def cached(build, name):
    """A value of CMake's cache, or None."""
    try:
        with open(os.path.join(build, "CMakeCache.txt")) as cache:
            found = re.search(rf"^{name}:\w+=(.+)$", cache.read(), re.MULTILINE)
    except OSError:
        return None
    return found and found[1]
