// Understands a command line with Boost.Program_options. The only file that includes it.
#include <boost/program_options.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "command.hpp"
#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan::cli {
namespace {

namespace po = boost::program_options;

constexpr const char* kPositional = "positional arguments";  // no option can be spelt like this

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(environment(name));
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

TextStyle style_of(std::string_view colour) {
  TextStyle style;
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  const bool plain = !environment("NO_COLOR").empty() || environment("TERM") == "dumb";
  style.colour = colour == "always" || (colour != "never" && terminal && !plain);
  style.unicode = terminal && is_utf8();
  winsize size{};
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    style.width = std::clamp<int>(size.ws_col, 60, 160);
  return style;
}

}  // namespace

Problem unknown(std::string_view what, std::string_view word, const std::vector<std::string>& valid) {
  Problem problem;
  problem.found = std::string(what) + " '" + std::string(word) + "'";
  problem.expected = list_of(valid);
  problem.nearest = nearest(word, valid);
  return problem;
}

std::string_view Call::text(std::string_view option) const {
  const auto found = options.find(option);
  return found == options.end() ? std::string_view{} : std::string_view(found->second);
}

std::int64_t Call::number(std::string_view option, std::int64_t least, std::int64_t most, std::int64_t otherwise) const {
  if (!has(option)) return otherwise;
  const std::string_view given = text(option);
  const Said<std::int64_t> said = read_count(given);  // 16384, or 16k
  if (!said || *said.value < least || *said.value > most) {
    Problem problem;
    problem.place.path = "--" + std::string(option);
    problem.found = "'" + std::string(given) + "'";
    problem.expected = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    throw InputError(problem);
  }
  return *said.value;
}

double Call::share(std::string_view option, double otherwise) const {
  if (!has(option)) return otherwise;
  const auto said = read_number(text(option));
  if (said && *said.value >= 0 && *said.value <= 1) return *said.value;
  Problem problem;
  problem.place.path = "--" + std::string(option);
  problem.found = "'" + std::string(text(option)) + "'";
  problem.expected = "a number from 0 to 1, such as 0.9";
  throw InputError(problem);
}

Call understand(const Command& command, const std::vector<std::string>& arguments) {
  po::options_description visible;
  std::vector<std::string> spellings;
  for (const auto& rows : {command.options, common_options()})
    for (const auto& row : rows) {
      const std::string name(row.name);
      if (row.value.empty())
        visible.add_options()(name.c_str(), "");
      else
        visible.add_options()(name.c_str(), po::value<std::string>(), "");
      spellings.push_back("--" + name);
    }
  po::options_description all;
  all.add(visible).add_options()(kPositional, po::value<std::vector<std::string>>(), "");
  po::positional_options_description positional;
  positional.add(kPositional, -1);

  constexpr std::size_t kMostWords = 10'000;  // Boost takes the square of their number
  if (arguments.size() > kMostWords) {
    Problem problem;
    problem.found = std::to_string(arguments.size()) + " words";
    problem.expected = "at most " + std::to_string(kMostWords) + " on a command line";
    throw InputError(problem);
  }

  Call call;
  std::vector<Problem> problems;
  const auto complain = [&](std::string where, std::string found, std::string expected) {
    Problem problem;
    problem.place.path = std::move(where);
    problem.found = std::move(found);
    problem.expected = std::move(expected);
    problems.push_back(std::move(problem));
  };
  try {
    namespace style = po::command_line_style;
    const auto parsed = po::command_line_parser(arguments)
                            .options(all)
                            .positional(positional)
                            .style(style::allow_long | style::long_allow_adjacent | style::long_allow_next)
                            .allow_unregistered()
                            .run();
    for (const auto& option : parsed.options) {
      if (option.unregistered) {
        const std::string word = option.original_tokens.empty() ? option.string_key : option.original_tokens[0];
        problems.push_back(unknown("option", word.substr(0, word.find('=')), spellings));
      } else if (option.string_key == kPositional) {
        call.positional.insert(call.positional.end(), option.value.begin(), option.value.end());
      } else if (option.string_key == "set" && call.has("set")) {
        call.options.find("set")->second += "\n" + option.value[0];  // the one option that may stand more than once
      } else if (!call.options.emplace(option.string_key, option.value.empty() ? "" : option.value[0]).second) {
        complain("--" + option.string_key, "the option twice", "once");
      }
    }
  } catch (const po::error& error) {  // a missing value, or a value where none belongs
    Problem problem;
    problem.why = error.what();
    problems.push_back(problem);
  }
  if (const auto bar = std::find(arguments.begin(), arguments.end(), "--"); bar != arguments.end())
    call.behind = static_cast<std::size_t>(arguments.end() - bar) - 1;
  for (const auto& word : call.positional)
    if (word.size() > 1 && word[0] == '-' && word.find('=') == std::string::npos && !call.behind)
      problems.push_back(unknown("option", word, spellings));
  call.json = call.has("json");
  const std::vector<std::string> when{"always", "never", "auto"};
  const std::string colour(call.has("color") ? call.text("color") : "auto");
  if (std::find(when.begin(), when.end(), colour) == when.end()) problems.push_back(unknown("--color", colour, when));
  if (call.positional.size() > command.most_positional)
    complain("", "'" + call.positional[command.most_positional] + "'",
             "no more than " + std::to_string(command.most_positional) + " argument(s); see oomplan help " +
                 std::string(command.name));
  if (!problems.empty() && !call.has("help")) throw InputError(problems);
  call.style = style_of(colour);
  return call;
}

}  // namespace oomplan::cli
