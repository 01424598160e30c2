"""Jobs of several agents, as on several hosts: what their ranks are told, who ends, what is said, and that nobody is left."""
import hashlib
import json
import os
import re
import signal
import tempfile

import support
from support import Terminal, children, expect, read, run, sh, start, state, wait_for, wait_for_words

HOSTS = ["--pretend-hosts", "2x2"]


def keepers(launcher):
    return [p for p in children(launcher) if read(p, "comm") == "hvd-keeper"]


def agents(launcher):
    return [p for keeper in keepers(launcher) for p in children(keeper) if read(p, "comm") == "hvd-agent"]


def ranks(launcher):
    return [p for agent in agents(launcher) for p in children(agent) if read(p, "comm") != "hvd-agent"]


def wait_for_all(job, sleeps=4, name="sleep"):
    """Until all ranks sleep, and what they started, as programs of this name."""
    wait_for(lambda: [read(p, "comm") for p in support.descendants(job.pid)].count(name) == sleeps)


def agent_of_rank(job, rank):
    return next(a for a in agents(job.pid) if any(f"HVD_RANK={rank} " in read(p, "environ") + " " for p in children(a)))


def every_rank_knows_its_place():
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "HVD_CROSS_RANK",
             "HVD_CROSS_SIZE", "HOROVOD_HOSTNAME", "MASTER_ADDR"]
    seen = sh("echo " + " ".join("$" + name for name in names) + "; echo port $MASTER_PORT", "--no-tag-output",
              "--pretend-hosts", "2x2", np=3)
    expect(seen.returncode, 0, seen.stderr)
    lines = sorted(set(seen.stdout.decode().splitlines()))
    expect(lines[:3], ["0 3 0 2 0 2 0 2 pretended1 127.0.0.1", "1 3 1 2 0 2 0 1 pretended1 127.0.0.1",
                       "2 3 0 1 1 2 1 2 pretended2 127.0.0.1"])
    assert len(lines) == 4 and int(lines[3].removeprefix("port ")) > 0, lines


def ranks_of_all_hosts_share_the_cpus_of_their_machine():
    cpus = len(os.sched_getaffinity(0))
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    seen = sh("echo $OMP_NUM_THREADS", "--no-tag-output", "--pretend-hosts", f"{max(cpus, 2)}x1", np=max(cpus, 2), env=env)
    expect((seen.returncode, set(seen.stdout.split())), (0, {b"1"}), seen.stderr)


def without_np_all_slots_are_taken():
    seen = support.subprocess.run([support.options.hvdrun, "--pretend-hosts", "3x2", "--", "true"], stdin=support.subprocess.DEVNULL,
                                  capture_output=True, timeout=60)
    expect((seen.returncode, seen.stdout), (0, b""), seen.stderr)
    for hosts, np, why in (("2x1", 3, b"2 slots"), ("3x2", 4, b"--pretend-hosts 3x2 takes 6 ranks, and -np 4 leaves hosts without any")):
        seen = run("--pretend-hosts", hosts, "--", "true", np=np)
        expect(seen.returncode, 2, seen.stderr)
        assert why in seen.stderr, seen.stderr


def a_failure_on_one_host_ends_all():
    seen = sh("if [ $RANK = 3 ]; then echo broken >&2; exit 7; fi; sleep 60", *HOSTS, np=4)
    expect(seen.returncode, 7, seen.stderr)
    last = seen.stderr.splitlines()[-1]
    assert re.fullmatch(rb"hvdrun: first failure: rank 3 \(pid \d+\) on pretended2 exited with code 7 after [0-9.]+ s", last), last


def the_first_of_two_hosts_is_named():
    for first, second in ((0, 2), (2, 0)):
        with tempfile.TemporaryDirectory() as folder:
            script = (f"cd {folder}; case $RANK in {first}) touch it; exit 3;; {second}) until [ -e it ]; do :; done; sleep 0.05; exit 4;; "
                      "*) sleep 60;; esac")
            expect(sh(script, *HOSTS, np=4).returncode, 3)


