#include "cli/help.h"

#include <algorithm>
#include <string_view>

#include "cli/agent/worker_environment.h"
#include "cli/options.h"

namespace hvd {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kTextColumn = 24;  // where the explanation of a term begins

constexpr std::string_view kUsage = "hvdrun [options] [--] command [argument ...]";
constexpr std::string_view kPurpose =
    "Starts a command once per rank, connects the ranks for data-parallel training, and ends them "
    "together when one of them fails.";

struct Example {
  std::string_view command, meaning;
};
constexpr Example kExamples[] = {
    {"hvdrun -np 2 ./train --epochs 3", "two ranks on this machine"},
    {"hvdrun -np 4 -x LR=0.1 python train.py", "four, with a variable set"},
    {"hvdrun -np 2 --output-filename logs ./train", "with a file for each rank"},
};

struct Group {
  OptionGroup group;
  std::string_view title;
};
constexpr Group kGroups[] = {
    {OptionGroup::kHosts, "Ranks and hosts"},
    {OptionGroup::kGpus, "GPUs"},
    {OptionGroup::kCommand, "The command"},
    {OptionGroup::kTime, "Time limits"},
    {OptionGroup::kStall, "Stalled collectives"},
    {OptionGroup::kOutput, "Output and reports"},
    {OptionGroup::kInformation, "Information"},
    {OptionGroup::kClean, "hvdrun clean [-H LIST] [--dry-run]"},
};

constexpr std::string_view kShortHelpOptions[] = {
    "--num-proc",        "--hosts",   "--env",         "--timeout",
    "--output-filename", "--dry-run", "--check-build",
};

struct Status {
  std::string_view number, meaning;
};
constexpr Status kStatuses[] = {
    {"0", "all ranks ended with 0"},
    {"1-255",
     "what the first rank that failed ended with; 128 + N when signal N ended it. Of one that "
     "others waited for in vain, in init() or a collective, and that hvdrun had to end: what the "
     "first of those others ended with; but 137, its own, if it was stopped or did not answer and "
     "was killed for that. Of one whose program ended while others needed it, below a command that "
     "goes on, as a script does: what that program ended with. Such a command is waited for, since "
     "it may start the program again; --timeout sets a limit"},
    {"1", "also: a rank ended with 0 while others waited for it in a collective"},
    {"2",
     "the command line or a host file is wrong, or a file cannot be written; nothing started, and "
     "--result-file left as it was"},
    {"124", "the job took longer than --timeout"},
    {"125",
     "hvdrun itself failed, or could not write all output or read all input of a job that "
     "succeeded"},
    {"126, 127", "the command cannot be run, or is not found"},
    {"129-131, 141, 143",
     "hvdrun was ended by HUP, INT, QUIT or TERM, or its reader left (PIPE); while it still reads "
     "what --ship names, --result-file is left as it was"},
};

constexpr std::string_view kSignals =
    "INT (Ctrl-C) reaches the ranks as INT, and TERM follows; TERM, HUP and QUIT reach them as "
    "TERM; who has not ended after --stop-grace is killed. A second INT kills them at once, and "
    "with a third hvdrun waits for nobody, but for a file server where --result-file lies on one. "
    "TSTP (Ctrl-Z) stops the ranks, too, until CONT (fg); meanwhile, and while a debugger holds a "
    "rank, no limit of time runs on. "
    "Once all ranks have ended, INT drops what nobody reads of their output, and the exit status "
    "is theirs, or 125 where that was 0 and output was lost. USR1 and USR2 go to each rank's own "
    "process, and the job goes on.";

// `text` in lines of at most kColumns, each behind `indent` blanks.
std::string wrapped(std::string_view text, size_t indent) {
  std::string out, line;
  const std::string margin(indent, ' ');
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (!line.empty() && indent + line.size() + 1 + word.size() > kColumns) {
      out += margin + line + "\n";
      line.clear();
    }
    if (!line.empty()) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out + margin + line + "\n";
}

// A term and its explanation, beside it where it fits and below it where not.
std::string entry(const std::string& term, std::string_view text) {
  std::string out = wrapped(text, kTextColumn);
  if (term.size() + 4 > kTextColumn) return "  " + term + "\n" + out;
  return out.replace(2, term.size(), term);
}

// "-np N, --num-proc N"
std::string signature(const Option& option) {
  std::string out;
  for (std::string_view spelling : spellings(option)) {
    if (!out.empty()) out += ", ";
    out += spelling;
    if (!option.values.empty() && !spelling.ends_with('@')) out += " ";
    out += option.values;
  }
  return out;
}

std::string explained(const Option& option) {
  std::string text(option.text);
  if (!option.environment.empty()) {
    text += "; its default may be set by " + std::string(option.environment);
  }
  return text;
}

std::string session_names() {
  std::string names;
  for (const std::string_view name : names_of_session())
    names.append(names.empty() ? "" : ", ").append(name);
  return names;
}

std::string examples() {
  std::string out;
  for (const Example& example : kExamples) {
    std::string line = "  " + std::string(example.command);
    line.resize(std::max(line.size(), size_t{46}), ' ');
    out += line + "  " + std::string(example.meaning) + "\n";
  }
  return out;
}

// Names of Horovod's options with this fate, in one paragraph.
std::string horovod_names(OptionFate fate) {
  std::string names;
  for (const Option& option : all_options()) {
    if (option.fate != fate) continue;
    for (std::string_view spelling : spellings(option)) {
      if (!names.empty()) names += ", ";
      names += spelling;
    }
  }
  return names;
}

// In a man page a backslash, a hyphen and a line's first dot or quote are special.
std::string roff(std::string_view text) {
  std::string out;
  if (!text.empty() && (text[0] == '.' || text[0] == '\'')) out += "\\&";
  for (char letter : text) {
    if (letter == '\\') {
      out += "\\e";
    } else if (letter == '-') {
      out += "\\-";
    } else {
      out += letter;
    }
  }
  return out;
}

std::string man_term(std::string_view term, std::string_view text) {
  return ".TP\n\\fB" + roff(term) + "\\fR\n" + roff(text) + "\n";
}

constexpr std::string_view kTwice =
    "Of an option that is given twice the last one counts, unless it says \"may be given again\": "
    "then all count; or \"one only\": then a second is refused.";
constexpr std::string_view kManHosts =
    "A list of hosts has commas between them, a file has one host on each line. A host is NAME, "
    "NAME:SLOTS or USER@NAME:SLOTS, where NAME may be an address (one with colons in brackets, "
    "[::1]:2) and may hold ranges: node[1-4], node[01-03,7]. In a file NAME slots=N is "
    "understood too, other words with an equals sign are passed over, and # begins a comment. "
    "Ranks fill the hosts in the order given. The slots of a host that is named twice are added. "
    "Without SLOTS a host has one for each GPU that CUDA programs would find where they log in "
    "there, or one where there is none: another machine counts them before its ranks start.";
constexpr std::string_view kEnvironment =
    "Ranks find what hvdrun itself was started with, changed by --env-file, then by what other "
    "options say to ranks, then by -x, then by -x@RANKS, and then the variables below. On other "
    "hosts they have no SSH_CLIENT, and these from the session there, unless -x names them: ";
constexpr std::string_view kHostLimits =
    "They start in the same directory as hvdrun, or in --wdir, with its umask and its limits on "
    "open files, locked memory and core files, as far as the hard limits there allow.";
constexpr std::string_view kEnvironmentFile =
    "A line of an environment file is NAME=VALUE, also behind export, a comment that begins with "
    "#, or blank. A value is what stands there without the blanks around it, up to a # behind a "
    "blank; between single quotes it is taken as it stands; between double quotes \\\", \\\\, \\$, "
    "\\`, \\n and \\t mean what they mean to a shell's printf. Nothing is expanded, and a value "
    "ends "
    "with its line.";
constexpr std::string_view kGpuLibraries =
    "A rank opens the GPU driver's library and NCCL's once it uses a GPU: the copy of NCCL that "
    "its "
    "process has, else those that the loader finds as libcuda.so.1 and libnccl.so.2, or with "
    "-x HVD_CUDA_LIBRARY=PATH and -x HVD_NCCL_LIBRARY=PATH the files named there, as one that was "
    "installed for Python.";
constexpr std::string_view kShipping =
    "Hosts that are reached by ssh get each PATH once: a file is known by its content, and kept "
    "in ~/.cache/hvdrun/shipped, or, where that takes nothing, in hvdrun-UID in $TMPDIR, "
    "/var/tmp or /tmp; hvdrun clean removes what nobody has used for 30 days, but nothing that "
    "ranks wrote, which it names, and nothing where other hosts may use the file system. Links "
    "are followed; sockets, pipes and links to nothing are left out of folders, and what cannot "
    "be read there ends the start. A word of the "
    "command that names a PATH, or something in one, names the copy there: ./train, data, not "
    "--data=data; the first, without a slash, is looked for on the PATH instead. What lies side by "
    "side here does so there; what ranks write beside it is there "
    "again for a start with the very same files, and for no other: results are better off in a "
    "folder of their own. What they change of it is put back. Of a program that is a PATH or "
    "a word of the command, hosts ask their own loader which libraries they lack or have too "
    "old, and get those, libhvd's part for GPUs with libhvd; what else it opens while it runs "
    "(plug-ins, modules) is not seen: ship the folder. A host without a C library for the command "
    "gets one with it. Where the working "
    "directory is not there, ranks start in the home folder, unless --wdir names one. "
    "As with rsync's --timeout, --start-timeout runs only while nothing goes; what has arrived is "
    "not sent again. This machine needs nothing sent.";
constexpr std::string_view kDevices =
    "hvdrun devices [-np N] [-H LIST] [--devices LIST] prints which rank of a job would use which "
    "GPU of this machine, or of the hosts, with each GPU's name, address and NUMA node, its memory "
    "(but not that of a MIG device, which nvidia-smi does not list) and who else uses it, and "
    "which GPUs read each other's memory. It asks nvidia-smi on each "
    "host, and waits 10 s at most, or as --timeout says; CUDA_VISIBLE_DEVICES of each host's "
    "session counts. It ends with 0, with 1 when a CUDA program would find no GPU on one of them, "
    "or with 125 when that is not known. A job that is known to use GPUs, by --devices, "
    "--share-gpu or because they were counted, asks, too, and tells before its ranks start which "
    "of them others use, or are short of memory, and ends where they cannot be used: ranks wait "
    "for nvidia-smi for 2 s at most, 4 s if they are on other hosts, or half of --start-timeout, "
    "and what it answers later is told then. Any other job on a machine with GPUs asks beside its "
    "ranks, which do not wait, and tells what is known before they end; it does not ask with "
    "CUDA_VISIBLE_DEVICES= in its environment, or with --log-level error.";
constexpr std::string_view kManOutput =
    "Each line that a rank prints comes out whole, behind its rank and stream: [0]<stdout>:text. "
    "But one of more than 64 KiB comes in parts, and so does one that was begun and is not ended "
    "within a second or so while other ranks write: its rest stands behind [0]<stdout>+:. "
    "Nothing is dropped while the job runs: all ranks of a host share one pipe to hvdrun, so a "
    "reader that stops reading stops all of them in time. When the job is told to end, or reaches "
    "--timeout, readers have --stop-grace; what is dropped then is counted.";

struct Variable {
  std::string_view names, meaning;
};
constexpr Variable kVariables[] = {
    {"HVD_RANK, HVD_SIZE, HVD_LOCAL_RANK, HVD_LOCAL_SIZE, HVD_CROSS_RANK, HVD_CROSS_SIZE, "
     "HVD_HOSTNAME",
     "the rank's place in the job, on its host and among the hosts"},
    {"HOROVOD_RANK, HOROVOD_SIZE, HOROVOD_LOCAL_RANK, HOROVOD_LOCAL_SIZE, HOROVOD_CROSS_RANK, "
     "HOROVOD_CROSS_SIZE, HOROVOD_HOSTNAME",
     "the same, by Horovod's names"},
    {"RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, "
     "ROLE_WORLD_SIZE, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS",
     "the same for programs that use torch.distributed, by torchrun's names"},
    {"MASTER_ADDR, MASTER_PORT", "where rank 0 of such a program may listen; unless -x gives them"},
    {"NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME",
     "the interface on which the job's other hosts are reached, lo where there are none and "
     "MASTER_ADDR is not given; unless they are set"},
    {"NCCL_SOCKET_FAMILY", "AF_INET6 where other hosts are reached by IPv6; unless it is set"},
    {"CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER",
     "with --devices the GPUs that it names, and that indices count as in hvdrun devices"},
    {"HVD_EXPECT_GPU, HVD_SHARE_GPU",
     "1 with --devices or --share-gpu: hvd::local_device() has to be a GPU, or several ranks' one"},
    {"NCCL_HOSTID and more of NCCL's, CUBLAS_WORKSPACE_CONFIG, CUDA_LAUNCH_BLOCKING",
     "what options about GPUs come to, which --dry-run shows; unless they are set"},
    {"NCCL_LAUNCH_ORDER_IMPLICIT",
     "1, so that NCCL begins on a GPU what it was given in that order; unless it is set"},
    {"OMP_NUM_THREADS", "the rank's share of the machine's CPUs; unless it is set"},
    {"PWD", "with --wdir that directory; unless -x names it"},
    {"PYTHONUNBUFFERED", "1, so that Python's output comes at once; unless it is set"},
    {"HVD_AGENT", "how libhvd reaches hvdrun; no program need look at it"},
};

struct Field {
  std::string_view name, meaning;
};
constexpr Field kResultFields[] = {
    {"version", "1; a number that grows when a field changes its meaning"},
    {"job, command, size", "the job's name, its command as a list, its number of ranks"},
    {"started_at, seconds", "when it began, in UTC as 2001-02-03T04:05:06Z, and how long it took"},
    {"exit_code, signal", "hvdrun's own: the status, and the signal it ended by, or null"},
    {"cause",
     "finished, rank_failed, interrupted, terminated, hangup, quit, output_closed, time_limit, "
     "start_timeout, agent_lost, own_failure or not_started (the command cannot be run or is not "
     "found, this machine lacks what a start needs, or no agent could be started on a host; where "
     "only the start of a rank showed it: rank_failed)"},
    {"cause_text",
     "the cause in words if it needs some, or an empty text; of rank_failed why and how the first "
     "rank failed, or which link between hosts was lost"},
    {"first_failure",
     "null, as where a link between hosts was lost, or the rank that failed first, as in ranks, "
     "with why (more than its exit status "
     "says) and stderr_tail (its last lines there, 20 at most, each cut at 2 KiB; of what it left "
     "running only until that was told to end, unless there is nothing else)"},
    {"hosts",
     "not_started: a list of the hosts on which no agent could be started, the first of all first, "
     "or which were not there when the job was ended (host and why, or the step it was at), 10 at "
     "most; more_not_started: how many others there are; lost: a list of the hosts whose agents "
     "ended without a last word, or do not answer (host and why), 10 at most"},
    {"ranks",
     "a list, one entry for each rank: rank and outcome always. The outcome is finished (exit "
     "code 0), failed (the first; without one, by itself), fallout (a failure that followed from "
     "it), also_failed (one "
     "that did not, as far as can be told), ended (by hvdrun, no rank having failed), stuck (it "
     "could not be ended: host, pid and why) or unknown. "
     "A rank that was started has host, pid, exit_code or signal (the other is null), seconds, "
     "doing (by libhvd, or null) and, if hvdrun sent it a signal, sent_by_hvdrun; one that could "
     "not be started has host, spawn_error and spawn_step"},
    {"output",
     "lost_bytes, which could not be written or never came from a host, and split_lines, too long "
     "to stay whole"},
    {"input", "error: why hvdrun could not read its standard input to the end, or null"},
};

}  // namespace

