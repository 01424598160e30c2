"""What the last lines on stderr and the result file say about a job that failed."""
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap

import support
from support import expect, run, sh, start, wait_for, wait_for_ranks, wait_for_words


def result_of(script, *flags, np=2):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        seen = sh(script, "--result-file", path, *flags, np=np)
        with open(path) as file:
            return seen, json.load(file)


def the_first_failure_is_named_with_its_stderr():
    seen = sh("if [ $HVD_RANK = 1 ]; then for i in $(seq 30); do echo line $i >&2; done; exit 5; fi; sleep 60", np=4)
    text = seen.stderr.decode()
    expect(seen.returncode, 5)
    last = text.splitlines()[-1]
    assert last.startswith("hvdrun: first failure: rank 1 (pid ") and " on localhost exited with code 5 after " in last, text
    assert "  | line 30" in text and "  | line 11\n" in text and "  | line 10\n" not in text, text
    assert "only fallout: rank" in text and "was killed by SIGTERM" in text, text


def last_lines_that_come_through_a_filter_are_in_the_report():
    script = "exec 2> >(sort -n | while read -r line; do echo line $line; done >&2); seq 300 >&2; exit 3"
    for np, ranks in (1, script), (3, f"[ $HVD_RANK = 1 ] || exec sleep 60; {script}"):
        seen, result = result_of(ranks, "--no-tag-output", np=np)
        expect(seen.returncode, 3)
        expect([line for line in seen.stderr.decode().splitlines() if line.startswith("line ")],
               [f"line {i}" for i in range(1, 301)])
        expect(result["first_failure"]["stderr_tail"], [f"line {i}" for i in range(281, 301)])


def what_its_helpers_say_to_their_end_does_not_push_out_a_ranks_last_lines():
    helper = "trap 'trap \"\" TERM; for i in {1..25}; do echo helper $i >&2; done; exit 1' TERM; echo > ready; tail -f /dev/null & wait; kill -TERM $$"
    failing = 'mkfifo ready; bash -c "$0" & read -r x < ready; {}; exit 3'
    for np in 1, 3:
        for words, tail in ("echo the reason >&2", ["the reason"]), ("true", [f"helper {i}" for i in range(6, 26)]):
            with tempfile.TemporaryDirectory() as folder:
                script = f"[ $HVD_RANK = 0 ] || exec tail -f /dev/null; {failing.format(words)}"
                path = os.path.join(folder, "result.json")
                seen = run("-np", str(np), "--no-tag-output", "--wdir", folder, "--result-file", path, "bash", "-c", script, helper)
                expect(seen.returncode, 3)
                said = [line for line in seen.stderr.decode().splitlines() if line.startswith("helper ")]
                expect(said, [f"helper {i}" for i in range(1, 26)])
                with open(path) as file:
                    expect(json.load(file)["first_failure"]["stderr_tail"], tail)


def a_crash_is_named_by_its_signal():
    seen = sh("if [ $HVD_RANK = 1 ]; then kill -SEGV $$; fi; sleep 60", np=3)
    expect(seen.returncode, 139)
    assert b"rank 1" in seen.stderr.splitlines()[-1] and b"was killed by SIGSEGV" in seen.stderr.splitlines()[-1], seen.stderr


def a_job_that_went_well_says_nothing():
    expect(sh("true", np=1).stderr, b"")


def the_result_file_says_it_to_scripts():
    seen, result = result_of("if [ $HVD_RANK = 1 ]; then echo oops >&2; exit 5; fi; sleep 60", np=3)
    expect(seen.returncode, 5)
    expect((result["version"], result["size"], result["exit_code"], result["signal"], result["cause"]),
           (1, 3, 5, None, "rank_failed"))
    assert re.fullmatch(r"rank 1 \(pid \d+\) on localhost exited with code 5 after .* s", result["cause_text"]), result
    first = result["first_failure"]
    expect((first["rank"], first["host"], first["exit_code"], first["signal"], first["stderr_tail"]),
           (1, "localhost", 5, None, ["oops"]))
    expect([(one["rank"], one["outcome"]) for one in result["ranks"]], [(0, "fallout"), (1, "failed"), (2, "fallout")])
    expect({one.get("sent_by_hvdrun") for one in result["ranks"]}, {None, "SIGTERM"})


