"""Mistakes on the command line are found before anything is measured."""
import contextlib
import io
import os
import tempfile
import unittest

import main
from usage import positive, whole


class UsageTest(unittest.TestCase):
    def said(self, *words):
        """What scripts/benchmark says when it refuses these words."""
        text = io.StringIO()
        with contextlib.redirect_stderr(text), self.assertRaises(SystemExit) as end:
            main.parse(words)
        self.assertEqual(end.exception.code, 2)
        return text.getvalue().splitlines()[-1]

    def test_numbers_have_to_make_sense(self):
        for words in (["launch", "--np", "0"], ["launch", "--np", "2", "-1"], ["collectives", "--np", "x"],
                      ["launch", "--samples", "0"], ["output", "--mebibytes", "0"]):
            self.assertIn("has to be a whole number, 1 or more", self.said(*words))
        for words in (["launch", "--seconds", "0"], ["collectives", "--row-seconds", "-1"], ["idle", "--window", "nan"],
                      ["launch", "--quiet", "inf"]):
            self.assertIn("has to be a number above 0", self.said(*words))
        self.assertEqual((whole("3"), positive("0.5")), (3, 0.5))

    def test_a_file_that_cannot_be_written_is_found_first(self):
        self.assertIn("/nowhere/x: No such file or directory", self.said("launch", "--json", "/nowhere/x"))
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("Is a directory", self.said("launch", "--json", folder))
            path = os.path.join(folder, "kept")
            with open(path, "w") as file:
                file.write("of an earlier run")
            main.parse(["launch", "--json", path])
            with open(path) as file:
                self.assertEqual(file.read(), "of an earlier run")

    def test_judging_needs_a_quiet_machine(self):
        self.assertIn("--check judges samples with others below 8 %", self.said("launch", "--check", "--quiet", "50"))


if __name__ == "__main__":
    unittest.main()