std::string short_help() {
  std::string out =
      "usage: " + std::string(kUsage) + "\n\n" + wrapped(kPurpose, 0) + "\n" + examples() + "\n";
  for (std::string_view name : kShortHelpOptions) {
    const Option& option = *find_option(name);
    out += entry(signature(option), option.text);
  }
  return out + "\nhvdrun --help shows all options.\n";
}

std::string full_help() {
  std::string out =
      "usage: " + std::string(kUsage) + "\n\n" + wrapped(kPurpose, 0) + "\n" + examples();
  for (const Group& group : kGroups) {
    out += "\n" + std::string(group.title) + ":\n";
    for (const Option& option : all_options()) {
      if (option.group != group.group || option.fate != OptionFate::kWorks) continue;
      out += entry(signature(option), explained(option));
    }
  }
  out += "\n" + wrapped(kTwice, 0) + "\nOptions of Horovod that have no effect here:\n" +
         wrapped(horovod_names(OptionFate::kIgnored) + ", " + horovod_names(OptionFate::kSatisfied),
                 2);
  out += "\nOptions of Horovod that are not supported yet:\n" +
         wrapped(horovod_names(OptionFate::kRefused), 2);
  out += "\nThe environment of ranks:\n" + wrapped(kEnvironment, 2) + wrapped(session_names(), 6) +
         wrapped(kHostLimits, 2) + wrapped(kGpuLibraries, 2) + wrapped(kEnvironmentFile, 2);
  out += "\nWhat --ship sends:\n" + wrapped(kShipping, 2);
  out += "\nhvdrun devices:\n" + wrapped(kDevices, 2);
  out += "\nVariables that each rank finds set:\n";
  for (const Variable& variable : kVariables) {
    out += wrapped(variable.names, 2) + wrapped(variable.meaning, 6);
  }
  out += "\nSignals that hvdrun gets:\n" + wrapped(kSignals, 2) + "\nExit status:\n";
  for (const Status& status : kStatuses) {
    out += entry(std::string(status.number), status.meaning);
  }
  return out;
}

