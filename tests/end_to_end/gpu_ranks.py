"""Ranks as processes whose tensors lie on GPUs: libhvd opens its plug-in, that the driver's and NCCL's stand-ins."""
import os
import pathlib
import re
import shutil
import signal
import socket
import tempfile
import threading
import time

import support
from support import expect, ranks_of, run, start, wait_for


# At a rank's end LeakSanitizer itself fails now and then ("Tracer caught signal 11") over threads that end meanwhile; the unit tests
# of the same look for leaks.
os.environ["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "detect_leaks=0"]))


def settings(**standin):
    found = {"HVD_CUDA_LIBRARY": support.options.cuda, "HVD_NCCL_LIBRARY": support.options.nccl, "HVD_STANDIN_DEVICES": "4"}
    return {**os.environ, **found, **standin}


def sums(*words, np=2, **standin):
    return run("--no-tag-output", "--", support.options.worker, "sums", *words, np=np, env=settings(**standin))


def sums_of_ranks_with_a_gpu_each():
    for np in 1, 2, 4:
        seen = sums("20", np=np)
        expect(seen.returncode, 0, seen.stderr)
        names = sorted(seen.stdout.decode().splitlines())
        expect(len(names), np)
        for number, name in enumerate(names):
            assert re.fullmatch(rf"NCCL 2\.\d+\.\d+ on GPU {number}, NVIDIA Stand-in", name), names


def what_is_missing_is_said():
    for words, standin in ((b"the CUDA driver cannot be loaded: /gone/libcuda.so", {"HVD_CUDA_LIBRARY": "/gone/libcuda.so"}),
                           (b"NCCL cannot be loaded: /gone/libnccl.so", {"HVD_NCCL_LIBRARY": "/gone/libnccl.so"}),
                           (b"NCCL 2.18.1 in ", {"HVD_STANDIN_NCCL_VERSION": "21801"}),
                           (b"CUDA 11.8, too old; 12.0 is needed", {"HVD_STANDIN_DRIVER_VERSION": "11080"}),
                           (b"CUDA cannot be used here: ", {"HVD_STANDIN_INIT_RESULT": "100"}),
                           (b"there is no GPU 1 here", {"HVD_STANDIN_DEVICES": "1"}),
                           (b"NCCL_COMM_ID is set, ", {"NCCL_COMM_ID": "127.0.0.1:5000"}),
                           (b"NCCL_COMM_ID is set, ", {"HVD_STANDIN_CONF": "NCCL_COMM_ID=127.0.0.1:5000"}),
                           (b"NCCL_COMM_BLOCKING=1 is set, ", {"NCCL_COMM_BLOCKING": "1"}),
                           (b"NCCL_COMM_BLOCKING=1 is set, ", {"HVD_STANDIN_CONF": "NCCL_COMM_BLOCKING=1"})):
        seen = sums("3", "1", **standin)
        expect(seen.returncode, 3, seen.stderr)
        assert words in seen.stderr, (words, seen.stderr)


def a_plug_in_of_another_build_is_refused():
    lib = pathlib.Path(support.options.nccl).parent
    with tempfile.TemporaryDirectory() as mixed:
        for name in "libhvd.so.0.1", "libhvd_nccl.so":
            shutil.copy(lib / name, mixed)
        plug_in = pathlib.Path(mixed, "libhvd_nccl.so")
        plug_in.write_bytes(re.sub(rb"(hvd_of_the_same_build_)[0-9a-f]{16}", rb"\g<1>................", plug_in.read_bytes()))
        seen = sums("3", LD_LIBRARY_PATH=mixed)
    expect(seen.returncode, 3, seen.stderr)
    assert b"libhvd_nccl.so and libhvd are of different builds; install both from one" in seen.stderr, seen.stderr


def two_ranks_on_one_gpu_are_told_so_in_nccls_words():
    seen = sums("3", "0", HVD_STANDIN_DEVICES="1")
    expect(seen.returncode, 3, seen.stderr)
    assert seen.stderr.count(b"Duplicate GPU detected") >= 2, seen.stderr
    assert seen.stderr.count(b"; hvdrun --share-gpu lets ranks share one") >= 2, seen.stderr


# The others' NCCL takes that by a hang, or by an error of its own. Rank 0's process made the unique id.
def a_rank_that_is_killed_in_a_sum_ends_all_by_name():
    for who, remote_error in (2, "0"), (2, "1"), (0, "0"), (0, "1"):
        job = start("--no-tag-output", "--", support.options.worker, "sums", "0", np=4, env=settings(HVD_STANDIN_PEER_DEATH_ERROR=remote_error))
        for _ in range(4):
            job.stdout.readline()
        pid = next(pid for pid in wait_for(lambda: len(ranks_of(job.pid)) == 4 and ranks_of(job.pid))
                   if f"HVD_RANK={who}" in support.read(pid, "environ").split())
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        _, err = job.communicate(timeout=30)
        took = time.monotonic() - begin
        expect(job.returncode, 128 + signal.SIGKILL, err)
        assert took < 8, (took, err)
        lines = err.decode().splitlines()
        assert lines[-1].startswith(f"hvdrun: first failure: rank {who} "), err
        assert any("failed" in line and f"rank {who}" in line for line in lines[:-1]), err
        assert b"remote process exited" not in err, err


def an_error_on_a_device_ends_all_ranks_by_nccls_words():
    seen = sums("0", np=3, HVD_STANDIN_ASYNC_ERROR_AFTER="5", HVD_STANDIN_FAULT_RANK="1")
    expect(seen.returncode, 3, seen.stderr)
    assert seen.stderr.count(b"unhandled cuda error") >= 3 and b"rank 1" in seen.stderr, seen.stderr


# (where, who, the limit, what others say when a rank stands there, the worker's words). What a rank has launched may have been
# done before it stood still: the others then wait for it in the next sum, and know its name.
NCCL_POINTS = (("nccl_share_ids", 0, "--start-timeout", "waited 3 s for rank 0 in sharing NCCL's unique ids", ("sums", "0")),
               ("nccl_connect", 0, "--start-timeout", "waited 3 s for NCCL, which names no rank, in connecting the ranks' GPUs", ("sums", "0")),
               ("nccl_connect", 1, "--start-timeout", "waited 3 s for NCCL, which names no rank, in connecting the ranks' GPUs", ("sums", "0")),
               ("nccl_launched", 1, "--collective-timeout", 'waited 3 s for (NCCL, which names no rank, in allreduce|rank 1 in) "sum"', ("sums", "0")),
               ("nccl_abort", 1, "--collective-timeout", "the check ends it", ("abort", "2")))


def a_rank_that_is_killed_or_stopped_inside_nccl_ends_all_by_name():
    for point, who, limit, words, worker in NCCL_POINTS:
        for action in "kill", "stop":
            begin = time.monotonic()
            seen = run("--no-tag-output", limit, "3", "-x@", str(who), f"HVD_FAULT_POINT={point}:1:{action}", "--", support.options.worker, *worker, np=3, env=settings())
            took = time.monotonic() - begin
            note = (point, action, took, seen.stderr)
            assert seen.returncode not in (0, 124), note
            assert took < (8 if action == "kill" else 15), note
            assert f"rank {who}".encode() in seen.stderr, note
            assert action == "kill" or re.search(words, seen.stderr.decode()), note


def killed_at(point, *words, **standin):
    """What ranks say, of which number 1 ends there."""
    begin = time.monotonic()
    seen = run("--no-tag-output", "-x@", "1", f"HVD_FAULT_POINT={point}:kill", "--", support.options.worker, *words, np=3, env=settings(**standin))
    took = time.monotonic() - begin
    note = (point, took, seen.stderr)
    expect(seen.returncode, 128 + signal.SIGKILL, note)
    assert took < 8, note
    assert seen.stderr.decode().splitlines()[-1].startswith("hvdrun: first failure: rank 1 "), note
    return seen.stdout.decode()


# From the first collective to steps in windows, by way of what registers them.
def a_rank_that_is_killed_while_windows_are_made_and_used_ends_all_by_name():
    for call in range(1, 9):
        killed_at(f"collective_entered:{call}", "steps", HVD_STANDIN_NCCL_VERSION="22907")


def a_rank_that_is_killed_in_leaving_is_named_and_the_others_end():
    for call in 1, 2:  # the communicators of CPUs and of GPUs
        said = killed_at(f"collective_closed:{call}", "sums", "3")
        expect(said.count(" on GPU "), 3, said)


def what_one_rank_alone_lacks_is_said_on_all_by_its_name():
    for words, setting in ((r"rank 1: NCCL cannot be loaded: /gone/libnccl.so: ", "HVD_NCCL_LIBRARY=/gone/libnccl.so"),
                           (r"rank 1: NCCL_COMM_ID is set, ", "HVD_STANDIN_CONF=NCCL_COMM_ID=127.0.0.1:5000"),
                           (r"rank 1( died|: )", "HVD_CUDA_LIBRARY=/gone/libcuda.so")):
        seen = run("--no-tag-output", "-x@", "1", setting, "--", support.options.worker, "sums", "3", np=3, env=settings())
        expect(seen.returncode, 3, seen.stderr)
        assert len(re.findall(rf"failed: {words}", seen.stderr.decode())) >= 2, (setting, seen.stderr)
        assert setting.split("/")[-1].encode() in seen.stderr or b"NCCL_COMM_ID" in seen.stderr, (setting, seen.stderr)
        assert seen.stderr.decode().splitlines()[-1].startswith("hvdrun: first failure: rank 1 "), (setting, seen.stderr)


def a_rank_that_nccl_does_not_let_abort_ends_and_is_named():
    seen = run("--no-tag-output", "--", support.options.worker, "abort", "2", np=3, env=settings(HVD_STANDIN_ABORT_HANGS="1", HVD_STANDIN_FAULT_RANK="1"))
    assert seen.returncode not in (0, 124), seen.stderr
    assert b"hvd: rank 1 ends, since NCCL did not end its abort within 5000 ms\n" in seen.stderr, seen.stderr
    assert re.search(rb"failed: rank 2: the check ends it; rank 1 could not end its abort of NCCL, and ended itself\n", seen.stderr), seen.stderr


def on_the_network(job):
    """All that passes the loopback device while job() runs."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        tap.bind(("lo", 0))
        tap.settimeout(0.2)
        over, packets = threading.Event(), []

        def listen():
            while True:
                try:
                    packets.append(tap.recv(1 << 17))
                except TimeoutError:
                    if over.is_set():
                        return
        thread = threading.Thread(target=listen)
        thread.start()
        try:
            job()
        finally:
            over.set()
            thread.join()
    return b"|".join(packets)


# It is all that one needs to be taken for a rank by NCCL.
def no_unique_id_is_seen_between_hosts():
    words = []

    def job():
        seen = run("--no-tag-output", "--pretend-hosts", "2x1", "-x@", "1", "HVD_STANDIN_DEVICE_PCI=0000:20:00.0", "--", support.options.worker, "sums", "5", np=2, env=settings())
        expect(seen.returncode, 0, seen.stderr)
        words.append(seen.stdout)
    try:
        packets = on_the_network(job)
    except PermissionError:
        return "left out: no listening to the loopback device"
    assert b"sum" in packets, "not even the operation's name was seen"
    assert b"@hvd-standin-" not in packets, "a unique id was seen"


support.parse_options("worker", "cuda", "nccl")
support.main(sums_of_ranks_with_a_gpu_each, what_is_missing_is_said, a_plug_in_of_another_build_is_refused, two_ranks_on_one_gpu_are_told_so_in_nccls_words,
             a_rank_that_is_killed_in_a_sum_ends_all_by_name, a_rank_that_is_killed_or_stopped_inside_nccl_ends_all_by_name, a_rank_that_nccl_does_not_let_abort_ends_and_is_named,
             a_rank_that_is_killed_while_windows_are_made_and_used_ends_all_by_name, a_rank_that_is_killed_in_leaving_is_named_and_the_others_end,
             what_one_rank_alone_lacks_is_said_on_all_by_its_name, no_unique_id_is_seen_between_hosts, an_error_on_a_device_ends_all_ranks_by_nccls_words)
