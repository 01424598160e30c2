"""scripts/setup, with apt, dpkg and pip's index played by the test: what it refuses, asks for, does and leaves behind."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import unittest
import zipfile

SETUP = pathlib.Path(__file__).resolve().parents[2] / "scripts/setup"
ALL_INSTALLED = '#!/bin/sh\nfor name; do case $name in -*) ;; *) echo "installed $name" ;; esac; done\n'
NONE_INSTALLED = "#!/bin/sh\nexit 1\n"
APT = """#!/bin/sh
echo "apt-get $*" >>"$HOME/apt"
case "$*" in
  *update*) ;;
  -s*) echo "Remv old-ccache [1.0]"; echo "Inst ccache"; echo "Inst libhiredis"; echo "Conf ccache"; echo "Conf libhiredis" ;;
  *) echo "Get:1 ccache"; echo "Unpacking ccache"; echo "Setting up ccache"; echo "Setting up libhiredis"; touch "$HOME/there" ;;
esac
"""
# Stand for what comes from the index: by name, the version and what is in it.
WHEELS = {
    "cuda_toolkit": ("13.0.2", {}, "Provides-Extra: cudart\nRequires-Dist: nvidia-cuda-runtime; extra == 'cudart'\n"
                     "Provides-Extra: cupti\nRequires-Dist: nvidia-cuda-cupti; extra == 'cupti'\n"
                     "Provides-Extra: crt\nRequires-Dist: nvidia-cuda-crt; extra == 'crt'\n"
                     "Provides-Extra: cccl\nRequires-Dist: nvidia-cuda-cccl; extra == 'cccl'\n"
                     "Provides-Extra: nvcc\nRequires-Dist: nvidia-cuda-nvcc; extra == 'nvcc'\n"),
    "nvidia_cuda_nvcc": ("13.0.88", {"nvidia/cu13/bin/nvcc": "x"}, "Requires-Dist: nvidia-nvvm\n"),
    "nvidia_nvvm": ("13.0.88", {"nvidia/cu13/nvvm/bin/cicc": "x"}, ""),
    "nvidia_cuda_runtime": ("13.0.2", {"nvidia/cudart.so": "x", "nvidia/cu13/include/cuda.h": "x"}, ""),
    "nvidia_cuda_crt": ("13.0.2", {"nvidia/cu13/include/crt/host_config.h": "x"}, ""),
    "nvidia_cuda_cccl": ("13.0.85", {"nvidia/cu13/include/nv/target": "x"}, ""),
    "nvidia_nccl_cu13": ("2.28.9", {"nvidia/nccl/include/nccl.h": "x", "nvidia/nccl/lib/libnccl.so.2": "x"}, ""),
    "nvidia_cuda_cupti": ("13.0.2", {"nvidia/cupti.so": "x"}, ""),
    "torch": ("2.11.0", {"torch/__init__.py": "import a_dependency\n", "torch/distributed.py": ""}, "Requires-Dist: a_dependency\n"),
    "a_dependency": ("1.0", {"a_dependency.py": ""}, ""),
    "numpy": ("2.0", {"numpy.py": ""}, ""),
}
NOT_WANTED = '#!/bin/sh\necho "$0 $* was called" >&2\nexit 66\n'


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hvd-setup-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = self.folder / "cache/hvdrun/torch-2.11.0"
        self.temporary = self.folder / "cache/hvdrun/torch-2.11.0.tmp"
        (self.folder / "bin").mkdir()
        self.system('ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12"\n')
        self.program("dpkg-query", ALL_INSTALLED)
        self.program("apt-get", NOT_WANTED)
        self.program("python3", NOT_WANTED)  # so that no torch of this machine is found

    def system(self, text):
        (self.folder / "system/etc").mkdir(parents=True, exist_ok=True)
        (self.folder / "system/etc/os-release").write_text(text)

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def index(self):
        """A folder with the wheels that setup asks for, as variables that point pip to it."""
        folder = self.folder / "wheels"
        folder.mkdir()
        for name, (version, files, words) in WHEELS.items():
            record = f"{name}-{version}.dist-info"
            files = {**files, f"{record}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{words}",
                     f"{record}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
            files[f"{record}/RECORD"] = "".join(f"{file},,{len(text)}\n" for file, text in files.items()) + f"{record}/RECORD,,\n"
            with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
                for file, text in files.items():
                    wheel.writestr(file, text)
        self.room(10000)
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}

    def room(self, mebibytes):
        """What is free on the disk: with none, setup fails before it makes an environment, which takes seconds."""
        self.program("df", f"#!/bin/sh\necho Avail; echo {mebibytes}\n")

    def installed(self, environment=None):
        folder = next((environment or self.environment).glob("lib/python3*/site-packages"))
        return {path.name.split("-")[0] for path in folder.glob("*.dist-info")} & set(WHEELS)

    def run_setup(self, *arguments, **more):
        with self.start(*arguments, **more) as setup:
            try:
                said = setup.communicate(timeout=100)[0]
            finally:
                setup.kill()
        return setup.returncode, said

    def start(self, *arguments, **more):
        variables = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "HVD_SYSTEM_ROOT": str(self.folder / "system"),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": "http://127.0.0.1:9/none",  # nothing listens there
            "PIP_RETRIES": "0",
            **more,
        }
        variables = {name: value for name, value in variables.items() if value is not None}
        return subprocess.Popen([str(SETUP), *arguments], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, start_new_session=True)

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

    def test_without_home_the_passwd_database_says_where_files_are(self):
        home = self.folder / "home"
        environment = home / ".cache/hvdrun/torch-2.11.0"
        environment.mkdir(parents=True)
        (environment / "complete").write_text("cpp\n")
        self.program("getent", f'#!/bin/sh\n[ "$*" = "passwd {os.getuid()}" ] && echo "me:x:1:1:Me:{home}:/bin/sh"\n')
        nowhere = {"HOME": None, "XDG_CACHE_HOME": None}
        status, said = self.run_setup(**nowhere)
        self.assertEqual(status, 0, said)
        self.assertIn(f"LibTorch: {environment} (cpp)", said)
        self.program("getent", "#!/bin/sh\nexit 2\n")
        status, said = self.run_setup(**nowhere)
        self.assertEqual((status, said), (1, "setup: neither HOME nor the user's entry in the passwd database says where your files are; "
                                             "set HOME or XDG_CACHE_HOME\n"))
        status, said = self.run_setup("--help", **nowhere)
        self.assertEqual(status, 0, said)
        self.assertIn("usage: scripts/setup", said)

    def test_unknown_options_are_refused(self):
        status, said = self.run_setup("--peer")
        self.assertEqual((status, "no option --peer" in said), (2, True), said)

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

    def test_missing_packages_come_by_apt(self):
        self.program("dpkg-query", ALL_INSTALLED.replace("-*) ;;", '-*) ;; ccache) [ ! -e "$HOME/there" ] || echo "installed $name" ;;'))
        self.program("id", "#!/bin/sh\necho 0\n")
        self.program("apt-get", APT)
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertIn("1 packages by name, 2 in all: ccache", said)
        self.assertIn("apt-get removes, since they cannot stay beside these: old-ccache\n", said)
        self.assertIn("2 of 2 set up", said)
        self.assertEqual(len((self.folder / "apt").read_text().splitlines()), 3)
        self.assertEqual(self.run_setup()[0], 0)
        self.assertEqual(len((self.folder / "apt").read_text().splitlines()), 3)  # the second time it asks for nothing

    def test_who_installs_at_that_time_is_waited_for(self):
        self.program("dpkg-query", ALL_INSTALLED.replace("-*) ;;", "-* | ccache) ;;"))
        self.program("id", "#!/bin/sh\necho 0\n")
        # Each call has no lock at first.
        self.program("apt-get", APT.replace('case "$*"', """name=$(echo "$*" | tr -c 'a-z\n' _)
