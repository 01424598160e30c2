#include "cli/hosts.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "cli/quoted.h"
#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr const char* kNotClosed = "\"[\" is not closed; write \"]\" behind the range or address";

constexpr size_t kNameBytesMax = 253;  // of a DNS name
constexpr size_t kUserBytesMax = 64;
constexpr size_t kHostsMax = 65'536;
constexpr size_t kRangeDigitsMax = 9;

constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors begin UTF-8 with it

// What is wrong, and at which byte of the text.
struct Mistake {
  size_t offset;
  std::string message;
};

// A piece of the text that knows where it lies.
struct Piece {
  std::string_view text;
  size_t offset;

  Piece sub(size_t from, size_t count = std::string_view::npos) const {
    return {text.substr(from, count), offset + from};
  }
  Piece trimmed() const {
    const size_t first = text.find_first_not_of(kBlanks);
    if (first == text.npos) return sub(text.size());
    return sub(first, text.find_last_not_of(kBlanks) + 1 - first);
  }
};

[[noreturn]] void refuse(const Piece& piece, std::string message) {
  throw Mistake{piece.offset, std::move(message)};
}

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The number that all of `digits` spells, if it does and is at most `most`.
std::optional<int> read_number(std::string_view digits, int most) {
  int number = 0;
  const char* end = digits.data() + digits.size();
  if (digits.empty() || !is_digit(digits[0])) return std::nullopt;
  const auto [stop, error] = std::from_chars(digits.data(), end, number);
  if (error != std::errc() || stop != end || number > most) return std::nullopt;
  return number;
}

void check_letters(const Piece& piece, const char* what) {
  for (size_t i = 0; i < piece.text.size(); ++i) {
    const char c = piece.text[i];
    if (is_letter_or_digit(c) || c == '.' || c == '_' || c == '-') continue;
    const std::string_view rest = std::string_view(piece.text).substr(i);
    const std::string_view character = rest.substr(0, std::max<size_t>(character_bytes(rest), 1));
    refuse(piece.sub(i), in_quotes(piece.text) + " is not " + what + ": it holds " +
                             in_quotes(character) +
                             "; use letters, digits, dots, dashes and underscores");
  }
}

void check_name(const Piece& piece, const std::string& name) {
  if (name.size() > kNameBytesMax) {
    refuse(piece, "the name " + in_quotes(name) + " has " + std::to_string(name.size()) +
                      " bytes; a host name has at most 253, write it shorter");
  }
  if (name.front() == '-' || name.front() == '.') {
    refuse(piece, in_quotes(name) + " is not a host name: it begins with " +
                      in_quotes(std::string_view(name).substr(0, 1)) + "; leave that out");
  }
}

int read_slots(const Piece& piece) {
  const std::optional<int> slots = read_number(piece.text, kSlotsMax);
  if (!slots) {
    refuse(piece, in_quotes(piece.text) + " is no number of slots; write one from 0 to 65535");
  }
  return *slots;
}

void read_user(const Piece& piece, std::string& user) {
  if (piece.text.empty()) refuse(piece, "there is no user before \"@\"; write user@host");
  check_letters(piece, "a user");
  if (piece.text[0] == '-') refuse(piece, "a user name cannot begin with \"-\"; leave that out");
  if (piece.text.size() > kUserBytesMax) {
    refuse(piece, "the user name " + in_quotes(piece.text) +
                      " is longer than 64 bytes; set it as User in ~/.ssh/config");
  }
  user = piece.text;
}

// "[01-03,7]" without its brackets, as "01", "02", "03", "7".
std::vector<std::string> expand_range(const Piece& range) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= range.text.size();) {
    const size_t end = std::min(range.text.find(',', begin), range.text.size());
    const Piece part = range.sub(begin, end - begin);
    const size_t dash = std::min(part.text.find('-'), part.text.size());
    const std::string_view first = part.text.substr(0, dash);
    const std::string_view last = dash < part.text.size() ? part.text.substr(dash + 1) : first;
    const std::optional<int> from = read_number(first, 999'999'999);
    const std::optional<int> to = read_number(last, 999'999'999);
    if (!from || !to || *from > *to || first.size() > kRangeDigitsMax) {
      refuse(part, in_quotes(part.text) + " is no range; write one like 1-4 or 01-03,7");
    }
    if (static_cast<size_t>(*to - *from) >= kHostsMax - std::min(kHostsMax, out.size())) {
      refuse(part, "the range gives more than 65536 hosts; make it narrower");
    }
    for (int number = *from; number <= *to; ++number) {
      std::string digits = std::to_string(number);
      if (first[0] == '0' && digits.size() < first.size()) {  // [01-03] keeps its width
        digits.insert(0, first.size() - digits.size(), '0');
      }
      out.push_back(std::move(digits));
    }
    begin = end + 1;
  }
  return out;
}