std::string man_page() {
  std::string out = ".TH HVDRUN 1\n.SH NAME\nhvdrun \\- start the ranks of a training job\n";
  out +=
      ".SH SYNOPSIS\n\\fBhvdrun\\fR [options] [\\-\\-] command [argument ...]\n.br\n"
      "\\fBhvdrun clean\\fR [options]\n.br\n\\fBhvdrun devices\\fR [options]\n";
  out += ".SH DESCRIPTION\n" + roff(kPurpose) + "\n.SH OPTIONS\n" + roff(kTwice) + "\n";
  for (const Group& group : kGroups) {
    out += ".SS " + std::string(group.title) + "\n";
    for (const Option& option : all_options()) {
      if (option.group != group.group || option.fate != OptionFate::kWorks) continue;
      out += man_term(signature(option), explained(option));
    }
  }
  out += ".SS Options of Horovod that have no effect here\n";
  for (const Option& option : all_options()) {
    if (option.fate == OptionFate::kIgnored) out += man_term(signature(option), option.text);
    if (option.fate == OptionFate::kSatisfied) {
      out += man_term(signature(option), "asks for what is always so");
    }
  }
  out += ".SS Options of Horovod that are not supported yet\n" +
         roff(horovod_names(OptionFate::kRefused)) + "\n";
  out += ".SH HOSTS\n" + roff(kManHosts) + "\n.SH WHAT \\-\\-SHIP SENDS\n" + roff(kShipping) +
         "\n.SH DEVICES\n" + roff(kDevices) + "\n.SH OUTPUT\n" + roff(kManOutput) + "\n";
  out += ".SH ENVIRONMENT\n" + roff(kEnvironment) + roff(session_names()) + ". " +
         roff(kHostLimits) + "\n.PP\n" + roff(kGpuLibraries) + "\n.PP\n" + roff(kEnvironmentFile) +
         "\n";
  for (const Variable& variable : kVariables) out += man_term(variable.names, variable.meaning);
  out += ".SH RESULT FILE\nThe JSON object that " + roff("--result-file") +
         " writes has these fields. A file may be there early, when all ranks of a failed job have "
         "ended and who reads their output stands still; the last text takes its place.\n";
  for (const Field& field : kResultFields) out += man_term(field.name, field.meaning);
  out += ".SH SIGNALS\n" + roff(kSignals) + "\n.SH EXIT STATUS\n";
  for (const Status& status : kStatuses) out += man_term(status.number, status.meaning);
  out += ".SH EXAMPLES\n";
  for (const Example& example : kExamples) out += man_term(example.command, example.meaning);
  return out;
}

}  // namespace hvd
