"""Output of ranks on other hosts that is still on its way when all there have ended: it comes, or its loss is told."""
import json
import os
import re
import signal

import support
from remote_jobs import LONELY, hosts, launcher, on_hosts, processes, start
from support import expect, wait_for

# Less than ssh, sshd and TCP between them have room for, and more than hvdrun takes from them before anybody reads.
LINES = 45_000
SCRIPT = f"for i in $(seq {LINES}); do echo line $i {'x' * 50}; done; echo LAST"
WHOLE = "".join(f"line {i} {'x' * 50}\n" for i in range(1, LINES + 1)) + "LAST\n"

world = None


def start_on_line(rate, script=SCRIPT):
    """A job that prints, with its agent there, and so much each way between it and hvdrun from then on."""
    world.run("h1", "mkfifo", "/tmp/go_on")
    job = start("-np", "1", "-H", "h1", *LONELY, "--no-tag-output", "--result-file", "/tmp/result.json", "--", "bash", "-c", f"read -r x </tmp/go_on; {script}")
    wait_for(lambda: "hvd-agent" in processes("h1"))
    world.limit("h1", rate)
    world.run("h1", "sh", "-c", "echo >/tmp/go_on")
    return job


def wait_for_last_word():
    wait_for(lambda: "hvd-agent" not in processes("h1"), limit_s=60)


def has_ssh(job):
    return [support.read(pid, "comm") for pid in support.children(launcher(job))] == ["ssh"]


def result():
    return json.loads(world.path("h0", "/tmp/result.json").read_text())


def expect_all(job):
    out, err = job.communicate(timeout=60)
    expect((job.returncode, err), (0, b""))
    assert out.decode() == WHOLE, (len(out), len(WHOLE), out[-100:])
    expect((result()["cause"], result()["output"]["lost_bytes"]), ("finished", 0))


def who_reads_late_gets_all_of_it():
    job = start_on_line("1gbit")
    wait_for_last_word()
    support.wait_until_still(lambda: has_ssh(job), still_s=8)
    assert has_ssh(job)
    expect_all(job)


def a_slow_line_has_its_time_for_it():
    expect_all(start_on_line("3mbit"))  # 7 s and more


def last_lines_are_a_ranks_own_however_late_they_come():
    helper = ("trap 'trap \"\" TERM; for i in {1..25}; do echo helper $i; done; exit 1' TERM; "
              "echo >/tmp/up; tail -f /dev/null & wait; kill -TERM $BASHPID")
    job = start_on_line("3mbit", f"exec >&2; mkfifo /tmp/up; ({helper}) & read -r x </tmp/up; {SCRIPT}; exit 3")
    _, err = job.communicate(timeout=60)
    expect(job.returncode, 3, err)
    assert b"\nLAST\nhelper 1\n" in err and b"\nhelper 25\n" in err, err[-3000:]
    expect(result()["first_failure"]["stderr_tail"], WHOLE.splitlines()[-20:])


def what_does_not_come_from_a_host_that_was_cut_off_since_is_told():
    job = start_on_line("3mbit")
    wait_for_last_word()
    world.cut("h1")
    try:
        out, err = job.communicate(timeout=60)
    finally:
        world.heal("h1")
    expect(job.returncode, 125, err)
    lost = len(WHOLE) - len(out)
    assert lost > 0 and WHOLE.startswith(out.decode()), (lost, out[-100:])
    assert re.fullmatch(rb"hvdrun: the ssh to h1 has brought nothing of what is missing of the output for 6 s; killing it\n"
                        rb"hvdrun: lost %d bytes of output of h1 that had not come when its ssh ended\n" % lost, err), (lost, err)
    expect((result()["exit_code"], result()["output"]["lost_bytes"]), (125, lost))


# hvdrun is never done with what the other host sends.
def a_prompt_comes_out_beside_another_hosts_flood():
    script = "if [ $RANK = 0 ]; then printf 'name? '; exec tail -f /dev/null; else exec yes; fi"
    job = start("-np", "2", "-H", "h1,h2", *LONELY, "--", "bash", "-c", script)
    seen = support.read_until(job.stdout, b"[0]<stdout>:name? ")
    os.kill(launcher(job), signal.SIGTERM)
    out, _ = job.communicate(timeout=60)
    expect(job.returncode, -signal.SIGTERM)
    assert b"<stdout>:y" in seen + out  # the flood was there


support.parse_options()
cases = [a_prompt_comes_out_beside_another_hosts_flood, who_reads_late_gets_all_of_it, a_slow_line_has_its_time_for_it,
         last_lines_are_a_ranks_own_however_late_they_come,
         what_does_not_come_from_a_host_that_was_cut_off_since_is_told]
support.main(*map(on_hosts, cases), why_not=hosts.why_not())
