#include "cli/options.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace hvd {
namespace {

using enum OptionGroup;
using enum OptionFate;

constexpr Option kOptions[] = {
    {"--num-proc", "-np", "N", kHosts, kWorks,
     "how many ranks to start; without it, every slot of the hosts given, or one rank for each GPU "
     "of this machine",
     ""},
    {"--hosts", "-H", "LIST", kHosts, kWorks,
     "hosts and their slots: localhost:2,node[1-4]:8,[::1]:2,user@host:4; a host without a count "
     "has one slot for each of its GPUs, or one, which another machine counts before its ranks "
     "start; other machines are reached by ssh and need nothing installed but what the command "
     "needs; may be given again",
     ""},
    {"--hostfile", "-hostfile", "FILE", kHosts, kWorks,
     "hosts from a file, one a line: NAME, NAME:N or NAME slots=N; # begins a comment; one "
     "only",
     ""},

    {"--ssh-port", "-p", "PORT", kHosts, kWorks,
     "the port of sshd on the other hosts; by default what ssh's configuration says", ""},
    {"--ssh-identity-file", "-i", "FILE", kHosts, kWorks, "the key to log in by on the other hosts",
     ""},
    {"--ssh-command", "", "COMMAND", kHosts, kWorks,
     "the program to run instead of ssh, without arguments; it takes ssh's options", ""},
    {"--ssh-arg", "", "WORD", kHosts, kWorks,
     "one more word for ssh, an option or its value, as in --ssh-arg=-oUser=me, or --ssh-arg=-C, "
     "by "
     "which the 20 MB that a new host gets of hvdrun are half as much on a slow line; may be given "
     "again",
     ""},
    {"--network-interface", "--network-interfaces", "NAME|CIDR", kHosts, kWorks,
     "on which network the hosts of a job reach each other: an interface's name or a network "
     "such as 10.0.0.0/8, the first of a list that a host has; by default the fastest on which "
     "all have reached it, unless far less comes through there than where ssh reaches it, and "
     "a line says which and why; of more than 16 hosts, or of 64 on a faster link than ssh's, "
     "not all, but those that libhvd connects first, rank 0's with all: the rest try it while "
     "ranks run, and a line names who does not reach whom; may be given again",
     ""},
    {"--port-range", "", "LOW-HIGH", kHosts, kWorks,
     "the ports that a job with other hosts listens on, at least 3 of them, for firewalls; "
     "MASTER_PORT is one, too",
     ""},
    {"--pretend-hosts", "", "HOSTSxSLOTS", kHosts, kForTests,
     "an agent and ranks of their own for each of so many hosts, all of them this machine", ""},

    {"--devices", "", "LIST", kGpus, kWorks,
     "which GPUs the ranks of each host use, by local rank: indices such as 0,1, as hvdrun devices "
     "counts, or names, GPU-8932f937,... or MIG-c6d4f1ef,...; those of this machine are checked, "
     "indices of others, too, and a host without a count has one slot for each. Ranks find the "
     "list in CUDA_VISIBLE_DEVICES, so that each one's is cuda:LOCAL_RANK; of MIG devices each "
     "finds its own alone, and two of one GPU need --share-gpu. Without --devices hvdrun leaves "
     "that variable as it is",
     ""},
    {"--share-gpu", "", "", kGpus, kWorks,
     "start more ranks than there are GPUs, to try a program out: NCCL takes each for a host of "
     "its "
     "own and moves everything through sockets, slowly; a rank's GPU is its local rank modulo "
     "their "
     "number",
     ""},
    {"--deterministic", "", "", kGpus, kWorks,
     "have NCCL and cuBLAS compute the same bits in each run with as many ranks: one algorithm, "
     "protocol and number of channels, no windows, one kind of workspace; what PyTorch itself "
     "needs beside "
     "that, the program says",
     ""},
    {"--launch-blocking", "", "", kGpus, kWorks,
     "wait for each CUDA kernel, so that an error shows where it began; slow, and a rank that "
     "waits so for one that died may be ended rather than told",
     ""},
    {"--nccl-debug", "", "RANKS", kGpus, kWorks,
     "have NCCL tell what it does in these ranks, as in 0,2-5: on their standard error, or with "
     "--output-filename in DIR/rank.N/nccl, but for ranks on other hosts",
     ""},

    {"--env", "-x", "NAME[=VALUE]", kCommand, kWorks,
     "set a variable for all ranks, or pass on the one set here, or all of a name such as "
     "'NCCL_*', but for PWD and what the command line gives a value; may be given again; RANK, "
     "WORLD_SIZE and the like are each rank's own and cannot be set. For secrets, NAME alone or "
     "--env-file: until hvdrun has read it, every user here can read VALUE with the command line",
     ""},
    {"--env@", "-x@", "RANKS NAME=VALUE", kCommand, kWorks,
     "set a variable for these ranks only, as in -x@0,2-5 NAME=VALUE; wins over -x; may be "
     "given again",
     ""},
    {"--env-file", "", "FILE", kCommand, kWorks,
     "set the variables of a file of NAME=VALUE lines; -x wins; quotes around a value are taken "
     "off, # begins a comment, nothing is expanded; may be given again",
     ""},
    {"--wdir", "", "DIR", kCommand, kWorks,
     "start the command in this directory, on all hosts; a relative one is below hvdrun's own, "
     "and .. takes back the name before it, be that there or not; hvdrun's own is, on other hosts, "
     "what $PWD names there, as with Open MPI, or else its name without links",
     ""},
    {"--ship", "", "PATH", kCommand, kWorks,
     "send this file or folder to the other hosts, and of a program there the shared libraries "
     "that a host lacks; may be given again; see \"What --ship sends\"",
     ""},
    {"--ship-limit", "", "SIZE", kCommand, kWorks,
     "refuse to send a host files of more than this in all, in bytes or as in 500M or 8G; 2G", ""},
    {"--stdin", "", "0|none|all", kCommand, kWorks,
     "who reads the input: rank 0 (the default), nobody, or all ranks", ""},

    {"--timeout", "", "S", kTime, kWorks,
     "end the job after so many seconds, exit status 124; 0, the default, for no limit", ""},
    {"--start-timeout", "", "S", kTime, kWorks,
     "how long all ranks may take to start and to meet in init(), and NCCL then to connect their "
     "GPUs, and a host to be reached: not before its turn, nor while it takes what is sent to it, "
     "so that a slow line is no failure; 30",
     "HOROVOD_START_TIMEOUT"},
    {"--wait-hosts", "", "S", kTime, kWorks,
     "how long to try hosts again that refuse or do not answer; --start-timeout begins for each "
     "when it is reached, and for all when all are there; 0, the default, for not at all",
     ""},
    {"--stop-grace", "", "S", kTime, kWorks,
     "how long ranks that are told to stop have before they are killed, and who reads the output "
     "before the rest is dropped; 5",
     ""},
    {"--collective-timeout", "", "S", kTime, kWorks,
     "fail a collective that waits for so long although all ranks live; 0, the default, for no "
     "limit",
     "HVD_COLLECTIVE_TIMEOUT"},
    {"--agent-timeout", "", "S", kTime, kWorks,
     "give a host up when its agent has been silent for so long, 2 at least; 60, but another "
     "machine after 6 at most",
     ""},

    {"--stall-check-warning-time-seconds", "", "N", kStall, kWorks,
     "warn, naming the missing ranks, when a collective has waited for so long; 60",
     "HOROVOD_STALL_CHECK_TIME_SECONDS"},
    {"--stall-check-shutdown-time-seconds", "", "N", kStall, kWorks,
     "end the job when a collective has waited for so long, warned about or not; 0, the default, "
     "for never",
     "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"},
    {"--no-stall-check", "", "", kStall, kWorks, "do not look for stalled collectives",
     "HOROVOD_STALL_CHECK_DISABLE"},
    {"--stall-check", "", "", kStall, kWorks, "look for them, which is the default", ""},

    {"--output-filename", "", "DIR", kOutput, kWorks,
     "also write what each rank prints to DIR/rank.N/stdout and stderr (rank.07 of 12), here, "
     "whichever host it runs on",
     ""},
    {"--prefix-output-with-timestamp", "-prefix-timestamp", "", kOutput, kWorks,
     "put the time before each line", ""},
    {"--no-tag-output", "", "", kOutput, kWorks, "leave out the [rank]<stdout>: before each line",
     ""},
    {"--output-ranks", "", "LIST", kOutput, kWorks,
     "show what these ranks print only, as in 0,2-5; files get everything", ""},
    {"--color", "", "auto|always|never", kOutput, kWorks,
     "colour the tags; auto does when a terminal reads", ""},
    {"--result-file", "", "FILE", kOutput, kWorks, "write how the job ended to FILE, as JSON", ""},
    {"--verbose", "", "", kOutput, kWorks,
     "log each step of the job on stderr: --log-level debug, but for hvdrun alone", ""},
    {"--log-level", "", "LEVEL", kOutput, kWorks,
     "what hvdrun logs: trace, debug, info, warning (the default), error or fatal; with the last "
     "two the ranks' libhvd leaves out its stall warning",
     "HOROVOD_LOG_LEVEL"},

    {"-h", "", "", kInformation, kWorks, "the most used options and three examples", ""},
    {"--help", "", "", kInformation, kWorks, "all options", ""},
    {"--version", "-v", "", kInformation, kWorks,
     "versions of hvdrun and of what is linked into it", ""},
    {"--check-build", "-cb", "", kInformation, kWorks, "what this build can do", ""},
    {"--dry-run", "", "", kInformation, kWorks,
     "check what can be checked from here and print which rank would start where, but start "
     "nothing "
     "and reach no other host, so that its name, its networks and the command there go unchecked",
     ""},

    {"--all", "", "", kClean, kWorks,
     "end jobs that live, too; without it hvdrun clean ends what jobs of yours left on the hosts "
     "of "
     "-H, or here, and removes copies of other versions of hvdrun that nobody has started there "
     "for 30 days, and what --ship has put there and nobody has used as long; with --dry-run it "
     "only tells",
     ""},

    {"--gloo", "", "", kHorovod, kIgnored, "hvdrun starts and connects the ranks itself",
     "HOROVOD_CONTROLLER"},
    {"--mpi", "", "", kHorovod, kIgnored, "hvdrun starts and connects the ranks itself", ""},
    {"--disable-cache", "", "", kHorovod, kIgnored, "no check of a host is ever cached", ""},
    {"--cycle-time-ms", "", "MS", kHorovod, kIgnored,
     "an operation starts when all ranks are ready, not at the next cycle", "HOROVOD_CYCLE_TIME"},
    {"--hierarchical-allreduce", "", "", kHorovod, kIgnored,
     "the algorithm follows from where the ranks are", "HOROVOD_HIERARCHICAL_ALLREDUCE"},
    {"--no-hierarchical-allreduce", "", "", kHorovod, kIgnored,
     "the algorithm follows from where the ranks are", ""},
    {"--hierarchical-allgather", "", "", kHorovod, kIgnored,
     "the algorithm follows from where the ranks are", "HOROVOD_HIERARCHICAL_ALLGATHER"},
    {"--no-hierarchical-allgather", "", "", kHorovod, kIgnored,
     "the algorithm follows from where the ranks are", ""},
    {"--torus-allreduce", "", "", kHorovod, kIgnored,
     "the algorithm follows from where the ranks are", "HOROVOD_TORUS_ALLREDUCE"},
    {"--no-torus-allreduce", "", "", kHorovod, kIgnored,
     "the algorithm follows from where the ranks are", ""},
    {"--mpi-threads-disable", "", "", kHorovod, kIgnored, "MPI is not used",
     "HOROVOD_MPI_THREADS_DISABLE"},
    {"--no-mpi-threads-disable", "", "", kHorovod, kIgnored, "MPI is not used", ""},
    {"--mpi-args", "", "ARGS", kHorovod, kIgnored,
     "mpirun is not used; -x, --wdir and the other options of hvdrun say the same", ""},
    {"--binding-args", "", "ARGS", kHorovod, kIgnored,
     "mpirun is not used; taskset or numactl before the command binds a rank", ""},
    {"--tcp", "", "", kHorovod, kIgnored, "MPI is not used; for NCCL use -x NCCL_IB_DISABLE=1", ""},
    {"--gloo-timeout-seconds", "", "N", kHorovod, kIgnored,
     "gloo is not used; --start-timeout and --collective-timeout bound the waits",
     "HOROVOD_GLOO_TIMEOUT_SECONDS"},
    {"--log-with-timestamp", "--no-log-hide-timestamp", "", kHorovod, kIgnored,
     "--prefix-output-with-timestamp puts the time before every line", ""},
    {"--log-without-timestamp", "--log-hide-timestamp", "", kHorovod, kSatisfied, "", ""},
    {"--no-autotune", "", "", kHorovod, kSatisfied, "", ""},
    {"--no-timeline-mark-cycles", "", "", kHorovod, kSatisfied, "", ""},

    {"--fusion-threshold-mb", "", "MB", kHorovod, kRefused, "leave it out",
     "HOROVOD_FUSION_THRESHOLD"},
    {"--cache-capacity", "", "N", kHorovod, kRefused, "leave it out", "HOROVOD_CACHE_CAPACITY"},
    {"--num-nccl-streams", "", "N", kHorovod, kRefused, "leave it out", "HOROVOD_NUM_NCCL_STREAMS"},
    {"--thread-affinity", "", "N", kHorovod, kRefused,
     "put taskset or numactl before the command instead", "HOROVOD_THREAD_AFFINITY"},
    {"--jsrun", "", "", kHorovod, kRefused, "give the hosts by -H", ""},
    {"--config-file", "", "FILE", kHorovod, kRefused, "write its settings as options", ""},
    {"--timeline-filename", "", "FILE", kHorovod, kRefused, "leave it out", "HOROVOD_TIMELINE"},
    {"--timeline-mark-cycles", "", "", kHorovod, kRefused, "leave it out",
     "HOROVOD_TIMELINE_MARK_CYCLES"},
    {"--autotune", "", "", kHorovod, kRefused, "leave it out", "HOROVOD_AUTOTUNE"},
    {"--autotune-log-file", "", "FILE", kHorovod, kRefused, "leave it out", "HOROVOD_AUTOTUNE_LOG"},
    {"--autotune-warmup-samples", "", "N", kHorovod, kRefused, "leave it out",
     "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"},
    {"--autotune-steps-per-sample", "", "N", kHorovod, kRefused, "leave it out",
     "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"},
    {"--autotune-bayes-opt-max-samples", "", "N", kHorovod, kRefused, "leave it out",
     "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"},
    {"--autotune-gaussian-process-noise", "", "F", kHorovod, kRefused, "leave it out",
     "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"},
    {"--min-num-proc", "--min-np", "N", kHorovod, kRefused, "jobs of a fixed size work: -np", ""},
    {"--max-num-proc", "--max-np", "N", kHorovod, kRefused, "jobs of a fixed size work: -np", ""},
    {"--slots-per-host", "", "N", kHorovod, kRefused, "give each host its slots: -H host:N", ""},
    {"--elastic-timeout", "", "S", kHorovod, kRefused, "jobs of a fixed size work: -np", ""},
    {"--reset-limit", "", "N", kHorovod, kRefused, "jobs of a fixed size work: -np", ""},
    {"--blacklist-cooldown-range", "", "MIN MAX", kHorovod, kRefused,
     "jobs of a fixed size work: -np", ""},
    {"--host-discovery-script", "", "COMMAND", kHorovod, kRefused, "give the hosts by -H", ""},
};

constexpr size_t kLengthMax = 64;  // of a spelling that is compared with others

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

char plain(char letter) {
  return letter == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
}

// Insertions, deletions, changes and swaps of neighbours that lead from one to the other (optimal
// string alignment), at most kLengthMax letters each.
int edit_distance(std::string_view a, std::string_view b) {
  using Row = std::array<int, kLengthMax + 1>;
  Row before_last{}, last{}, row{};
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = plain(a[i - 1]) == plain(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && plain(a[i - 1]) == plain(b[j - 2]) &&
                           plain(a[i - 2]) == plain(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

std::span<const Option> all_options() { return kOptions; }

std::vector<std::string_view> spellings(const Option& option) {
  std::vector<std::string_view> all = split_words(option.aliases);
  const bool short_first = !all.empty() && all[0][1] != '-' && all[0].size() <= 3;
  all.insert(short_first ? all.begin() + 1 : all.begin(), option.name);
  return all;
}

std::string_view shown_name(const Option& option) { return spellings(option).front(); }

int value_count(const Option& option) {
  return static_cast<int>(split_words(option.values).size());
}

const Option* find_option(std::string_view spelling) {
  for (const Option& option : kOptions) {
    if (option.name == spelling) return &option;
    for (std::string_view alias : split_words(option.aliases)) {
      if (alias == spelling) return &option;
    }
  }
  return nullptr;
}

std::string_view nearest_spelling(std::string_view unknown) {
  if (unknown.size() > kLengthMax) return {};
  std::string_view best;
  int best_distance = std::max(1, static_cast<int>(unknown.size()) / 3) + 1;
  for (const Option& option : kOptions) {
    for (std::string_view spelling : spellings(option)) {
      int distance = edit_distance(unknown, spelling);
      const bool begins_it = unknown.size() > 3 && spelling.starts_with(unknown);
      if (begins_it) distance = 0;  // an abbreviation: the first that it may stand for
      // -q and -H are two letters, not one misspelled.
      const int letters = static_cast<int>(std::max(unknown.size(), spelling.size())) - 1;
      if (distance < std::min(best_distance, letters)) {
        best = spelling;
        best_distance = distance;
      }
    }
  }
  return best;
}

}  // namespace hvd
