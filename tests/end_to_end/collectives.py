"""Programs that use libhvd under hvdrun: who is named when one rank dies, leaves or never comes, and what it was doing.

With --apart each rank is on a host of its own.
"""
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time

import support
from support import expect, run

# A crash is to end the worker by its signal, also in a build whose sanitizer would rather report it.
os.environ["ASAN_OPTIONS"] = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "handle_segv=0"]))

# Passed while an allreduce is under way, where a kill from outside could come before or after it.
INSIDE = ("collective_entry:9", "collective_stage:9", "collective_sum:9", "collective_done:9")
INSIDE_APART = ("collective_entered:9", "link_post:60", "link_header:60")
INSIDE_HOSTS = ("collective_entry:9", "collective_sum:9", "link_post:20", "link_header:20")


def worker(what, rank=0):
    return ["--", support.options.worker, what, str(rank)]


def on(rank):
    """How a rank is named beside those of other hosts."""
    return f"rank {rank} on pretended{rank + 1}" if support.options.apart else f"rank {rank}"


def last_line(seen):
    return seen.stderr.decode(errors="replace").splitlines()[-1]


def ten_epochs():
    seen = run(*worker("epochs"), np=3)
    expect(seen.returncode, 0, seen.stderr)


def memory_beyond_the_limit_of_files_is_an_error_of_the_rank():
    limit = 64 << 10
    seen = run(*worker("epochs"), np=2, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    expect(seen.returncode, 3, seen.stderr)
    assert b"ulimit -f" in seen.stderr and b"SIGXFSZ" not in seen.stderr, seen.stderr


def a_rank_without_room_for_the_engines_thread_says_so_to_all():
    script = f"[ $HVD_RANK = 0 ] || ulimit -S -s 8192 -d 6000; exec '{support.options.worker}' epochs 0"
    seen = run("--", "bash", "-c", script)
    expect(seen.returncode, 3, seen.stderr)
    words = rb"cannot start the engine's thread: .* within ulimit -d 6000; raise that"
    assert re.search(rb"\[1\]<stderr>:worker: " + words, seen.stderr), seen.stderr
    assert re.search(rb"\[0\]<stderr>:worker: init\(\) failed: rank 1 could not start: " + words, seen.stderr), seen.stderr
    assert "first failure: rank 1 " in last_line(seen), seen.stderr


def an_agent_without_descriptors_for_an_epoch_names_the_limit():
    seen = run(*worker("epochs"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (35, 35)))
    expect(seen.returncode, 125, seen.stderr)
    assert b"agent: eventfd: Too many open files; raise the limit on open files (ulimit -n)" in seen.stderr, seen.stderr


def a_rank_that_crashes_is_named_and_survivors_are_told():
    seen = run(*worker("crash", 1), np=3)
    expect(seen.returncode, 128 + signal.SIGSEGV, seen.stderr)
    assert "first failure: rank 1 " in last_line(seen) and "SIGSEGV" in last_line(seen), seen.stderr
    expect(seen.stderr.count(b"stderr>:worker:"), 2, seen.stderr)  # each survivor threw, caught and printed


def a_rank_killed_inside_a_collective_is_named_with_what_it_did():
    cases = [(INSIDE_APART, [], 3)] if support.options.apart else [(INSIDE, [], 3), (INSIDE_HOSTS, ["--pretend-hosts", "2x2"], 4)]
    for point, flags, np in ((point, flags, np) for points, flags, np in cases for point in points):
        script = f"[ $HVD_RANK != 2 ] || export HVD_FAULT_POINT={point}:kill; exec '{support.options.worker}' loop 0"
        seen = run(*flags, "--", "bash", "-c", script, np=np)
        expect(seen.returncode, 137, (point, seen.stderr))
        assert "first failure: rank 2 " in last_line(seen) and "was killed by SIGKILL" in last_line(seen), (point, seen.stderr)
        assert b"hvdrun: rank 2 was in allreduce float32 [1000] Sum #" in seen.stderr, (point, seen.stderr)
        expect(seen.stderr.count(b"stderr>:worker:"), np - 1, (point, seen.stderr))  # each survivor was told


def a_rank_that_deserts_with_code_0_is_the_failure():
    for what, told in (("desert", "ended (exit status 0)"), ("leave", "called shutdown()")):
        seen = run(*worker(what, 1), np=3)
        expect(seen.returncode, 1, (what, seen.stderr))
        told = f"{on(1)} {told} while other ranks went on\n"
        for rank in (0, 2):
            assert re.search(rf"\[{rank}\]<stderr>:worker: .*{re.escape(told)}", seen.stderr.decode()), (told, seen.stderr)
        assert "first failure: rank 1 " in last_line(seen) and "exited with code 0" in last_line(seen), (what, seen.stderr)


def a_rank_that_ended_well_is_not_blamed_for_what_others_fail_by():
    for np, flags in ((2, []), (4, []), (4, [] if support.options.apart else ["--pretend-hosts", "2x2"])):
        seen = run(*flags, *worker("apathy", 1), np=np)
        expect(seen.returncode, 7, (flags, seen.stderr))
        assert re.search("first failure: rank [023] .*exited with code 7", last_line(seen)), (flags, seen.stderr)
        assert not re.search(b"needed it for a collective|fallout|stderr>:worker:", seen.stderr), (flags, seen.stderr)


def blamed(seen, rank, exit_code):
    """The last line names this rank, which hvdrun had to end; the exit status is that of the ranks that threw."""
    expect(seen.returncode, exit_code, seen.stderr)
    assert re.search(rf"first failure: rank {rank} .*was ended by hvdrun with SIGTERM", last_line(seen)), seen.stderr


def a_rank_that_never_calls_init_is_named():
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        seen = run("--start-timeout", "1", "--result-file", result, *worker("absent", 2), np=3)
        blamed(seen, 2, 3)
        with open(result) as file:
            told = json.load(file)
    words = f"rank 2{' (pretended3)' if support.options.apart else ''} did not call hvd::init() within 1 s"
    assert words.encode() in seen.stderr, seen.stderr
    expect((told["exit_code"], told["cause"]), (3, "rank_failed"))
    # Not who threw, though that ended the job.
    assert re.fullmatch(rf"{re.escape(words)}.*; rank 2 .*was ended by hvdrun with SIGTERM.*", told["cause_text"]), told
    first = told["first_failure"]
    expect((first["rank"], first["exit_code"], first["sent_by_hvdrun"]), (2, None, "SIGTERM"))
    assert words in first["why"], first
    expect([rank["outcome"] for rank in told["ranks"]], ["fallout", "fallout", "failed"])
    expect([rank["doing"] for rank in told["ranks"]], ["had hvd::init() fail", "had hvd::init() fail", None])


def a_rank_that_was_stopped_before_init_is_told_as_stopped():
    script = '[ $HVD_RANK = 1 ] && kill -STOP $$; exec "$@"'
    seen = run("--start-timeout", "1", "--", "sh", "-c", script, "sh", *worker("absent", 1)[1:])
    blamed(seen, 1, 3)
    assert b"\nhvdrun: rank 1 was stopped by a signal\n" in seen.stderr, seen.stderr


def a_time_limit_says_what_each_rank_was_doing():
    seen = run("--timeout", "2", *worker("absent", 1), np=2)
    expect(seen.returncode, 124)
    assert b"hvdrun: rank 0 was in hvd::init()" in seen.stderr, seen.stderr
    assert b"hvdrun: rank 1 runs and has not called hvd::init()" in seen.stderr, seen.stderr
    seen = run("--timeout", "5", *worker("apart", 2), np=3)
    expect(seen.returncode, 124)
    for line in (r"rank 0 was in allreduce float32 \[1000\] Sum #\d+, 4000 bytes, for \d\.\d s",
                 r'rank 1 was waiting for allreduce "later" float32 \[1000\] Max, 4000 bytes, for \d\.\d s',
                 r"rank 2 was in no call of hvd"):
        assert re.search(f"^hvdrun: {line}$", seen.stderr.decode(), re.MULTILINE), (line, seen.stderr)


def a_collective_that_waits_too_long_fails_and_names_who_is_missing():
    for more in ({}, {"env": {**os.environ, "HVD_COLLECTIVE_TIMEOUT": "1"}}):
        flags = [] if more else ["--collective-timeout", "1"]
        seen = run(*flags, *worker("idle", 1), np=3, **more)
        assert re.search(rb"\[[02]\]<stderr>:worker: .*rank 1", seen.stderr), seen.stderr
        blamed(seen, 1, 3)


def a_name_of_any_bytes_is_told_and_harms_nothing():
    for name, shown in ((b"caf\xe9", "caf?"), (("é" * 70).encode(), "é" * 70)):
        with tempfile.TemporaryDirectory() as folder:
            seen = run("--collective-timeout", "1", "--result-file", f"{folder}/result.json", *worker(b"wait:" + name, 1))
            with open(f"{folder}/result.json", encoding="utf-8") as file:
                result = json.load(file)
        blamed(seen, 1, 3)
        line = next(one for one in seen.stderr.splitlines() if one.startswith(f"hvdrun: {on(0)} waited".encode()))
        assert f'"{shown}' in line.decode(), seen.stderr
        assert f'"{shown}' in result["cause_text"], result
        assert b"protobuf" not in seen.stderr, seen.stderr
    assert 'allreduce "%s…%s" float32' % ("é" * 32, "é" * 30) in seen.stderr.decode(), seen.stderr  # cut between its characters


def a_stopped_rank_is_given_up_on_with_the_reason_and_its_number():
    job = support.start("--collective-timeout", "1", *worker("loop"))
    if not any(b":going" in line for line in iter(job.stdout.readline, b"")):
        raise AssertionError(job.communicate(timeout=30)[1])
    stopped = next(pid for pid in support.wait_for_ranks(job, 2) if b"HVD_RANK=1\0" in open(f"/proc/{pid}/environ", "rb").read())
    os.kill(stopped, signal.SIGSTOP)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 128 + signal.SIGKILL, err)
    words = rf"{on(0)} waited 1 s for \S.* in allreduce .*"
    given_up = "; rank 1 was stopped and was given up on"
    lines = err.decode().splitlines()
    expect(len([line for line in lines if re.fullmatch(f"hvdrun: (pretended2: )?{words}{given_up}", line)]), 2, err)  # at once, and in the report
    told = words if support.options.apart else words + given_up  # whoever is on another host is not waited for
    assert any(re.fullmatch(rf"\[0\]<stderr>:worker: .* failed: {told}", line) for line in lines), err
    assert lines[-1].startswith(f"hvdrun: first failure: rank 1 (pid {stopped}) "), err