// All names that a pattern with any number of ranges stands for, the last range turning fastest.
std::vector<std::string> expand_names(const Piece& pattern) {
  std::vector<std::string> names{""};
  for (Piece rest = pattern; !rest.text.empty();) {
    const size_t open = std::min(rest.text.find('['), rest.text.size());
    const Piece plain = rest.sub(0, open);
    check_letters(plain, "a host name");
    // Looked at before it is copied for every name.
    if (plain.text.size() > kNameBytesMax) check_name(pattern, std::string(plain.text));
    for (std::string& name : names) name += plain.text;
    if (open == rest.text.size()) break;
    const size_t close = rest.text.find(']', open);
    if (close == rest.text.npos) refuse(rest.sub(open), kNotClosed);
    const auto numbers = expand_range(rest.sub(open + 1, close - open - 1));
    if (names.size() * numbers.size() > kHostsMax) {
      refuse(rest.sub(open), "the ranges give more than 65536 hosts; make them narrower");
    }
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers.size());
    for (const std::string& name : names) {
      if (name.size() > kNameBytesMax) check_name(pattern, name);
      for (const std::string& number : numbers) longer.push_back(name + number);
    }
    names = std::move(longer);
    rest = rest.sub(close + 1);
  }
  for (const std::string& name : names) check_name(pattern, name);
  return names;
}

// "::1" or "fe80::1%eth0".
void check_address(const Piece& piece) {
  const size_t percent = std::min(piece.text.find('%'), piece.text.size());
  const std::string address(piece.text.substr(0, percent));
  const std::string_view zone = piece.text.substr(percent);
  in6_addr parsed;
  const bool zone_fits = zone.size() != 1 && zone.size() <= 16;  // "%" and an interface's name
  if (zone.size() > 1) check_letters(piece.sub(percent + 1), "an interface");
  // An address with a zero byte in it would end there for inet_pton.
  const bool whole = address.find('\0') == address.npos;
  if (!zone_fits || !whole || inet_pton(AF_INET6, address.c_str(), &parsed) != 1) {
    refuse(piece, in_quotes(piece.text) +
                      " is neither a range nor an IPv6 address; write [1-4] or [fd00::1]");
  }
}

// One item of a list, or the first word of a file's line. Adds what it stands for to `hosts`.
void read_item(const Piece& item, std::vector<GivenHost>& hosts) {
  GivenHost host;
  Piece rest = item;
  if (const size_t at = item.text.rfind('@'); at != item.text.npos) {
    read_user(item.sub(0, at), host.user);
    rest = item.sub(at + 1);
  }
  size_t colon;
  std::vector<std::string> names;
  const size_t close = rest.text.find(']');
  const bool is_address = !rest.text.empty() && rest.text[0] == '[' && close != rest.text.npos &&
                          rest.text.substr(0, close).find(':') != rest.text.npos;
  if (is_address) {
    check_address(rest.sub(1, close - 1));
    names.emplace_back(rest.text.substr(1, close - 1));
    colon = close + 1;
    if (colon < rest.text.size() && rest.text[colon] != ':') {
      refuse(rest.sub(colon), "behind \"]\" stands " + in_quotes(rest.text.substr(colon)) +
                                  "; write a colon and the number of slots, or nothing");
    }
  } else {
    if (rest.text.empty()) refuse(rest, "there is no host name behind \"@\"; write user@host");
    colon = std::min(rest.text.find(':'), rest.text.size());
    if (rest.text.starts_with('[') && rest.text.find(']') == rest.text.npos)
      refuse(rest.sub(0, 1), kNotClosed);
    if (std::count(rest.text.begin(), rest.text.end(), ':') > 1) {
      refuse(rest, in_quotes(rest.text) +
                       " has more than one colon; an IPv6 address goes in "
                       "brackets, as in [::1]:2");
    }
    if (colon == 0) refuse(rest, "there is no host name before the colon; write name:2");
    names = expand_names(rest.sub(0, colon));
  }
  if (colon < rest.text.size()) {
    if (colon + 1 == rest.text.size()) {
      refuse(item, in_quotes(item.text) +
                       " has no number of slots behind the colon; write one, or "
                       "leave the colon out");
    }
    host.slots = read_slots(rest.sub(colon + 1));
  }
  if (hosts.size() + names.size() > kHostsMax)
    refuse(item, "these are more than 65536 hosts; give fewer");
  for (std::string& name : names) {
    host.name = std::move(name);
    hosts.push_back(host);
  }
}

