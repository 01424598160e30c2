// Reads stdin to its end and says what came: output_consumer count|check.
//
// Prints: bytes, seconds from the first byte to the last, lines, torn lines, lines out of order
// (lost or twice). `count` looks at no line, so that it is not the slowest part.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Seen {
  long long lines = 0;
  long long torn = 0;
  long long out_of_order = 0;
  std::map<int, long long> next;  // number by rank
};

// "[3]<stdout>:R0003 N000000000017 rrrr…#" with any launcher's tag in front, or none.
void look_at(std::string_view line, Seen& seen) {
  constexpr size_t kTextBytes = 199;
  ++seen.lines;
  if (line.size() < kTextBytes) return void(++seen.torn);
  const std::string_view tag = line.substr(0, line.size() - kTextBytes);
  const std::string text(line.substr(tag.size()));
  int rank = 0;
  long long number = 0;
  const bool whole =
      (tag.empty() || (tag.front() == '[' && (tag.back() == ':' || tag.back() == ' '))) &&
      std::sscanf(text.c_str(), "R%4d N%12lld ", &rank, &number) == 2 && text.back() == '#' &&
      std::all_of(text.begin() + 21, text.end() - 1, [&](char c) { return c == text[20]; });
  if (!whole) return void(++seen.torn);
  seen.out_of_order += number != seen.next[rank];
  seen.next[rank] = number + 1;
}

}  // namespace

int main(int argc, char** argv) {
  using Clock = std::chrono::steady_clock;
  const bool check = argc > 1 && std::strcmp(argv[1], "check") == 0;
  std::vector<char> buffer(1 << 18);
  std::string rest;
  long long bytes = 0;
  Seen seen;
  Clock::time_point begin = Clock::now();
  for (ssize_t n; (n = read(STDIN_FILENO, buffer.data(), buffer.size())) > 0; bytes += n) {
    if (bytes == 0) begin = Clock::now();
    if (!check) continue;
    rest.append(buffer.data(), static_cast<size_t>(n));
    size_t at = 0;
    for (size_t end; (end = rest.find('\n', at)) != std::string::npos; at = end + 1)
      look_at(std::string_view(rest).substr(at, end - at), seen);
    rest.erase(0, at);
  }
  seen.torn += !rest.empty();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%lld %.6f %lld %lld %lld\n", bytes, seconds, seen.lines, seen.torn,
              seen.out_of_order);
}