def a_rank_whose_way_to_its_agent_got_lost_says_so():
    seen = run("--", "env", "-u", "HVD_AGENT", *worker("epochs")[1:])
    expect(seen.returncode, 3, seen.stderr)
    assert b"HVD_SIZE=2 says that hvdrun started" in seen.stderr and b"let it pass HVD_AGENT on" in seen.stderr, seen.stderr


def a_rank_whose_whole_environment_got_lost_is_warned_of():
    seen = run("--", "env", "-i", *worker("epochs")[1:])
    expect(seen.returncode, 0, seen.stderr)
    assert len(re.findall(rb"hvd: warning: hvdrun's agent \(process \d+\) started this program, but HVD_AGENT", seen.stderr)) == 2, seen.stderr


def a_stall_is_warned_of_with_the_missing_ranks():
    seen = run("--stall-check-warning-time-seconds", "1", "--timeout", "4", *worker("idle", 1), np=3)
    expect(seen.returncode, 124, seen.stderr)
    assert b"Missing ranks:" in seen.stderr and b">:1: [" in seen.stderr, seen.stderr


def a_rank_that_stands_still_in_an_operation_is_missing():
    point = "link_post:30" if support.options.apart else "collective_sum:40"
    script = f"[ $HVD_RANK != 2 ] || export HVD_FAULT_POINT={point}:stop; exec '{support.options.worker}' bulk none"
    seen = run("--stall-check-warning-time-seconds", "1", "--stall-check-shutdown-time-seconds", "2", "--", "sh", "-c", script, np=3)
    expect(seen.returncode, 128 + signal.SIGKILL, seen.stderr)  # of the rank that was given up on
    missing = re.findall(rb">:(\d!?): \[", seen.stderr)
    assert b"2!" in missing and set(missing) <= {b"2", b"2!"}, seen.stderr
    assert re.search(r"first failure: rank 2 .*was killed by SIGKILL", last_line(seen)), seen.stderr