[ -e "$HOME/tried$name" ] || case $1 in -s) ;; *)
  touch "$HOME/tried$name"; echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7"; exit 100 ;; esac
case "$*\"""", 1))
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertEqual(said.count("another program installs or updates packages: waiting, at most 10 minutes"), 1, said)
        self.assertIn("2 of 2 set up", said)
        self.assertEqual(len((self.folder / "apt").read_text().splitlines()), 5)

    def test_progress_is_told_as_it_is_made(self):
        self.program("dpkg-query", ALL_INSTALLED.replace("-*) ;;", "-* | ccache) ;;"))
        self.program("id", "#!/bin/sh\necho 0\n")
        # Says nothing more and fails unless somebody has read what it said before.
        self.program("apt-get", APT.replace('"Unpacking ccache"', '"Unpacking ccache"; timeout 30 head -n 1 "$HOME/read" || exit 1'))
        os.mkfifo(self.folder / "read")
        read = os.open(self.folder / "read", os.O_RDWR)
        self.addCleanup(os.close, read)
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        with self.start() as setup:
            said = []
            for line in setup.stdout:
                said.append(line)
                if line == "setup:   unpacking\n":
                    os.write(read, b"\n")
        self.assertEqual(setup.returncode, 0, said)
        self.assertEqual(said[-5:-2], ["setup:   downloading\n", "setup:   unpacking\n", "setup:   2 of 2 set up\n"])

    def test_what_an_interrupted_run_left_is_gone_on_with(self):
        self.program("dpkg-query", ALL_INSTALLED.replace("-*) ;;", '-*) ;; ccache) [ ! -e "$HOME/there" ] || echo "installed $name" ;;'))
        self.program("id", "#!/bin/sh\necho 0\n")
        self.program("apt-get", APT.replace('echo "Inst ccache"; echo "Inst libhiredis"; ', ""))  # unpacked, not set up
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertIn("2 of 2 set up", said)
        (self.folder / "there").unlink()
        self.program("apt-get", APT.replace('*) echo "Get:1', '*) echo "E: dpkg was interrupted"; exit 100; echo "Get:1'))
        status, said = self.run_setup()
        self.assertEqual(status, 1, said)
        self.assertIn("E: dpkg was interrupted", said)
        self.assertIn("try: dpkg --configure -a", said)

    def test_a_policy_of_a_setup_that_was_killed_is_removed(self):
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        policy = self.folder / "system/usr/sbin/policy-rc.d"
        policy.parent.mkdir(parents=True)
        with subprocess.Popen(["sleep", "60"]) as other:
            ours = f"#!/bin/sh\n# of hvdrun's setup, process {other.pid}\nexit 101\n"
            policy.write_text(ours)
            status, said = self.run_setup()
            self.assertEqual((status, policy.exists()), (0, True), said)  # that one is still at work
            other.kill()
        for text, stays in ((ours, False), ("#!/bin/sh\nexit 101\n", True)):
            policy.write_text(text)
            status, said = self.run_setup()
            self.assertEqual((status, policy.exists()), (0, stays), said)

    def test_sshd_comes_without_its_service(self):
        self.program("dpkg-query", ALL_INSTALLED.replace("-*) ;;", '-*) ;; openssh-server) [ ! -e "$HOME/there" ] || echo "installed $name" ;;'))
        self.program("id", "#!/bin/sh\necho 0\n")
        self.program("apt-get", APT + 'system=$HOME/system\n"$system/usr/sbin/policy-rc.d" || echo "$?" >>"$HOME/policy"\n'
                     'readlink "$system/etc/systemd/system/ssh.service" >>"$HOME/policy"\n')
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        policy = self.folder / "system/usr/sbin/policy-rc.d"
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertEqual((self.folder / "policy").read_text(), "101\n/dev/null\n" * 3)
        self.assertFalse(policy.exists())
        (self.folder / "there").unlink()  # one that is there already is asked and stays
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertTrue(policy.exists())

    def test_the_administrators_own_sshd_stays(self):
        self.program("dpkg-query", ALL_INSTALLED.replace("-*) ;;", '-*) ;; openssh-server) [ ! -e "$HOME/there" ] || echo "installed $name" ;;'))
        self.program("id", "#!/bin/sh\necho 0\n")
        self.program("apt-get", APT)
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        units = self.folder / "system/etc/systemd/system"
        units.mkdir(parents=True)
        (units / "ssh.service").write_text("[Unit]\n")
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertEqual((units / "ssh.service").read_text(), "[Unit]\n")
        self.assertEqual(str((units / "ssh.socket").readlink()), "/dev/null")
        self.assertIn("systemctl unmask ssh.socket would", said)

    def test_libtorch_gets_an_environment_and_peers_complete_it(self):
        index, log = self.index(), self.folder / "log"
        status, said = self.run_setup(PIP_LOG=str(log), **index)
        self.assertEqual(status, 0, said)
        self.assertEqual((self.environment / "complete").read_text(), "cpp\n")
        unpacked = re.findall("Created temporary directory: (.*)/", log.read_text())
        self.assertEqual((set(unpacked), self.temporary.exists()), ({str(self.temporary)}, False))
        self.assertEqual(self.installed(), {"cuda_toolkit", "nvidia_cuda_runtime", "nvidia_cuda_cupti", "torch"})
        status, said = self.run_setup("--peers", **index)
        self.assertEqual(status, 0, said)
        self.assertEqual((self.environment / "complete").read_text(), "python\n")
        self.assertEqual(self.installed(), set(WHEELS) - {"nvidia_cuda_nvcc", "nvidia_nvvm", "nvidia_cuda_crt", "nvidia_cuda_cccl", "nvidia_nccl_cu13"})
        (self.environment / "complete").unlink()  # interrupted when all was there: nothing is fetched again
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        self.assertNotIn("removing", said)
        next(self.environment.glob("lib/python3*/site-packages/nvidia/cupti.so")).unlink()
        (self.environment / "complete").unlink()
        status, said = self.run_setup(**index)
        self.assertEqual(status, 0, said)
        self.assertIn("removing", said)

    def test_cuda_gets_an_environment_unless_the_machine_has_it(self):
        self.environment.mkdir(parents=True)
        (self.environment / "complete").write_text("cpp\n")
        own = self.folder / "cache/hvdrun/cuda-13.0.2"
        status, said = self.run_setup(**self.index())
        self.assertEqual((status, own.exists()), (0, False), said)  # nobody asked
        include = self.folder / "system/usr/local/cuda/include"
        include.mkdir(parents=True)
        nccl = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 27\n#define NCCL_PATCH 0\n"
        (include / "nccl.h").write_text(nccl)
        (include / "cuda.h").write_text("")
        (include / "nv").mkdir()
        (include / "nv/target").write_text("")
        nvcc = include.parent / "bin/nvcc"
        nvcc.parent.mkdir()
        nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.61'\n")
        nvcc.chmod(0o755)
        status, said = self.run_setup("--cuda")
        self.assertEqual((status, own.exists()), (0, False), said)
        self.assertIn("CUDA and NCCL: the machine's own\n", said)
        self.room(0)
        nvcc.chmod(0o644)
        status, said = self.run_setup("--cuda")
        self.assertNotEqual(status, 0)
        self.assertIn("this machine lacks nvcc; so", said)
        self.assertIn("0 MiB free", said)
        nvcc.chmod(0o755)
        good = nvcc.read_text()
        nvcc.write_text(good.replace("12.8", "11.10"))  # what scripts/build would refuse, and send here
        status, said = self.run_setup("--cuda")
        self.assertNotEqual(status, 0)
        self.assertIn(f"this machine lacks nvcc 12.8 or newer (not {nvcc} 11.10); so", said)
        nvcc.write_text(good)
        (include / "nccl.h").write_text(nccl.replace("27", "9"))
        status, said = self.run_setup("--cuda")
        self.assertNotEqual(status, 0)
        self.assertIn(f"this machine lacks nccl.h 2.27 or newer (not {include}/nccl.h 2.9); so", said)
        (include / "nccl.h").unlink()
        self.room(10000)
        status, said = self.run_setup("--cuda")
        self.assertNotEqual(status, 0)  # there is no index to install from
        status, said = self.run_setup("--cuda", PIP_NO_INDEX="1", PIP_FIND_LINKS=str(self.folder / "wheels"))
        self.assertEqual(status, 0, said)
        self.assertIn("which an interrupted run has left", said)
        self.assertIn("this machine lacks nccl.h; so", said)
        self.assertEqual((own / "complete").read_text(), "cuda\n")
        self.assertEqual(self.installed(own), {"cuda_toolkit", "nvidia_cuda_nvcc", "nvidia_nvvm", "nvidia_cuda_runtime", "nvidia_cuda_crt", "nvidia_cuda_cccl", "nvidia_nccl_cu13"})
        status, said = self.run_setup("--cuda")  # the second time it asks for nothing
        self.assertEqual(status, 0, said)
        self.assertIn(f"CUDA and NCCL: {own}\n", said)
        library = next(own.glob("lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
        self.assertIn(f"-x HVD_NCCL_LIBRARY={library} names it", said)
        self.assertNotIn("making", said)
        self.room(0)
        next(own.glob("lib/python3*/site-packages/nvidia/nccl/include/nccl.h")).unlink()
        self.assertEqual(self.run_setup("--cuda")[0], 0)
        (own / "complete").unlink()  # not before it is known to be interrupted are files looked at
        self.assertNotEqual(self.run_setup("--cuda")[0], 0)

    def test_a_setup_that_is_ended_leaves_no_temporary_files(self):
        self.room(10000)
        with socket.create_server(("127.0.0.1", 0)) as index:
            index.settimeout(60)
            with self.start(PIP_INDEX_URL=f"http://127.0.0.1:{index.getsockname()[1]}/none") as setup:
                try:
                    with index.accept()[0]:  # pip waits for an answer
                        self.assertTrue(self.temporary.exists())
                        os.killpg(setup.pid, signal.SIGTERM)
                        said = setup.communicate(timeout=60)[0]  # to the end of all that setup has started
                finally:
                    setup.kill()
        self.assertEqual((setup.returncode, self.temporary.exists()), (-signal.SIGTERM, False), said)

    def test_a_torch_of_python3s_own_is_taken_even_if_it_warns(self):
        self.program("python3", '#!/bin/sh\necho "a warning" >&2\ncase $* in *find_torch*) echo /a/torch; echo 2.12.0 ;; esac\n')
        for arguments in ((), ("--peers",)):
            status, said = self.run_setup(*arguments)
            self.assertEqual(status, 0, said)
            self.assertIn("LibTorch: python3's own, /a/torch 2.12.0", said)
            self.assertFalse(self.environment.exists())

    def test_a_torch_without_numpy_does_not_do_for_peers_and_it_is_said_why(self):
        self.program("python3", """#!/bin/sh
            case $* in
              *find_torch*) echo /a/torch; echo 2.12.0 ;;
              *) echo "Traceback" >&2; echo "ModuleNotFoundError: No module named 'numpy'" >&2; exit 1 ;;
            esac""")
        status, said = self.run_setup()
        self.assertEqual(status, 0, said)
        status, said = self.run_setup("--peers", **self.index())
        self.assertEqual(status, 0, said)
        self.assertIn("LibTorch: python3 cannot import both NumPy and torch.distributed: ModuleNotFoundError: No module named "
                      "'numpy'; so it gets an environment of its own", said)
        self.assertEqual((self.environment / "complete").read_text(), "python\n")

    def torch(self):
        """A folder that looks as LibTorch does."""
        torch = self.folder / "own torch"
        for name, text in (("lib/libtorch_cpu.so", ""), ("lib/libc10.so", "__cxx11"), ("version.py", "__version__ = '2.12.0'\n"),
                           ("include/torch/csrc/api/include/torch/torch.h", "")):
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / name).write_text(text)
        return torch

    def test_the_torch_of_hvd_torch_dir_is_taken_or_refused(self):
        self.program("python3", '#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
        torch = self.torch()
        status, said = self.run_setup(HVD_TORCH_DIR=str(torch))
        self.assertEqual(status, 0, said)
        self.assertIn(f"LibTorch: that of HVD_TORCH_DIR, {torch} 2.12.0", said)
        self.assertFalse(self.environment.exists())
        status, said = self.run_setup(HVD_TORCH_DIR="own torch")
        self.assertEqual(status, 1, said)
        self.assertIn("HVD_TORCH_DIR=own torch is relative; give the whole path", said)
        (torch / "lib/libc10.so").unlink()
        status, said = self.run_setup(HVD_TORCH_DIR=str(torch))
        self.assertEqual(status, 1, said)
        self.assertIn(f"HVD_TORCH_DIR={torch} cannot be used: {torch} has no lib/libc10.so", said)
        self.assertFalse(self.environment.exists())

    def test_peers_get_a_torch_that_python_imports_beside_hvd_torch_dir(self):
        self.program("python3", '#!/bin/sh\ncase $* in *find_torch.py) exit 1 ;; esac\nexec /usr/bin/python3 "$@"\n')
        status, said = self.run_setup("--peers", HVD_TORCH_DIR=str(self.torch()), **self.index())
        self.assertEqual(status, 0, said)
        self.assertIn("LibTorch: that of HVD_TORCH_DIR", said)
        self.assertEqual((self.environment / "complete").read_text(), "python\n")

    def test_build_configures_with_hvd_torch_dir(self):
        self.program("cmake", '#!/bin/sh\nfor word; do echo "$word"; done >>"$HOME/cmake"\necho "-- LibTorch: played"\n')
        for variables, wanted in (({}, []), ({"HVD_TORCH_DIR": str(self.torch())}, [f"-DHVD_TORCH_DIR={self.torch()}"])):
            subprocess.run([str(SETUP.parent / "build"), "tsan"], check=True, timeout=60, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL,
                           env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), **variables})
            said = (self.folder / "cmake").read_text().splitlines()
            (self.folder / "cmake").unlink()
            self.assertEqual([word for word in said if "TORCH" in word], wanted)

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
        self.assertFalse(self.temporary.exists())
        status, said = self.run_setup()
        self.assertNotEqual(status, 0)
        self.assertIn("which an interrupted run has left", said)


if __name__ == "__main__":
    unittest.main()
