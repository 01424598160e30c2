"""scripts/setup, with apt, dpkg and pip's index played by the test: what it refuses, asks for, does and leaves behind."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "scripts/setup"
ALL_INSTALLED = '#!/bin/sh\nfor name; do case $name in -*) ;; *) echo "installed $name" ;; esac; done\n'
NONE_INSTALLED = "#!/bin/sh\nexit 1\n"
NOT_WANTED = '#!/bin/sh\necho "$0 $* was called" >&2\nexit 66\n'


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hvd-setup-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = self.folder / "cache/hvdrun/torch-2.11.0"
        (self.folder / "bin").mkdir()
        self.system('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12"\n')
        self.program("dpkg-query", ALL_INSTALLED)
        self.program("apt-get", NOT_WANTED)
        self.program("python3", NOT_WANTED)  # so that no torch of this machine is found

    def system(self, text):
        (self.folder / "os-release").write_text(text)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def run_setup(self, *arguments):
        variables = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "HVD_OS_RELEASE": str(self.folder / "os-release"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "http://127.0.0.1:9/none",  # nothing listens there
            "PIP_RETRIES": "0",
        }
        done = subprocess.run([str(SETUP), *arguments], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        return done.returncode, done.stdout

    def test_other_systems_are_refused_by_name(self):
        self.system('ID=fedora\nVERSION_ID=41\nPRETTY_NAME="Fedora Linux 41"\n')
        status, said = self.run_setup()
        self.assertEqual(status, 1)
        self.assertIn("Fedora Linux 41 is not supported", said)
        self.assertNotIn("was called", said)

    def test_ubuntu_takes_the_same_path_and_is_called_untested(self):
        self.system('ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n')
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertIn("untested", said)

    def test_unknown_options_are_refused(self):
        status, said = self.run_setup("--peer")
        self.assertEqual((status, "no option --peer" in said), (1, True), said)

    def test_without_root_it_lists_what_to_ask_for(self):
        self.program("dpkg-query", NONE_INSTALLED)
        self.program("id", "#!/bin/sh\necho 1000\n")
        status, said = self.run_setup("--peers")
        self.assertEqual(status, 1)
        asked = re.search(r"apt-get install --no-install-recommends (.*)", said)[1].split()
        self.assertLessEqual({"g++", "libgrpc++-dev", "catch2", "openmpi-bin"}, set(asked))
        self.assertNotIn("was called", said)
        self.assertFalse(self.environment.exists())

    def test_only_missing_packages_are_installed(self):
        self.program("dpkg-query", ALL_INSTALLED.replace("-*) ;;", "-* | ccache) ;;"))
        self.program("id", "#!/bin/sh\necho 0\n")
        status, said = self.run_setup()
        self.assertEqual(status, 1)  # apt-get is played by a program that fails
        self.assertIn("apt-get update", said)
        self.assertIn("was called", said)

    def test_done_once_it_does_nothing_more(self):
        self.environment.mkdir(parents=True)
        for content, arguments in (("cpp", []), ("python", []), ("python", ["--peers"])):
            (self.environment / "complete").write_text(content + "\n")
            status, said = self.run_setup(*arguments)
            self.assertEqual(status, 0, said)
            self.assertIn("setup: complete", said)
            self.assertEqual([path.name for path in self.environment.iterdir()], ["complete"])

    def test_what_an_interrupted_run_left_does_not_count_as_done(self):
        (self.environment / "lib").mkdir(parents=True)
        status, said = self.run_setup()
        self.assertNotEqual(status, 0)  # there is no index to install from
        self.assertIn("which an interrupted run has left", said)
        self.assertFalse((self.environment / "complete").exists())
        status, said = self.run_setup()
        self.assertNotEqual(status, 0)
        self.assertIn("which an interrupted run has left", said)


if __name__ == "__main__":
    unittest.main()
