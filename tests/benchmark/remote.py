"""Remote: how long /bin/true on other hosts takes, beside bare ssh to all of them at once."""
import itertools
import shlex

from experiment import Experiment, Variant
from programs import built, made_hosts, run_once
from samples import Claim, Term

HELP = "start and end of /bin/true on 2 and on 32 hosts over ssh, beside bare ssh to all of them at once"
DETAILS = """\
The hosts are namespaces of this machine, each with an sshd of its own, and share its CPUs. The agent is there already. Beside
hvdrun's time stands how much more it is than that of bare ssh just before, `ssh host true` to all at once. Targets: 2 hosts of 2
ranks 130 ms more, 60 ms where the routes acknowledge at once (ip-route's quickack, which spares ssh its delayed answers); 32
hosts of one rank 1.5 times the time of bare ssh. A host whose name is not known, beside one that is up, or where nothing listens
is named, and the job over, within a second. Needs root."""
SAMPLES, SECONDS = 20, 400
LIMIT_S = 30.0
PLAIN, QUICK, MANY = "2 hosts x 2", "2 hosts x 2, quickack", "32 hosts x 1"
SHAPES = {PLAIN: (2, 2), QUICK: (2, 2), MANY: (32, 1)}  # hosts, ranks of each
WRONG, REFUSED = "a name that is not known", "nothing listens"
FAILURES = {WRONG: ("-H h1,nohost", "nohost"), REFUSED: ("-p 2 -H h1", "-p 2 h1")}  # hvdrun's words, ssh's
SSH = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=accept-new", "-oLogLevel=ERROR"]


def add_arguments(_parser):
    pass


def commands(hvdrun, case):
    """What ssh alone and hvdrun are asked to do."""
    if case in FAILURES:
        ours, theirs = FAILURES[case]
        named = f"no agent on {theirs.split()[-1]}: "
        return ["sh", "-c", f"{shlex.join(SSH)} {theirs} true; [ $? = 255 ]"], \
               ["sh", "-c", f"{shlex.quote(hvdrun)} {ours} -- true 2>&1 | grep -q '{named}'"]
    hosts, ranks = SHAPES[case]
    names = [f"h{i}" for i in range(1, hosts + 1)]
    alone = " ".join(shlex.join([*SSH, name, "/bin/true"]) + ' & p="$p $!";' for name in names)
    list_of_hosts = ",".join(f"{name}:{ranks}" for name in names)
    return ["sh", "-c", f"{alone} for i in $p; do wait $i || exit; done"], [hvdrun, "-np", str(hosts * ranks), "-H", list_of_hosts, "--", "/bin/true"]


def make(options):
    hvdrun = built(options.build, "hvdrun")
    world = made_hosts(max(hosts for hosts, _ in SHAPES.values()))

    def measure(case):
        for host, (family, network) in itertools.product(("h0", "h1", "h2"), (("-4", "10.77.0.0/24"), ("-6", "fd77::/64"))):
            made = world.run(host, "ip", family, "route", "show", network, "dev", "eth0").stdout.split("quickack")[0].split()
            world.run(host, "ip", family, "route", "replace", *made, "dev", "eth0", "quickack", str(int(case == QUICK)))
        alone, ours = (run_once(world.command("h0", *words), LIMIT_S)[1] * 1e3 for words in commands(hvdrun, case))
        return {"wall": ours, "ssh": alone, "more": ours - alone, "ratio": ours / alone}

    def claim(case, metric, text, most, unit):
        return Claim(f"{case}: {text}", Term(case, ("hvdrun",), metric), at_most=most, unit=unit)

    claims = [
        claim(PLAIN, "more", "hvdrun's time above bare ssh's", 130, " ms"),
        claim(QUICK, "more", "hvdrun's time above bare ssh's", 60, " ms"),
        claim(MANY, "ratio", "hvdrun's time / bare ssh's", 1.5, "x"),
        *(claim(case, "wall", "named, and the job over", 1000, " ms") for case in FAILURES),
    ]
    return Experiment("remote", [*SHAPES, *FAILURES], [Variant("hvdrun", measure, ours=True)], claims,
                      {"wall": "ms", "ssh": "ms", "more": "ms", "ratio": ""}, close=world.close)
