"""Reads C++ source as text: code without comments and literals, its includes, and where functions begin and end.

No parser: it relies on the layout that clang-format gives (a brace that opens a block has a space before it).
"""

import re

_LITERAL_OR_COMMENT = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | (?:\b(?:u8|[uUL])?R)"([^()\\\s]{0,16})\(.*?\)\1"
      | "(?:[^"\\\n]|\\.)*"
      | (?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'""",
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
_LABEL = re.compile(r"\s*(?:public|private|protected)\s*:")
_SCOPE = re.compile(
    r"\s*(?:template\s*<.*>\s*)?(?:typedef\s+|inline\s+|static\s+|constexpr\s+|const\s+)*"
    r"(?:namespace|class|struct|union|enum|extern)\b",
    re.DOTALL,
)


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def code_only(text):
    """The text with comments, strings and characters blanked; offsets and lines stay."""
    return _LITERAL_OR_COMMENT.sub(_blank, text)


def includes(text):
    """(line, path) of each include."""
    for found in _INCLUDE.finditer(text):
        yield line_of(text, found.start()), found.group(1)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def _matching_brace(code, opening):
    depth = 0
    for found in re.compile(r"[{}]").finditer(code, opening):
        depth += 1 if found.group() == "{" else -1
        if depth == 0:
            return found.start()
    return len(code) - 1


def functions(text):
    """(first line, last line, head) of each function, test case and lambda that stands outside other functions."""
    code = _DIRECTIVE.sub(_blank, code_only(text))
    start = at = 0
    interesting = re.compile(r"[;{}]")
    while found := interesting.search(code, at):
        at = found.end()
        if found.group() != "{":
            start = at
            continue
        head = code[start : found.start()]
        if head and not head[-1].isspace():  # braces of an initialiser: a_{1}
            at = _matching_brace(code, found.start()) + 1
            continue
        while label := _LABEL.match(head):
            start += label.end()
            head = head[label.end() :]
        if not _SCOPE.match(head) and ("(" in head or head.rstrip().endswith("=")):
            end = _matching_brace(code, found.start())
            if not head.rstrip().endswith("="):
                first = start + len(head) - len(head.lstrip())
                yield line_of(text, first), line_of(text, end), " ".join(head.split())
            at = end + 1
        start = at
