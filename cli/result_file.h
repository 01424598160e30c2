// The end of a job as JSON, so that scripts never parse text (--result-file).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/failure_report.h"

namespace hvd {

struct JobResult {
  std::string job;
  std::vector<std::string> command;
  int64_t started_at_s = 0;  // since 1970, UTC
  double seconds = 0;
  Verdict verdict;
  JobFacts facts;
  std::vector<std::string> stderr_tail;  // of the rank that failed first
  int64_t lost_output_bytes = 0;
  int64_t split_lines = 0;
};

// Pure. Bytes that are no UTF-8 are replaced.
std::string result_json(const JobResult& result);

}  // namespace hvd
