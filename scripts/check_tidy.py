"""Runs clang-tidy and clang's thread-safety analysis over a build's sources: python3 scripts/check_tidy.py BUILD [PART...]

PART is product, tests or torch (everything that includes LibTorch); default: product and tests. The checks are those of
.clang-tidy, each an error. A source that was clean is not looked at again until it, a header or the checks change.
"""

import collections
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIDY = "clang-tidy-19"
SECONDS_A_FILE = 600
SOURCES_A_GROUP = 32


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


def tidy(build, flags, source):
    """What clang-tidy says of a source, "" when it is clean."""
    # What g++ has precompiled is nothing to clang, which reads the header itself. Of what is deprecated g++ warns; libstdc++'s
    # own std::stable_sort() uses some of it. So it does of names that hide others, which of two sources in a group nobody minds.
    wanted = ("-Wthread-safety", "-Wno-unknown-warning-option", "-Wno-ignored-gch", "-Wno-deprecated-declarations", "-Wno-shadow")
    command = [TIDY, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(source), "--", *flags, *wanted]
    try:
        done = subprocess.run(command, cwd=build, capture_output=True, text=True, timeout=SECONDS_A_FILE, check=False)
    except subprocess.TimeoutExpired:
        return f"{source}: {TIDY} did not end within {SECONDS_A_FILE} s"
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or f"{source}: {TIDY} failed\n{done.stderr.strip()}"


def sources_of(entry):
    """An entry of its own for each source that a build compiles together with others."""
    together = pathlib.Path(entry["file"])
    if together.parent.name != "Unity":
        return [entry]
    return [{**entry, "file": source} for source in re.findall(r'#include "(.*)"', together.read_text())]


def flags_of(entry):
    """A source's compiler flags without what differs between the sources of a folder."""
    words = shlex.split(entry["command"])[1:]
    return tuple(words[:words.index("-o")])


# A line that begins a definition outside of classes and functions, and the name it defines; further constants of the same line.
DEFINITION = re.compile(r"^(?!namespace|template)[a-z[][^(={]*?(?<![\w:])(~?[\w:]+)(?:\[\])?(?: = | ?\{|\(|;).*", re.MULTILINE)
CONSTANT = re.compile(r"\bk[A-Z]\w*(?=(?:\[\])? = )")


def names_of(source):
    """The names that another source of the same group may not define, too."""
    found = list(DEFINITION.finditer(pathlib.Path(source).read_text()))
    return {d[1] for d in found if ":" not in d[1]} | {name for d in found for name in CONSTANT.findall(d[0])}


def groups_of(entries):
    """Sources of one folder with the same flags, a few together: their headers are read once, which is most of the work."""
    alike = collections.defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry["file"]):
        groups, names = alike[pathlib.Path(entry["file"]).parent, flags_of(entry)], names_of(entry["file"])
        group = next((g for g in groups if len(g[0]) < SOURCES_A_GROUP and not g[1] & names), None)
        if group is None:
            groups.append(group := ([], set()))
        group[0].append(entry["file"])
        group[1].update(names)
    return [(flags, sources) for (_, flags), groups in alike.items() for sources, _ in groups]


def tidy_group(build, flags, sources):
    """What clang-tidy says of each of these sources that is not clean. Only what it says of one alone counts: two may well use
    one name for two things, and those it names are then looked at apart from the others."""
    if len(sources) == 1:
        said = tidy(build, flags, sources[0])
        return {sources[0]: said} if said else {}
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as group:
        group.writelines(f'#include "{source}"\n' for source in sources)
        group.flush()
        said = tidy(build, flags, group.name)
    if not said:
        return {}
    named = [source for source in sources if re.search(rf"^{re.escape(source)}:\d+:\d+: error: ", said, re.MULTILINE)]
    others = [source for source in sources if source not in named]
    parts = (others, named) if named and others else ([source] for source in sources)
    return {source: words for part in parts for source, words in tidy_group(build, flags, part).items()}


def main():
    if len(sys.argv) < 2 or {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        sys.exit(0 if len(sys.argv) > 1 else 2)
    build = pathlib.Path(sys.argv[1]).resolve()
    if not (build / "compile_commands.json").is_file():
        sys.exit(f"check_tidy: {build} has no compile_commands.json: name a build that scripts/build has configured")
    parts = set(sys.argv[2:]) or {"product", "tests"}
    if strange := parts - {"product", "tests", "torch"}:
        sys.exit(f"check_tidy: no part {', '.join(strange)}: product, tests or torch")
    entries = [e for entry in json.loads((build / "compile_commands.json").read_text()) for e in sources_of(entry)]
    wanted = {e["file"]: e for e in entries if part_of(e) in parts}
    clean = build / "tidy"
    clean.mkdir(exist_ok=True)
    around = surroundings()
    marks = {file: clean / digest(around, e["command"], pathlib.Path(file).read_bytes()) for file, e in wanted.items()}

    def check(group):
        said = tidy_group(build, *group)
        for source in group[1]:
            if source not in said:
                marks[source].touch()
        return said.values()

    cpus = subprocess.run(["bash", "-c", ". scripts/limits; usable_cpus"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    with concurrent.futures.ThreadPoolExecutor(int(cpus)) as pool:
        unknown = groups_of(e for file, e in wanted.items() if not marks[file].exists())
        failures = [words for said in pool.map(check, unknown) for words in said]
    print(*failures, sep="\n\n")
    print(f"{len(wanted)} sources ({', '.join(sorted(parts))}), {len(failures)} with findings")
    sys.exit(1 if failures or not wanted else 0)


if __name__ == "__main__":
    main()