def all_output_and_all_files_come():
    with tempfile.TemporaryDirectory() as folder:
        seen = sh("for i in {1..2000}; do echo $RANK line $i of some length; done; echo bad $RANK >&2", *HOSTS, "--output-filename", folder, np=4)
        expect(seen.returncode, 0, seen.stderr)
        lines = seen.stdout.decode().splitlines()
        for rank in range(4):
            wanted = [f"{rank} line {i} of some length" for i in range(1, 2001)]
            expect([line.removeprefix(f"[{rank}]<stdout>:") for line in lines if line.startswith(f"[{rank}]")], wanted)
            with open(f"{folder}/rank.{rank}/stdout") as file:
                expect([line.removeprefix(f"[{rank}]<stdout>:") for line in file.read().splitlines()], wanted)
            assert f"[{rank}]<stderr>:bad {rank}\n".encode() in seen.stderr, seen.stderr


def input_goes_to_rank_0_or_to_all():
    text = os.urandom(3_000_000)
    wanted = hashlib.sha256(text).hexdigest()
    seen = sh("echo $(sha256sum | cut -c 1-64)", "--no-tag-output", *HOSTS, "--stdin", "all", np=4, input=text)
    expect(seen.stdout.decode().split(), [wanted] * 4, seen.stderr)
    seen = sh("echo $RANK $(sha256sum | cut -c 1-64)", "--no-tag-output", *HOSTS, np=4, input=text)
    nothing = hashlib.sha256(b"").hexdigest()
    expect(sorted(seen.stdout.decode().splitlines()), [f"{rank} {nothing if rank else wanted}" for rank in range(4)], seen.stderr)


def signals_reach_every_host():
    for number, status in ((signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)):
        job = start(*HOSTS, "--", "sleep", "300", np=4)
        wait_for_all(job)
        job.send_signal(number)
        _, err = job.communicate(timeout=30)
        expect(job.returncode, status, err)
        assert all(f"rank {rank} on pretended{rank // 2 + 1} was killed by".encode() in err for rank in range(4)), err


def a_time_limit_says_what_all_ranks_did():
    seen = run("--timeout", "1", *HOSTS, "--", "sleep", "300", np=4)
    expect(seen.returncode, 124, seen.stderr)
    for rank in range(4):
        assert f"hvdrun: rank {rank} runs and has not called hvd::init()".encode() in seen.stderr, seen.stderr


def an_agent_that_ends_when_it_is_told_to_start_starts_nobody_in_secret():
    for _ in range(8):  # which of the two it sees first is not in our hands
        with tempfile.TemporaryDirectory() as folder:
            job = start("--pretend-hosts", "2x1", "--verbose", "--", "bash", "-c", f": > {folder}/$RANK; sleep 60",
                        env={**os.environ, "HVD_FAULT_POINT": "agent_bootstrap:1:stop"})
            wait_for(lambda: [state(agent) for agent in agents(job.pid)] == ["T", "T"])
            one, other = agents(job.pid)
            os.kill(other, signal.SIGCONT)
            name = re.search(rb"the agent on (\w+) is up", wait_for_words(job, b" is up"))[1]
            rank = {b"pretended1": 0, b"pretended2": 1}[name]
            os.kill(other, signal.SIGSTOP)
            wait_for(lambda: state(other) == "T")
            os.kill(one, signal.SIGCONT)
            wait_for_words(job, f"starting rank {rank} on".encode())
            os.kill(next(keeper for keeper in keepers(job.pid) if other in children(keeper)), signal.SIGKILL)  # which continues the agent
            wait_for(lambda: job.poll() is not None, 30)
            said = job.stderr.read()
            expect(job.returncode, 125, said)
            assert str(rank) not in os.listdir(folder) or f"started rank {rank} ".encode() in said, said


def a_lost_agent_ends_all_and_is_named():
    for rank, name in ((0, "pretended1"), (3, "pretended2")):
        with tempfile.NamedTemporaryFile() as told:
            job = start(*HOSTS, "--result-file", told.name, "--", "bash", "-c", "setsid tail -f /dev/null & exec tail -f /dev/null", np=4)
            wait_for_all(job, 8, "tail")
            agent = agent_of_rank(job, rank)
            of_ranks = set(children(agent))
            os.kill(agent, signal.SIGKILL)
            _, err = job.communicate(timeout=30)
            result = json.load(open(told.name))
        expect(job.returncode, 125, err)
        words = f"the agent on {name} was lost (it was killed by SIGKILL); its ranks were ended"
        expect(err.splitlines()[-1], f"hvdrun: {words}".encode(), err)
        expect((result["cause"], result["cause_text"]), ("agent_lost", words))
        lost = [one for one in result["ranks"] if one["outcome"] == "unknown"]
        expect([one["host"] for one in lost], [name] * 2)
        # A busy hvdrun may not have read of the last one's start by then.
        assert {one["pid"] for one in lost} - {None} <= of_ranks, (lost, of_ranks)


