"""Runs clang-tidy and clang's thread-safety analysis over a build's sources: python3 scripts/check_tidy.py BUILD [PART...]

PART is product, tests or torch (everything that includes LibTorch); default: product and tests. The checks are those of
.clang-tidy, each an error. A source that was clean is not looked at again until it, a header or the checks change.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIDY = "clang-tidy-19"
SECONDS_A_FILE = 600


def part_of(entry):
    source = pathlib.Path(entry["file"])
    if not source.is_relative_to(ROOT) or source.is_relative_to(ROOT / "build"):
        return "generated"
    if "/torch/csrc/api/include" in entry["command"]:
        return "torch"
    return "tests" if source.is_relative_to(ROOT / "tests") else "product"


def digest(*parts):
    return hashlib.sha256(b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)).hexdigest()


def surroundings():
    """What the result for every source depends on."""
    folders = (top for top in ROOT.iterdir() if top.is_dir() and top.name not in ("build", ".git"))
    headers = sorted(header for folder in folders for header in folder.rglob("*.h"))
    return digest((ROOT / ".clang-tidy").read_bytes(), *(h.read_bytes() for h in headers))


def tidy(build, source):
    """What clang-tidy says of a source, "" when it is clean."""
    # What g++ has precompiled is nothing to clang, which reads the header itself. Of what is deprecated g++ warns; libstdc++'s
    # own std::stable_sort() uses some of it.
    wanted = ("-Wthread-safety", "-Wno-unknown-warning-option", "-Wno-ignored-gch", "-Wno-deprecated-declarations")
    flags = [f"--extra-arg={flag}" for flag in wanted]
    command = [TIDY, "--quiet", "-p", str(build), *flags, str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_A_FILE, check=False)
    except subprocess.TimeoutExpired:
        return f"{source}: {TIDY} did not end within {SECONDS_A_FILE} s"
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or f"{source}: {TIDY} failed\n{done.stderr.strip()}"


def main():
    if len(sys.argv) < 2 or {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        sys.exit(0 if len(sys.argv) > 1 else 2)
    build = pathlib.Path(sys.argv[1]).resolve()
    if not (build / "compile_commands.json").is_file():
        sys.exit(f"check_tidy: {build} has no compile_commands.json: name a build that scripts/build has configured")
    parts = set(sys.argv[2:]) or {"product", "tests"}
    if unknown := parts - {"product", "tests", "torch"}:
        sys.exit(f"check_tidy: no part {', '.join(unknown)}: product, tests or torch")
    entries = json.loads((build / "compile_commands.json").read_text())
    wanted = {e["file"]: e["command"] for e in entries if part_of(e) in parts}
    clean = build / "tidy"
    clean.mkdir(exist_ok=True)
    around = surroundings()

    def check(source):
        mark = clean / digest(around, wanted[source], pathlib.Path(source).read_bytes())
        if mark.exists():
            return ""
        said = tidy(build, source)
        if not said:
            mark.touch()
        return said

    cpus = subprocess.run(["bash", "-c", ". scripts/limits; usable_cpus"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    with concurrent.futures.ThreadPoolExecutor(int(cpus)) as pool:
        failures = [said for said in pool.map(check, sorted(wanted)) if said]
    print(*failures, sep="\n\n")
    print(f"{len(wanted)} sources ({', '.join(sorted(parts))}), {len(failures)} with findings")
    sys.exit(1 if failures or not wanted else 0)


if __name__ == "__main__":
    main()
