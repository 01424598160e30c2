"""Says where a LibTorch lies that hvdrun can be built with: python3 scripts/find_torch.py [DIR]

DIR is a `torch` folder as pip installs it; without DIR, the torch of the python that runs this. Torch is
not imported. On success prints the folder and the version, one a line; else says why and exits 1.
"""

import importlib.util
import pathlib
import re
import sys

# The first whose streams tell their native handle (c10::Stream::native_handle()), which collectives on
# GPUs are queued behind.
OLDEST = (2, 11)


def own_torch():
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise LookupError(f"{sys.executable} has no torch")
    return pathlib.Path(list(spec.submodule_search_locations)[0])


def check(torch):
    """The version of the torch in this folder; raises LookupError saying why it cannot be used."""
    for needed in ("lib/libtorch_cpu.so", "lib/libc10.so", "include/torch/csrc/api/include/torch/torch.h"):
        if not (torch / needed).is_file():
            raise LookupError(f"{torch} has no {needed}")
    found = re.search(r"__version__ = '((\d+)\.(\d+)[^']*)'", (torch / "version.py").read_text())
    if found is None:
        raise LookupError(f"{torch}/version.py names no version")
    if (int(found[2]), int(found[3])) < OLDEST:
        raise LookupError(f"torch {found[1]} in {torch} is older than {OLDEST[0]}.{OLDEST[1]}")
    if b"__cxx11" not in (torch / "lib/libc10.so").read_bytes():
        raise LookupError(f"torch {found[1]} in {torch} is built with the old C++ string ABI")
    return found[1]


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        return
    try:
        torch = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else own_torch()
        print(torch, check(torch), sep="\n")
    except (LookupError, OSError) as error:
        sys.exit(f"find_torch: {error}")


if __name__ == "__main__":
    main()
