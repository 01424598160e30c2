"""Ranks as processes whose tensors lie on GPUs: libhvd opens its plug-in, that the driver's and NCCL's stand-ins."""
import os
import re
import signal
import time

import support
from support import expect, ranks_of, run, start, wait_for


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
                           (b"NCCL_COMM_ID is set, ", {"NCCL_COMM_ID": "127.0.0.1:5000"})):
        seen = sums("3", "1", **standin)
        expect(seen.returncode, 3, seen.stderr)
        assert words in seen.stderr, (words, seen.stderr)


def two_ranks_on_one_gpu_are_told_so_in_nccls_words():
    seen = sums("3", "0", HVD_STANDIN_DEVICES="1")
    expect(seen.returncode, 3, seen.stderr)
    assert seen.stderr.count(b"Duplicate GPU detected") >= 2, seen.stderr


# Its driver ends as it did for a peer that went: by a hang, or by an error of its own.
def a_rank_that_is_killed_in_a_sum_ends_all_by_name():
    for remote_error in "0", "1":
        job = start("--no-tag-output", "--", support.options.worker, "sums", "0", np=4, env=settings(HVD_STANDIN_PEER_DEATH_ERROR=remote_error))
        for _ in range(4):
            job.stdout.readline()
        pid = next(pid for pid in wait_for(lambda: len(ranks_of(job.pid)) == 4 and ranks_of(job.pid))
                   if "HVD_RANK=2" in support.read(pid, "environ").split())
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        _, err = job.communicate(timeout=30)
        took = time.monotonic() - begin
        expect(job.returncode, 128 + signal.SIGKILL, err)
        assert took < 8, (took, err)
        lines = err.decode().splitlines()
        assert lines[-1].startswith("hvdrun: first failure: rank 2 "), err
        assert any("rank 2" in line and "failed" in line for line in lines[:-1]), err


def an_error_on_a_device_ends_all_ranks_by_nccls_words():
    seen = sums("0", np=3, HVD_STANDIN_ASYNC_ERROR_AFTER="5", HVD_STANDIN_FAULT_RANK="1")
    expect(seen.returncode, 3, seen.stderr)
    assert seen.stderr.count(b"unhandled cuda error") >= 3 and b"rank 1" in seen.stderr, seen.stderr


support.parse_options("worker", "cuda", "nccl")
support.main(sums_of_ranks_with_a_gpu_each, what_is_missing_is_said, two_ranks_on_one_gpu_are_told_so_in_nccls_words,
             a_rank_that_is_killed_in_a_sum_ends_all_by_name, an_error_on_a_device_ends_all_ranks_by_nccls_words)