def a_stall_ends_the_job_when_asked_to():
    seen = run("--stall-check-warning-time-seconds", "1", "--stall-check-shutdown-time-seconds", "2", *worker("idle", 1), np=3)
    expect(seen.returncode, 3, seen.stderr)
    assert b">:1!: [" in seen.stderr and b"the job is shut down" in seen.stderr, seen.stderr
    blamed(seen, 1, 3)


def no_stall_check_looks_for_none():
    seen = run("--no-stall-check", "--timeout", "3", *worker("idle", 1), np=3,
               env={**os.environ, "HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1"})
    expect(seen.returncode, 124, seen.stderr)
    assert b"Missing ranks" not in seen.stderr, seen.stderr


def every_time_the_command_line_takes_the_ranks_take_too():
    """The largest that hvdrun lets through must not fail in init()."""
    longest = ["--collective-timeout", "1000000", "--start-timeout", "1000000", "--stall-check-warning-time-seconds", "31536000",
               "--stall-check-shutdown-time-seconds", "31536000"]
    seen = run(*longest, *worker("epochs"))
    expect(seen.returncode, 0, seen.stderr)


def under_another_launcher_init_names_its_variable():
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE", "HOROVOD_SIZE"):
        seen = subprocess.run([support.options.worker, "epochs", "0"], env={**os.environ, name: "2"}, timeout=30,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        expect(seen.returncode, 3)
        assert f"{name}=2".encode() in seen.stderr and b"hvdrun -np 2" in seen.stderr, seen.stderr
        # Below hvdrun they are somebody else's, and no trap.
        expect(run(*worker("epochs"), env={**os.environ, name: "7"}).returncode, 0)


def a_suspended_job_times_out_nowhere():
    terminal = support.Terminal()
    terminal.type(f"'{support.options.hvdrun}' -np 3 --collective-timeout 1 --color never -- '{support.options.worker}' loop 0\n")
    for _ in range(3):
        terminal.wait(":going")
    terminal.type("\x1a")
    terminal.wait("Stopped")
    time.sleep(3)  # three times as long as a collective may wait
    ranks = support.ranks_of(terminal.launcher())
    terminal.type("fg\n")
    for _ in range(20):  # they go on, and stay
        support.wait_for(lambda: all(support.state(rank) in "SR" for rank in ranks))
        time.sleep(0.05)
    terminal.type("\x03")
    terminal.wait("interrupted (SIGINT)")
    terminal.wait("$ ")
    terminal.type("echo rc=$?\n")
    terminal.wait("rc=130")
    terminal.close()


def a_rank_behind_a_wrapper_is_known_too():
    words = ["--", "bash", "-c", f"'{support.options.worker}' crash 1; exit $?"]
    seen = run(*words, np=3)
    expect(seen.returncode, 139, seen.stderr)


def of_commands_that_go_on_after_their_programs_end(*script, status, size=3, flags=()):
    """The result of a job of shell commands, in which WORKER is the test's program."""
    with tempfile.NamedTemporaryFile() as told:
        seen = run(*flags, "--result-file", told.name, "--", "bash", "-c", " ".join(script), np=size, env={**os.environ, "WORKER": support.options.worker})
        result = json.load(open(told.name))
    expect(seen.returncode, status, seen.stderr)
    return result, seen.stderr


def a_program_that_ended_well_is_not_the_end_of_its_rank():
    for _ in range(10):
        result, err = of_commands_that_go_on_after_their_programs_end("$WORKER epochs 0; [ $RANK = 1 ] && exit 5; exec tail -f /dev/null", status=5)
        expect([one["outcome"] for one in result["ranks"]], ["fallout", "failed", "fallout"], err)
        expect([one.get("sent_by_hvdrun") for one in result["ranks"]], ["SIGTERM", None, "SIGTERM"], err)
    limit = 8 if support.options.sanitizers else 4  # of which the start may take all but 1.5
    result, err = of_commands_that_go_on_after_their_programs_end("$WORKER epochs 0; exec tail -f /dev/null", status=124, flags=["--timeout", str(limit)])
    expect([(one["outcome"], one["sent_by_hvdrun"]) for one in result["ranks"]], [("ended", "SIGTERM")] * 3, err)
    assert all(one["seconds"] > 1.5 for one in result["ranks"]), result


def a_program_that_crashes_below_a_command_that_goes_on_is_the_failure():
    result, err = of_commands_that_go_on_after_their_programs_end("[ $RANK = 1 ] && { $WORKER crash 1; exec tail -f /dev/null; }; exec $WORKER loop 9", status=139)
    first = result["first_failure"]
    expect((first["rank"], first["signal"]), (1, "SIGSEGV"), err)
    assert re.search(rb"rank 1 \(pid \d+\) was killed by SIGSEGV while other ranks needed it; waiting for the end of its command \(pid \d+\)\n", err), err
    expect([one["outcome"] for one in result["ranks"]], ["fallout", "failed", "fallout"], err)
    # Nobody's command tells of it.
    result, err = of_commands_that_go_on_after_their_programs_end("$WORKER crash 1; exit 0", status=139)
    expect((result["first_failure"]["rank"], result["first_failure"]["signal"]), (1, "SIGSEGV"), err)
    # Its own exit code is the command's word, and its time the program's.
    result, err = of_commands_that_go_on_after_their_programs_end("[ $RANK = 1 ] && { $WORKER crash 1; exit 7; }; exec $WORKER loop 9", status=7)
    expect(result["first_failure"]["rank"], 1, err)


def programs_that_all_end_well_without_shutdown_are_not_spoken_of():
    for _ in range(20):
        result, err = of_commands_that_go_on_after_their_programs_end("$WORKER forget 0; true", status=0)
        expect([one["outcome"] for one in result["ranks"]], ["finished"] * 3, err)
        assert b"needed it" not in err, err
    result, err = of_commands_that_go_on_after_their_programs_end("$WORKER forget 0; exec tail -f /dev/null", status=124, flags=["--timeout", "3"])
    assert b"needed it" not in err, err


def a_program_that_ended_well_while_others_waited_is_spoken_of_as_long_as_its_command_goes_on():
    job = support.start("--", "bash", "-c", "$WORKER desert 1; exec tail -f /dev/null", np=3, stdout=subprocess.DEVNULL, env={**os.environ, "WORKER": support.options.worker})
    # Who waits on other hosts the agent does not know.
    how = b"without shutdown()" if support.options.apart else b"while other ranks needed it"
    line = support.wait_for_words(job, how)
    assert re.fullmatch(rb"hvdrun: rank 1 \(pid \d+\) exited with code 0 " + re.escape(how) + rb"; waiting for the end of its command \(pid \d+\)\n", line), line
    job.send_signal(signal.SIGTERM)
    _, err = job.communicate(timeout=60)
    assert how + b"; waiting" not in err, err  # once


def a_crash_that_all_ranks_get_over_is_none():
    result, err = of_commands_that_go_on_after_their_programs_end("$WORKER crash 1 || exec $WORKER epochs 0", status=0)
    expect([one["outcome"] for one in result["ranks"]], ["finished"] * 3, err)


support.parse_options("worker")
# The sanitizers' run time needs memory and descriptors of its own; what they have is said of one agent.
of_the_product = [] if support.options.sanitizers or support.options.apart else [a_rank_without_room_for_the_engines_thread_says_so_to_all,
                                                        an_agent_without_descriptors_for_an_epoch_names_the_limit,
                                                        a_program_that_ended_well_while_others_waited_is_spoken_of_as_long_as_its_command_goes_on]
support.main(ten_epochs, memory_beyond_the_limit_of_files_is_an_error_of_the_rank, *of_the_product,
             a_rank_that_crashes_is_named_and_survivors_are_told,
             a_program_that_ended_well_is_not_the_end_of_its_rank, programs_that_all_end_well_without_shutdown_are_not_spoken_of,
             a_program_that_crashes_below_a_command_that_goes_on_is_the_failure, a_crash_that_all_ranks_get_over_is_none,
             a_rank_killed_inside_a_collective_is_named_with_what_it_did, a_rank_that_deserts_with_code_0_is_the_failure,
             a_rank_that_ended_well_is_not_blamed_for_what_others_fail_by,
             a_collective_that_waits_too_long_fails_and_names_who_is_missing,
             a_name_of_any_bytes_is_told_and_harms_nothing,
             a_stopped_rank_is_given_up_on_with_the_reason_and_its_number, a_rank_whose_way_to_its_agent_got_lost_says_so,
             a_rank_whose_whole_environment_got_lost_is_warned_of,
             a_stall_is_warned_of_with_the_missing_ranks,
             a_rank_that_stands_still_in_an_operation_is_missing, a_stall_ends_the_job_when_asked_to, no_stall_check_looks_for_none,
             every_time_the_command_line_takes_the_ranks_take_too, under_another_launcher_init_names_its_variable,
             a_rank_that_never_calls_init_is_named, a_rank_that_was_stopped_before_init_is_told_as_stopped,
             a_time_limit_says_what_each_rank_was_doing,
             a_suspended_job_times_out_nowhere, a_rank_behind_a_wrapper_is_known_too)
