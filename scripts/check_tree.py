"""Checks what no compiler sees: who includes whom, sizes, names, first lines, bans. python3 scripts/check_tree.py [ROOT]

ROOT is the top of a tree as this one (default: this one); it has a CMakeLists.txt and a README.md.
Prints one line a finding, `file:line: what is wrong; what to do instead`, and exits 1 if there was any. The tables at
the top are the rules; where one is wrong for a piece of code, change it here and say why in the commit.
"""

import ast
import fnmatch
import os
import pathlib
import re
import sys

import cxx_text

FILE_LINES = 500
FUNCTION_LINES = 70
README_LINES = {"README.md": 150}  # of other folders:
FOLDER_README_LINES = 60

VOCABULARY = ("hvd/error.h", "hvd/types.h", "hvd/work.h")  # names of the public API that every part may speak
BASE = ("runtime/base/", *VOCABULARY)
CORE = ("rendezvous/world.h", "rendezvous/store.h")
GRPC_PART = r"rendezvous/(client|permission|server|stream_pump)\."

# What a folder's files may include of ours; the longest folder that fits counts. tests/ may include everything.
MAY_INCLUDE = {
    "runtime/include": ("hvd/",),
    "runtime/base": BASE,
    "proto": (),
    "rendezvous": ("rendezvous/", *BASE),
    "collectives": ("collectives/", "hvd/float16.h", *CORE, *BASE),
    "runtime/engine": ("runtime/engine/", "collectives/", *CORE, *BASE),
    "runtime": ("runtime/", "collectives/", "rendezvous/", "hvd/"),
    "runtime/torch": ("runtime/", "collectives/", *CORE, "hvd/"),
    "cli": ("cli/", "rendezvous/", "proto/", *BASE),
    "examples": ("examples/", "hvd/"),
}
# What of that is not for everybody: header, who alone may include it, the way to go instead.
ONLY_FOR = (
    (r"rendezvous/(client|permission|server)\.h", GRPC_PART + r"|cli/|tests/", "the gRPC part is for the launcher and its agents"),
    (r"rendezvous/stream_pump\.h", GRPC_PART, "it shows gRPC types: use rendezvous/client.h or server.h"),
    (r"proto/.*\.grpc\.pb\.h", GRPC_PART + r"|tests/", "the service stays behind rendezvous/client.h and server.h"),
    (r"proto/.*\.pb\.h", GRPC_PART + r"|cli/|tests/", "messages are for the launcher and its agents"),
    (r"runtime/torch/.*", r"runtime/torch/|tests/", "the layers below the torch layer do not know it"),
    (r"hvd/torch\.h", r"runtime/torch/|examples/|tests/", "the layers below the torch layer do not know it"),
)
# Third party headers, who alone may include them, and why.
THIRD_PARTY = (
    (r"(torch|ATen|c10)/.*", r"runtime/torch/|runtime/include/hvd/torch\.h|examples/|tests/(runtime/torch|examples|benchmark|gpu_check)/",
     "LibTorch is seen by the torch layer and programs only"),
    (r"CLI/.*", r"cli/(command_line|help|man)[a-z_]*\.|examples/|tests/benchmark/", "CLI11 only where argv is parsed"),
    (r"(grpc|grpcpp|google/protobuf)/.*", GRPC_PART + r"|tests/rendezvous/", "gRPC stays in rendezvous/client and server"),
    (r"(nccl|cuda|cuda_runtime|cuda_runtime_api)\.h", r"collectives/nccl/|tests/collectives/nccl/", "CUDA and NCCL only in collectives/nccl/"),
    (r"openssl/.*", r"rendezvous/[a-z_]+\.cc|tests/rendezvous/", "OpenSSL stays behind rendezvous/credentials.h"),
    (r"hwy/.*", r"collectives/|tests/collectives/", "vector instructions only in collectives/"),
    (r"nlohmann/.*", r"cli/|tests/", "JSON only in cli/"),
    (r"catch2/.*", r"tests/support/catch\.h", "include tests/support/catch.h"),
    (r"(spdlog|fmt)/.*", r"(?!runtime/include/)", "the public headers need nothing but C++20"),
)

