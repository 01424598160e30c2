"""The tables of the kept results, and how a run renews them."""
import json
import pathlib
import tempfile
import unittest

import pages

RESULTS = pathlib.Path(__file__).parent / "results"


def claim(text, median, outcome="met"):
    quartiles = None if median is None else [median - 1, median + 1]
    return {"claim": text, "at_least": 3, "at_most": None, "goal": None, "unit": "x", "median": median, "quartiles": quartiles,
            "outcome": outcome}


class PagesTest(unittest.TestCase):
    def test_each_kept_table_says_what_the_json_beside_it_says(self):
        seen = set()
        for page in RESULTS.glob("*.md"):
            for name, found in pages.tables(page.read_text()):
                seen.add(name)
                claims = json.loads((RESULTS / f"{name}.json").read_text())["claims"]
                with self.subTest(page=page.name, benchmark=name):
                    self.assertEqual(found["rows"].splitlines(), pages.rows_of(name, claims))
        self.assertEqual(seen, {path.stem for path in RESULTS.glob("*.json")} - pages.BY_HAND)

    def test_a_run_renews_its_own_table_and_nothing_else(self):
        page = ("`run --json results/%s.json`: words.\n\n| figure | |\n| --- | --- |\n| old | row |\n\nMore words.\n")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "launch.json"
            file.write_text(json.dumps({"claims": [claim("np 2", 9.5), claim("np 32", None, "not judged")]}))
            both = pathlib.Path(folder) / "both.md"
            both.write_text(page % "output" + page % "launch")
            pages.rewrite(file)
            renewed = "| np 2 | 9.500 (8.500–10.50) | ≥ 3 | met |\n| np 32 | - | ≥ 3 | not judged |"
            self.assertEqual(both.read_text(), page % "output" + (page % "launch").replace("| old | row |", renewed))


if __name__ == "__main__":
    unittest.main()