def the_result_file_of_a_good_end():
    seen, result = result_of("echo fine")
    expect((seen.returncode, result["exit_code"], result["cause"], result["first_failure"]), (0, 0, "finished", None))
    expect([one["outcome"] for one in result["ranks"]], ["finished", "finished"])


def the_result_file_of_a_time_limit():
    seen, result = result_of("sleep 60", "--timeout", "0.3")
    expect((seen.returncode, result["exit_code"], result["cause"]), (124, 124, "time_limit"))
    expect([(one["outcome"], one["sent_by_hvdrun"]) for one in result["ranks"]], [("ended", "SIGTERM")] * 2)


def two_that_fail_on_their_own_are_not_each_others_fallout():
    with tempfile.TemporaryDirectory() as folder:
        gate = os.path.join(folder, "gate")
        os.mkfifo(gate)
        job = start("--result-file", f"{folder}/result.json", "--", "bash", "-c", f": <{gate}; exit 3")
        ranks = wait_for_ranks(job, 2)
        agent = support.agent_of(job.pid)
        os.kill(agent, signal.SIGSTOP)  # so that it can send the second no signal because of the first
        opened = os.open(gate, os.O_RDWR)  # for who waits to read from it; this itself waits for nobody
        wait_for(lambda: all(support.state(rank) == "Z" for rank in ranks))
        os.close(opened)
        os.kill(agent, signal.SIGCONT)
        _, err = job.communicate(timeout=20)
        expect(job.returncode, 3)
        with open(f"{folder}/result.json") as file:
            result = json.load(file)
    expect(sorted(one["outcome"] for one in result["ranks"]), ["also_failed", "failed"])
    assert b"only fallout" not in err and b"also failed: rank " in err, err


def who_was_ending_when_it_was_sent_a_signal_failed_by_itself():
    """Rank 1 takes long to be gone, so that it gets the signal that follows rank 0's end."""
    program = textwrap.dedent("""
        import os
        exiting = 4  # of <linux/sched.h>: PF_EXITING
        if os.environ["HVD_RANK"] == "1":
            memory = bytearray(1 << 30)
            memory[::4096] = b"x" * (1 << 18)
            with open("pid.new", "w") as file:
                file.write(str(os.getpid()))
            os.rename("pid.new", "pid")
            while not os.path.exists("watched"):
                pass
            os._exit(6)
        while not os.path.exists("pid"):
            pass
        with open("pid") as file:
            stat = open(f"/proc/{file.read()}/stat", "rb", buffering=0)
        open("watched", "w").close()
        try:
            while not int(stat.read(4096).rpartition(b")")[2].split()[6]) & exiting:
                stat.seek(0)
        except ProcessLookupError:
            pass
        os._exit(5)
        """)
    for _ in range(20):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            seen = run("-np", "2", "--wdir", folder, "--result-file", path, sys.executable, "-c", program)
            with open(path) as file:
                ranks = json.load(file)["ranks"]
        if ranks[0]["exit_code"] is None:
            continue  # it did not run meanwhile, and the signal was for it
        assert seen.returncode in (5, 6), seen
        expect(sorted((one["exit_code"], one["outcome"] in ("failed", "also_failed")) for one in ranks), [(5, True), (6, True)])
        assert b"fallout" not in seen.stderr, seen.stderr
        return
    raise AssertionError("rank 1 was always gone before rank 0 saw it ending")


def a_wrapper_that_passes_on_the_end_of_what_was_sent_a_signal_is_fallout():
    seen, result = result_of("if [ $HVD_RANK = 1 ]; then exit 5; fi; tail -f /dev/null; exit 7", np=2)
    expect(seen.returncode, 5)
    expect([one["outcome"] for one in result["ranks"]], ["fallout", "failed"])


def the_result_file_takes_any_bytes():
    seen, result = result_of(r"printf '\xff\x00\x1b[31m\n' >&2; exit 1", np=1)
    expect(seen.returncode, 1)
    expect(len(result["first_failure"]["stderr_tail"]), 1)


