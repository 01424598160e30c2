"""Network: allreduce between two hosts, beside a raw TCP stream between them and what a limited link can carry."""
import tempfile

from collectives import KIB, MIB, Rows, name_of
from experiment import Experiment, Variant
from programs import built, made_hosts
from samples import Claim, Term
from usage import positive

HELP = "allreduce between two hosts over a virtual network, beside a raw TCP stream, and over a link of 1 Gbit/s"
DETAILS = """\
The hosts are network namespaces of this machine, joined by a bridge, and share its CPUs; the ranks are threads of one
process, each with its end of a link in one of them. Congestion is controlled by Reno: BBR's timers, where a machine has
that, wait for CPUs that ranks spin on, and halve what a stream carries now and then. The raw stream computes nothing:
each host sends to the other as many bytes as a ring has to. Targets: 0.85 of the raw stream's speed from 64 KiB on (1 KiB is no stream but a message
each way, and shown alone); where the link carries 1 Gbit/s each way 0.95 of the speed that is left for payload, frames
of 1,514 bytes holding 1,448. Needs root."""
SAMPLES, SECONDS = 9, 400
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB)
MESSAGE = name_of(KIB)
LIMITED_SIZE, LIMITED = 64 * MIB, "64 MiB at 1 Gbit/s"  # a burst of 256 KiB more is little beside it
LIMITED_US = LIMITED_SIZE * 8 / 1e9 * 1514 / 1448 * 1e6  # both halves of a ring of two at once, each way all bytes
HOSTS, CONGESTION_CONTROL = ("h1", "h2"), "reno"  # each kernel has it
RAW, OURS, IDEAL = "raw stream", "hvd, tcp", "computed ideal"


def add_arguments(parser):
    parser.add_argument("--row-seconds", type=positive, default=0.3, metavar="S", help="of repetitions in one sample (0.3)")


def claims_of(cases):
    for case in cases:
        raw, ours, ideal = (Term(case, (name,), "time") for name in (RAW, OURS, IDEAL))
        if case == LIMITED:
            yield Claim(f"{case}: the ideal time / hvd's", ideal, ours, at_least=0.95)
        else:
            yield Claim(f"{case}: the raw stream's time / hvd's", raw, ours, at_least=0.85 if case != MESSAGE else None)


def make(options):
    program = built(options.build, "links_benchmark")
    world = made_hosts(2)
    for host in HOSTS:
        world.run(host, "sh", "-c", f"echo {CONGESTION_CONTROL} >/proc/sys/net/ipv4/tcp_congestion_control")
    folder = tempfile.TemporaryDirectory(prefix="hvd-benchmark-")
    rows = Rows(options, folder.name, SIZES)
    rows.sizes[LIMITED] = LIMITED_SIZE
    networks = [f"/proc/{world.first[host]}/ns/net" for host in HOSTS]
    limited = False

    def between(name, *more):
        run = rows.variant(name, [], program, "-np", "2", *more, "--between", *networks, ours=True)

        def measure(case):
            nonlocal limited
            if limited != (case == LIMITED):
                limited = case == LIMITED
                for host in HOSTS:
                    world.limit(host, "1gbit" if limited else None)
            return run.measure(case)

        return Variant(name, measure, ours=True)

    def ideal(_case):
        return {"time": LIMITED_US, "rate": LIMITED_SIZE / LIMITED_US / 1e3}

    def close():
        world.close()
        folder.cleanup()

    cases = list(rows.sizes)
    variants = [between(RAW, "--raw"), between(OURS), Variant(IDEAL, ideal, cases=(LIMITED,))]
    return Experiment("network", cases, variants, list(claims_of(cases)), {"time": "us", "rate": "GB/s"}, close=close)