// Where the item that begins the text ends: at the first comma outside brackets.
size_t item_end(std::string_view text) {
  bool in_brackets = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') in_brackets = true;
    if (text[i] == ']') in_brackets = false;
    if (text[i] == ',' && !in_brackets) return i;
  }
  return text.size();
}

// Where the word that begins the text ends; blanks around its "=" are part of it.
size_t word_end(std::string_view text) {
  const size_t key_end = text.find_first_of(std::string(kBlanks) + "=");
  const size_t equals = text.find_first_not_of(kBlanks, key_end);
  if (equals == text.npos || text[equals] != '=') return std::min(key_end, text.size());
  return std::min(text.find_first_of(kBlanks, text.find_first_not_of(kBlanks, equals + 1)),
                  text.size());
}

// "slots=2" and other "key=value" words behind a name; nothing else is ours.
void read_line_word(const Piece& word, std::optional<int>& slots) {
  const size_t equals = word.text.find('=');
  if (equals == word.text.npos || equals == 0) {
    refuse(word, in_quotes(word.text) + " says nothing of a host; write slots=2, or leave it out");
  }
  if (word.sub(0, equals).trimmed().text != "slots")
    return;  // max_slots=, ifname= of other launchers
  if (slots)
    refuse(word, "the number of slots is given twice; leave " + in_quotes(word.text) + " out");
  slots = read_slots(word.sub(equals + 1).trimmed());
}

void read_line(Piece line, std::vector<GivenHost>& hosts) {
  line = line.sub(0, line.text.find('#')).trimmed();
  if (line.text.empty()) return;
  const size_t first_end = std::min(line.text.find_first_of(kBlanks), line.text.size());
  const Piece item = line.sub(0, first_end);
  if (item_end(item.text) < item.text.size()) {
    refuse(item, in_quotes(item.text) + " has a comma; write each host on a line of its own");
  }
  const size_t before = hosts.size();
  read_item(item, hosts);
  std::optional<int> slots = hosts.back().slots;
  for (Piece rest = line.sub(first_end).trimmed(); !rest.text.empty();) {
    const size_t end = word_end(rest.text);
    read_line_word(rest.sub(0, end), slots);
    rest = rest.sub(end).trimmed();
  }
  for (size_t i = before; i < hosts.size(); ++i) hosts[i].slots = slots;
}

[[noreturn]] void refuse_at(const std::string& place, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, place + ": " + message);
}

}  // namespace

std::vector<GivenHost> parse_host_list(std::string_view text) {
  if (text.size() > kHostTextBytesMax) {
    refuse_at("-H", "the list is longer than 1 MiB; write ranges, as in node[1-64]");
  }
  std::vector<GivenHost> hosts;
  const Piece whole{text, 0};
  try {
    if (whole.trimmed().text.empty()) refuse(whole, "the list is empty; write localhost:2");
    for (size_t begin = 0; begin <= text.size();) {
      const size_t length = item_end(text.substr(begin));
      const Piece item = whole.sub(begin, length).trimmed();
      if (item.text.empty()) refuse(item, "a host is missing here; remove the comma");
      read_item(item, hosts);
      begin += length + 1;
    }
  } catch (const Mistake& mistake) {
    refuse_at("-H, column " + std::to_string(mistake.offset + 1), mistake.message);
  }
  return hosts;
}

std::vector<GivenHost> parse_host_file(std::string_view text, std::string_view file_name) {
  const std::string name(file_name);
  if (text.size() > kHostTextBytesMax)
    refuse_at(name,
              "it is longer than 1 MiB; write ranges, as in node[1-64], or name another file");
  std::vector<GivenHost> hosts;
  size_t line_number = 1;
  try {
    size_t begin = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    for (; begin < text.size(); ++line_number) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      read_line({text.substr(begin, end - begin), begin}, hosts);
      begin = end + 1;
    }
  } catch (const Mistake& mistake) {
    refuse_at(name + ":" + std::to_string(line_number), mistake.message);
  }
  if (hosts.empty()) refuse_at(name, "no host is in this file; write lines like localhost slots=2");
  return hosts;
}

}  // namespace hvd