def the_result_file_of_an_interrupt():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "result.json")
        job = start("--result-file", path, "--", "sleep", "60")
        wait_for_ranks(job, 2)
        job.send_signal(signal.SIGINT)
        job.communicate(timeout=20)
        expect(job.returncode, -2)
        with open(path) as file:
            result = json.load(file)
        expect((result["signal"], result["exit_code"], result["cause"]), ("SIGINT", 130, "interrupted"))
        expect(os.listdir(folder), ["result.json"])


def a_result_file_that_cannot_be_written_is_no_success():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "gone", "result.json")
        os.mkdir(os.path.dirname(path))
        seen = sh(f"rmdir {os.path.dirname(path)}", "--result-file", path, np=1)
        expect(seen.returncode, 125)
        assert b"cannot write the result file" in seen.stderr, seen.stderr


def the_result_file_may_be_a_pipe():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "seen.json")
        # The shell gives hvdrun a descriptor of it.
        seen = subprocess.run(["bash", "-c", f"'{support.options.hvdrun}' -np 2 --result-file >(cat >'{path}.new' && mv '{path}.new' '{path}')"
                               " -- true; exit $?"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        expect(seen.returncode, 0, seen.stderr)
        wait_for(lambda: os.path.exists(path))
        with open(path) as file:
            expect(json.load(file)["exit_code"], 0)
        # One text also where it could have been written early: the ranks' output is not read at first.
        job = subprocess.Popen(["bash", "-c", f"'{support.options.hvdrun}' -np 1 --result-file >(cat >'{path}.new' && mv '{path}.new' '{path}')"
                                " -- bash -c 'yes | head -c 1000000; exit 3'; exit $?"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.unlink(path)
        said = wait_for_words(job, b"who reads their output is waited for")
        job.communicate(timeout=30)
        expect(job.returncode, 3, said)
        wait_for(lambda: os.path.exists(path))
        with open(path) as file:
            expect(json.load(file)["exit_code"], 3)
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        seen = sh("true", "--result-file", pipe, np=1)
        expect(seen.returncode, 125)
        assert b"nobody has it open for reading" in seen.stderr, seen.stderr
        assert stat.S_ISFIFO(os.stat(pipe).st_mode)


def a_time_limit_says_what_ranks_do():
    seen = run("--timeout", "0.5", "--", "sleep", "60")
    expect(seen.returncode, 124)
    for rank in (0, 1):
        assert f"hvdrun: rank {rank} runs".encode() in seen.stderr, seen.stderr
    assert seen.stderr.splitlines()[-1] == b"hvdrun: time limit of 0.5 s reached (--timeout)", seen.stderr


def a_stopped_rank_is_shown_as_stopped():
    job = start("--timeout", "1.5", "--", "sleep", "60")
    ranks = wait_for_ranks(job, 2)
    os.kill(ranks[1], signal.SIGSTOP)
    wait_for(lambda: support.state(ranks[1]) == "T")
    _, err = job.communicate(timeout=20)
    expect(job.returncode, 124)
    assert b"stopped by a signal" in err, err


support.main(the_first_failure_is_named_with_its_stderr, last_lines_that_come_through_a_filter_are_in_the_report,
             what_its_helpers_say_to_their_end_does_not_push_out_a_ranks_last_lines, a_crash_is_named_by_its_signal, a_job_that_went_well_says_nothing,
             the_result_file_says_it_to_scripts, the_result_file_of_a_good_end, the_result_file_of_a_time_limit,
             two_that_fail_on_their_own_are_not_each_others_fallout,
             who_was_ending_when_it_was_sent_a_signal_failed_by_itself,
             a_wrapper_that_passes_on_the_end_of_what_was_sent_a_signal_is_fallout,
             the_result_file_takes_any_bytes, the_result_file_of_an_interrupt,
             a_result_file_that_cannot_be_written_is_no_success, the_result_file_may_be_a_pipe, a_time_limit_says_what_ranks_do,
             a_stopped_rank_is_shown_as_stopped)
