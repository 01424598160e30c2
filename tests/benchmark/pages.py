"""Pages of kept results: below the command that wrote a JSON file, a table of its claims that nobody has to copy."""
import json
import pathlib
import re
import types

from report import number, target

# The command names the JSON file, the table is the first below it; links-4's compares times that no claim does.
_TABLE = re.compile(r"--json [\w/-]*?([\w-]+)\.json`(?:(?!--json).)*?\n\| ---[^\n]*\n(?P<rows>(?:\|[^\n]*\n)*)", re.DOTALL)
BY_HAND = {"links-4"}


def _figure_of(claim):
    """A claim as the JSON has it: figure, target and verdict."""
    words = target(types.SimpleNamespace(**claim)).replace(">=", "≥").replace("<=", "≤")
    if claim["median"] is None:
        return f"- | {words} | {claim['outcome']} |"
    unit, quartiles = claim["unit"].removeprefix("x"), "–".join(number(value) for value in claim["quartiles"])
    return f"{number(claim['median'])}{unit} ({quartiles}) | {words} | {claim['outcome']} |"


def rows_of(name, claims):
    """The table's lines below its head: a claim each, or for links a size each."""
    if name != "links":
        return [f"| {claim['claim']} | {_figure_of(claim)}" for claim in claims]
    sizes = {}
    for claim in claims:
        sizes.setdefault(claim["claim"].split(":")[0], []).append(_figure_of(claim))
    return [f"| {size} | {' '.join(figures)}" for size, figures in sizes.items()]


def tables(text):
    """(name of the JSON file, the match whose group "rows" is its table) for every table of a page that is not by hand."""
    return [(found[1], found) for found in _TABLE.finditer(text) if found[1] not in BY_HAND]


def rewrite(file):
    """Puts the claims of a JSON file into the pages beside it that have a table of it."""
    file = pathlib.Path(file)
    lines = "".join(row + "\n" for row in rows_of(file.stem, json.loads(file.read_text())["claims"]))
    for page in file.parent.glob("*.md"):
        text = page.read_text()
        for name, found in tables(text):
            if name == file.stem:
                page.write_text(text[:found.start("rows")] + lines + text[found.end("rows"):])