# pattern in C++ code, where it is allowed, what to use instead
BANS = (
    (r"(?<![\w.>])(secure_)?getenv\s*\(", r"runtime/base/env\.cc|tests/", "hvd::env::get of runtime/base/env.h"),
    (r"(?<![\w.>:])(::)?(v?fork|posix_spawnp?|exec[vl][pe]{0,2}|system|popen)\s*\(",
     r"cli/subprocess\.cc|cli/agent/keeper\.cc|tests/", "cli/subprocess.h"),
    (r"\.detach\s*\(\s*\)|\bpthread_detach\b", r"runtime/torch/|examples/|tests/runtime/torch/", "std::jthread, joined (a tensor's detach() is for torch folders)"),
    (r"\bsleep_(for|until)\b|(?<!\w)::sleep\s*\(|\b(u|nano|clock_nano)sleep\s*\(", r"(?!)", "poll() or a condition with a Deadline"),
    (r"(?<!asm )\bvolatile\b", r"(?!)", "std::atomic"),
    (r"(?<![\w.>])assert\s*\(", r"(?!)", "HVD_CHECK of runtime/base/error.h"),
    (r"^\s*#\s*include\s*\"\.\.?/", r"(?!)", "includes from the root of the tree"),
)
HEADER_BANS = (
    (r"\busing\s+namespace\b", r".*-inl\.h", "names in full"),
    (r"^\s*#\s*if.*\bHVD_(WITH|HAVE|USE)_", r"(?!)", "a stub source file chosen in CMake"),
)
CMAKE_BANS = (
    (r"\badd_test\s*\(", r"scripts/cmake/", "hvd_test() or hvd_script_test()"),
    (r"\bfile\s*\(\s*GLOB", r"scripts/cmake/|tests/headers\.cmake", "sources listed by name"),
)
SCRIPT_BANS = (
    (r"\b(pkill|killall)\b", r"scripts/check_tree\.py|tests/scripts/", "process ids"),
    (r"\bshell=True|\bos\.system\(|\bos\.popen\(", r"scripts/check_tree\.py", "subprocess with a list of arguments"),
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

BANNED_WORDS = {"task", "node", "team", "generation", "handle", "controller", "manager", "util", "helper", "common", "misc"}

CXX = (".h", ".cc", ".cu")
SKIPPED_FOLDERS = {".git", "build", "__pycache__"}


class Tree:
    """The files under a root, read once."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.text = {}
        for folder, subfolders, files in os.walk(self.root):
            subfolders[:] = sorted(set(subfolders) - SKIPPED_FOLDERS)
            for path in (pathlib.Path(folder, name) for name in sorted(files)):
                try:
                    self.text[path.relative_to(self.root).as_posix()] = path.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    pass  # data, not source
        self.code = {name: cxx_text.code_only(text) for name, text in self.text.items() if name.endswith(CXX)}

    def language(self, name):
        """cxx, python, shell, cmake or "" for what no rule reads."""
        if name.endswith(CXX + (".proto",)):
            return "cxx"
        if name.endswith(".py") or re.match(r"#!.*\bpython3", self.text[name]):
            return "python"
        if name.endswith(".sh") or re.match(r"#!.*\b(ba)?sh\b", self.text[name]):
            return "shell"
        return "cmake" if name.endswith((".cmake", "CMakeLists.txt")) else ""

    def of(self, *languages):
        return ((name, text) for name, text in self.text.items() if self.language(name) in languages)


def include_table(tree):
    for name, text in tree.of("cxx"):
        folders = [f for f in MAY_INCLUDE if name.startswith(f + "/")]
        allowed = None if name.startswith("tests/") or not folders else MAY_INCLUDE[max(folders, key=len)]
        for line, path in cxx_text.includes(text):
            ours = re.match(r"(hvd|runtime|rendezvous|collectives|cli|proto|examples|tests)/", path)
            if ours and allowed is not None and not path.startswith(allowed):
                if not any(re.fullmatch(p, path) and re.match(who, name) for p, who, _ in ONLY_FOR):
                    yield name, line, f"includes {path}; {max(folders, key=len)}/ may include {', '.join(allowed) or 'nothing'} only"
                    continue
            for pattern, who, instead in ONLY_FOR + THIRD_PARTY:
                if re.fullmatch(pattern, path) and not re.match(who, name):
                    yield name, line, f"includes {path}; {instead}"
            if name.endswith(".h") and re.match(r"(grpc|grpcpp)/|.*\.grpc\.pb\.h", path) and "stream_pump" not in name:
                yield name, line, f"a header includes {path}; no header shows a gRPC type"


def first_lines(tree):
    for name, text in tree.text.items():
        language, lines = tree.language(name), text.split("\n", 2)
        if language == "" or name.endswith("CMakeLists.txt"):
            continue
        first = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
        own_header = re.escape(name[:-3]) if not name.startswith("tests/") else r".*\b" + re.escape(pathlib.Path(name).stem.removesuffix("_test"))
        starts = {"cxx": "// ", "python": '"""', "shell": "# ", "cmake": "# "}[language]
        if name.endswith(".cc") and re.fullmatch(rf'#include "{own_header}\.h"', first):
            continue  # the header says it
        if not (first.startswith(starts) and len(first.split()) >= 3):
            yield name, 1, "the first line does not say in a sentence what the file is"


def sizes(tree):
    for name, text in tree.text.items():
        count = text.count("\n")
        if name.endswith("README.md"):
            limit = README_LINES.get(name, FOLDER_README_LINES)
        elif tree.language(name):
            limit = FILE_LINES
        else:
            continue
        if count > limit:
            yield name, limit, f"{count} lines, more than {limit}; split it at a seam"
    for name, first, last in functions(tree):
        if last - first + 1 > FUNCTION_LINES:
            yield name, first, f"a function of {last - first + 1} lines, more than {FUNCTION_LINES}; split it"


def functions(tree):
    for name, text in tree.of("cxx"):
        if not name.endswith(".proto"):
            yield from ((name, first, last) for first, last, _ in cxx_text.functions(text))
    for name, text in tree.of("python"):
        for part in ast.walk(ast.parse(text, name)):
            if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield name, part.lineno, part.end_lineno
    for name, text in tree.of("shell"):
        for found in re.finditer(r"^\w+\(\) [{(].*?^[})]", text, re.MULTILINE | re.DOTALL):
            yield name, cxx_text.line_of(text, found.start()), cxx_text.line_of(text, found.end())


def matches(text, bans, name):
    for pattern, allowed, instead in bans:
        if not re.match(allowed, name):
            for found in re.finditer(pattern, text, re.MULTILINE):
                yield name, cxx_text.line_of(text, found.start()), f"{found.group().strip()} is banned; use {instead}"


def bans(tree):
    for name, code in tree.code.items():
        yield from matches(code, BANS + (HEADER_BANS if name.endswith(".h") else ()), name)
    for name, text in tree.of("cmake"):
        yield from matches(re.sub(r"#[^\n]*", "", text), CMAKE_BANS, name)
    for name, text in tree.of("python", "shell"):
        yield from matches(text, SCRIPT_BANS, name)
    for name, text in tree.of("cxx", "cmake", "python", "shell"):
        if name != "scripts/check_tree.py":
            for found in UNFINISHED.finditer(text):
                yield name, cxx_text.line_of(text, found.start()), f"{found.group()}: finish it, or write an issue"


def file_names(tree):
    for name in tree.text:
        for word in re.split(r"[^a-z]+", name.lower()):
            if word in BANNED_WORDS or word.removesuffix("s") in BANNED_WORDS:
                yield name, 1, f"{word} is no word for a file here; name what it does"


def cmake_names(tree):
    """Each file that a CMake file names, as a pattern from the root: ${…} may stand for anything."""
    for name, text in tree.of("cmake"):
        folder = name.rpartition("/")[0]
        text = re.sub(r"#[^\n]*", "", text)
        words = re.findall(r"[^\s()\";]+\.(?:cc|py)\b", text)
        for parts in re.findall(r"\bhvd_\w+_tests\s*\(\s*\w+\s+PARTS\s([\w/\s]*?)(?:\bDEPS\b|\))", text):
            words += [f"{part}_test.cc" for part in parts.split()]
        for word in words:
            word = re.sub(r"^\$\{(CMAKE_CURRENT|PROJECT)_SOURCE_DIR\}/", lambda m: "/" if m[1] == "PROJECT" else "", word)
            word = re.sub(r"\$\{\w+\}", "*", word)
            yield word[1:] if word.startswith("/") else f"{folder}/{word}".lstrip("/")


def unused(tree):
    named = list(cmake_names(tree))
    included = {path for _, text in tree.of("cxx") for _, path in cxx_text.includes(text)}
    callers = {name: text for name, text in tree.text.items() if tree.language(name) or name.endswith(".md")}
    for name in tree.text:
        if name.endswith(".cc") and not any(fnmatch.fnmatchcase(name, pattern) for pattern in named):
            yield name, 1, "no target uses it; name it in a CMakeLists.txt or delete it"
        if name.endswith(".h") and not name.startswith("runtime/include/") and name not in included:
            yield name, 1, "nobody includes it; delete it"
        if name.endswith(".py") and not any(fnmatch.fnmatchcase(name, pattern) for pattern in named):
            word = re.compile(rf"\b{re.escape(pathlib.Path(name).stem)}\b")
            if not any(word.search(text) for other, text in callers.items() if other != name):
                yield name, 1, "no test, script or README names it; delete it"


def headers_guarded(tree):
    for name, text in tree.of("cxx"):
        if name.endswith(".h") and not re.search(r"^#pragma once$", text, re.MULTILINE):
            yield name, 1, "no #pragma once"


# So that each of them is known to compile alone; tests/headers.cmake compiles only the others.
def own_header_first(tree):
    for name, text in tree.of("cxx"):
        own = name.removesuffix(".cc") + ".h"
        if name.endswith(".cc") and own in tree.text:
            line, path = next(cxx_text.includes(text), (1, ""))
            if path != own:
                yield name, line, f"includes {own} not first; put it before all others"


def readmes(tree):
    folders = {name.rpartition("/")[0] for name in tree.code}
    for folder in sorted(folders):
        mirror = folder.startswith("tests/") and folder.removeprefix("tests/") in folders
        if not mirror and folder != "runtime/include/hvd" and f"{folder}/README.md".lstrip("/") not in tree.text:
            yield folder or ".", 1, "no README.md that says what the folder does"
    for name in tree.code:
        folder, _, file = name.rpartition("/")
        readme, stem = f"{folder}/README.md", re.sub(r"(_impl)?\.h$", "", file)
        if name.startswith("tests/"):
            readme, stem = "tests/README.md", name.split("/")[1]
        elif not file.endswith(".h") or file.endswith("-inl.h"):
            continue
        if readme in tree.text and not re.search(rf"\b{re.escape(stem)}\b", tree.text[readme]):
            yield readme, 1, f"does not tell of {stem}"


RULES = (include_table, first_lines, sizes, bans, file_names, unused, headers_guarded, own_header_first, readmes)


def findings(root):
    tree = Tree(root)
    return sorted({finding for rule in RULES for finding in rule(tree)})


def main():
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip())
        sys.exit(0)
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]
    if missing := [name for name in ("CMakeLists.txt", "README.md") if not (root / name).is_file()]:
        print(f"check_tree: {root} is not the top of the tree: it has no {' and no '.join(missing)}", file=sys.stderr)
        sys.exit(2)
    found = findings(root)
    for name, line, message in found:
        print(f"{name}:{line}: {message}")
    sys.exit(f"check_tree: {len(found)} findings" if found else 0)


if __name__ == "__main__":
    main()