# Where the agent has heard of the failure, its loss is not what it came of.
def who_failed_before_a_host_was_lost_stays_the_first():
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(f"{folder}/go_on")
        script = f"[ $RANK = 0 ] && read -r x <{folder}/go_on && echo why >&2 && exit 7; trap '' TERM; echo ready >{folder}/go_on; tail -f /dev/null & wait"
        job = start("--pretend-hosts", "2x1", "--result-file", f"{folder}/result", "--log-level", "debug", "--stop-grace", "30", "--", "bash", "-c", script)
        wait_for_words(job, b"the agent on pretended2 has heard that the job ends")
        os.kill(agent_of_rank(job, 1), signal.SIGKILL)
        _, err = job.communicate(timeout=30)
        with open(f"{folder}/result") as file:
            result = json.load(file)
    expect(job.returncode, 7, err)
    words = "the agent on pretended2 was lost (it was killed by SIGKILL); its ranks were ended"
    said = err.decode().splitlines()[-4:]
    expect(said[:3], ["hvdrun: last lines of rank 0's stderr:", "  | why", f"hvdrun: fallout, too: {words}"])
    assert re.match(r"hvdrun: first failure: rank 0 \(pid \d+\) on pretended1 exited with code 7 after", said[-1]), said
    expect((result["cause"], result["exit_code"], result["first_failure"]["rank"]), ("rank_failed", 7, 0))
    expect(result["hosts"]["lost"], [{"host": "pretended2", "why": words}])


def a_lost_keeper_ends_all():
    job = start(*HOSTS, "--", "bash", "-c", "setsid sleep 300 & sleep 300", np=4)
    wait_for_all(job, sleeps=8)
    os.kill(keepers(job.pid)[1], signal.SIGKILL)
    _, err = job.communicate(timeout=30)
    expect(job.returncode, 125, err)
    assert b"the agent on pretended2 ended the job: its keeper died" in err, err


def a_stopped_agent_is_named_and_given_up():
    job = start(*HOSTS, "--agent-timeout", "4", "--stop-grace", "1", "--", "sleep", "300", np=4)
    wait_for_all(job)
    os.kill(agent_of_rank(job, 2), signal.SIGSTOP)
    _, err = job.communicate(timeout=60)
    expect(job.returncode, 125, err)
    assert b"the agent on pretended2 has not answered for 3 s" in err and b"the agent on pretended1 has not" not in err, err


def a_host_whose_ranks_end_early_is_not_lost():
    seen = sh("[ $RANK -lt 2 ] || sleep 2.5", *HOSTS, "-x", "OMP_NUM_THREADS=1", np=4)
    expect((seen.returncode, seen.stderr), (0, b""))


def nobody_outlives_hvdrun():
    for _ in range(5):
        job = start(*HOSTS, "--", "bash", "-c", "setsid sleep 300 & sleep 300", np=4)
        wait_for_all(job, sleeps=8)
        job.kill()
        job.communicate(timeout=30)
        support.wait_for_nobody(support.GONE_LIMIT_S)
        expect(support.descendants(os.getpid()), [])


def ctrl_z_stops_all_hosts():
    terminal = Terminal()
    terminal.type(f"'{support.options.hvdrun}' -np 4 --pretend-hosts 2x2 -- bash -c 'echo up$((1+1)); sleep 300; true'\n")
    for _ in range(4):
        terminal.wait("up2")
    launcher = terminal.launcher()
    all_ranks = ranks(launcher)
    terminal.type("\x1a")
    terminal.wait("Stopped")
    expect([state(pid) for pid in all_ranks], ["T"] * 4)
    terminal.type("fg\n")
    wait_for(lambda: "T" not in [state(pid) for pid in all_ranks])
    terminal.type("\x03")
    terminal.wait("interrupted")
    wait_for(lambda: not any(state(pid) for pid in all_ranks))
    terminal.close()


def ranks_of_all_hosts_meet_again_and_again():
    for hosts, np in (("2x1", 2), ("2x2", 4), ("3x1", 3), ("2x3", 5)):
        seen = run("--pretend-hosts", hosts, "--timeout", "60", "--", support.options.worker, "epochs", "0", np=np)
        assert seen.returncode == 0, (hosts, seen.stderr)


