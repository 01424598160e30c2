"""The tests that faults.md names are there: faults_check.py. Whether they pass is their own matter."""

import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
TESTS = FOLDER.parent


def objection(shown_by):
    """Why nothing is shown by this, or None."""
    if script := re.fullmatch(r"(\w+\.py) (\w+)", shown_by):
        file = FOLDER / script[1]
        # A case is defined, and named again where the script lists what it runs.
        if not file.is_file() or len(re.findall(rf"\b{script[2]}\b", file.read_text())) < 2:
            return "no such case is run by such a script"
    elif test := re.fullmatch(r'(\w+_test) "(.+)"', shown_by):
        texts = [file.read_text() for file in TESTS.rglob(test[1] + ".cc")]
        if not any(f'TEST_CASE("{test[2]}' in re.sub(r'\(\s+"', '("', re.sub(r'"\s*\n\s*"', "", text)) for text in texts):
            return "no such test case is there"
    elif benchmark := re.fullmatch(r"scripts/benchmark (\w+)", shown_by):
        if not (TESTS / "benchmark" / f"{benchmark[1]}.py").is_file():
            return "no such benchmark is there"
    else:
        return "it is no script's case, test case or benchmark"
    return None


def main():
    rows = [line for line in (FOLDER / "faults.md").read_text().splitlines() if line.startswith("| ")][2:]
    wrong = 0
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        why = "a row has three cells" if len(cells) != 3 else objection(cells[2].strip("`"))
        if why:
            wrong += 1
            print(f"faults.md: {row}\n  {why}")
    print(f"{len(rows)} rows, {wrong} wrong")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