def a_rank_that_leaves_a_call_alone_is_named_with_those_of_other_hosts():
    seen = run(*HOSTS, "--collective-timeout", "1", "--timeout", "60", "--", support.options.worker, "wait:loss", "3", np=4)
    assert seen.returncode not in (0, 124), seen
    assert b"waited 1 s for rank 3 on pretended2 in" in seen.stderr, seen.stderr


def who_does_not_act_on_what_is_in_the_log_is_named():
    for what in ("wait:held", "held"):  # to who waits for it, and to who calls shutdown()
        script = f"[ $HVD_RANK != 3 ] || export HVD_FAULT_POINT=engine_start:1:stop; exec '{support.options.worker}' {what} none"
        for flags, words in ((["--stall-check-warning-time-seconds", "1", "--stall-check-shutdown-time-seconds", "2"], rb">:3!: \[(behind, )?held\]\n"),
                             (["--no-stall-check", "--collective-timeout", "1"], rb' waited 1 s for rank 3 on pretended2 in "(held|behind)"')):
            seen = sh(script, *HOSTS, "--timeout", "60", *flags, np=4)
            assert seen.returncode not in (0, 124) and re.search(words, seen.stderr), (what, flags, seen)
            assert b"first failure: rank 3 (pid " in seen.stderr.splitlines()[-1], (what, flags, seen)


def a_stopped_leader_is_named_at_a_timeout():
    for hosts, np, rank, point, what in (("2x2", 4, 2, "start", "wait:held"), ("2x2", 4, 2, "start", "held"), ("2x1", 2, 1, "start", "held"),
                                         ("3x1", 3, 2, "submit", "wait:held")):  # the last one before it asks for it
        script = f"[ $HVD_RANK != {rank} ] || export HVD_FAULT_POINT=engine_{point}:1:stop; exec '{support.options.worker}' {what} none"
        seen = sh(script, "--pretend-hosts", hosts, "--timeout", "60", "--no-stall-check", "--collective-timeout", "1", np=np)
        assert seen.returncode not in (0, 124), (hosts, what, seen)
        assert re.search(rf' waited 1 s for rank {rank} on pretended\d in "(held|behind)"'.encode(), seen.stderr), (hosts, what, seen)
        assert f"first failure: rank {rank} (pid ".encode() in seen.stderr.splitlines()[-1], (hosts, what, seen)


def who_keeps_others_waiting_for_links_is_named():
    for where, np in (("2x1", 2), ("3x1", 3)):
        script = f"[ $HVD_RANK != 0 ] || export HVD_FAULT_POINT=segment_ask:1:stop; exec '{support.options.worker}' epochs 0"
        seen = sh(script, "--pretend-hosts", where, "--start-timeout", "4", np=np)
        assert seen.returncode not in (0, 124), seen
        assert re.search(rb"rank [12] on pretended[23] waited 4 s for rank 0 on pretended1 in ", seen.stderr) and b"the other ranks" not in seen.stderr, (where, seen.stderr)
        assert b"first failure: rank 0 (pid " in seen.stderr.splitlines()[-1], (where, seen.stderr)


support.parse_options("worker")
support.main(every_rank_knows_its_place, ranks_of_all_hosts_share_the_cpus_of_their_machine, without_np_all_slots_are_taken, a_failure_on_one_host_ends_all,
             the_first_of_two_hosts_is_named, all_output_and_all_files_come, input_goes_to_rank_0_or_to_all, signals_reach_every_host,
             a_time_limit_says_what_all_ranks_did, a_lost_agent_ends_all_and_is_named, who_failed_before_a_host_was_lost_stays_the_first,
             a_lost_keeper_ends_all,
             an_agent_that_ends_when_it_is_told_to_start_starts_nobody_in_secret,
             a_stopped_agent_is_named_and_given_up, a_host_whose_ranks_end_early_is_not_lost, nobody_outlives_hvdrun,
             ctrl_z_stops_all_hosts, ranks_of_all_hosts_meet_again_and_again,
             a_rank_that_leaves_a_call_alone_is_named_with_those_of_other_hosts, who_does_not_act_on_what_is_in_the_log_is_named,
             a_stopped_leader_is_named_at_a_timeout, who_keeps_others_waiting_for_links_is_named)
