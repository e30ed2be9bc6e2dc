#include "input.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>

#include "frontends/dialect.hpp"
#include "frontends/launch/parser.hpp"
#include "frontends/launched.hpp"
#include "frontends/read_file.hpp"
#include "job/limits.hpp"
#include "job/names.hpp"
#include "units/gpus_text.hpp"

namespace oomplan::cli {
namespace {

/// Options that say what a script or a command does not.
constexpr std::array<const char*, 4> kOfLaunch{"gpus", "model", "set", "command"};

/// --set NAME=VALUE over the environment of this program: what the script would see.
std::map<std::string, std::string> environment_of(const Call& call) {
  std::map<std::string, std::string> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (const std::size_t sign = text.find('='); sign != std::string_view::npos && sign > 0)
      out[std::string(text.substr(0, sign))] = text.substr(sign + 1);
  }
  std::vector<Problem> problems;
  std::string_view rest = call.text("set");
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    const std::size_t sign = text.find('=');
    if (sign == std::string_view::npos || !launch::is_name(text.substr(0, sign)))
      problems.push_back({{"", 0, 0, "--set"}, "'" + std::string(text) + "'", "NAME=VALUE", {}, {}});
    else
      out[std::string(text.substr(0, sign))] = text.substr(sign + 1);
  }
  if (!problems.empty()) throw InputError(problems);
  return out;
}

/// What stands beside a script or a command.
void add_options(Source& source, const Call& call) {
  source.gpu = call.text("gpu");
  source.framework_version = call.text("framework-version");
  for (const char* const option : {"gpus", "model"})
    if (call.has(option)) source.overrides.push_back(std::string(option) + "=" + std::string(call.text(option)));
  source.which = call.number("command", 1, 10'000, 0);
}

/// A command behind `--`; what it does not say stands in front.
Source command_of(const Call& call) {
  const auto first = call.positional.end() - static_cast<std::ptrdiff_t>(std::min(*call.behind, call.positional.size()));
  if (first == call.positional.end())
    throw InputError(
        Problem{{"", 0, 0, "--"}, "no command", "oomplan COMMAND -- torchrun ..., or a script, or a job file", {}, {}});
  Source source = command_source({first, call.positional.end()}, environment_of(call), pieces(call.text("config-root")));
  source.overrides.assign(call.positional.begin(), first);
  add_options(source, call);
  return source;
}

/// Words behind a script are its own arguments, but for "~--flag": a flag that its command is to be without.
Source script_of(Source read, const Call& call) {
  const auto is_argument = [](const std::string& word) { return !word.starts_with("~--"); };
  std::vector<std::string> words(call.positional.begin() + 1, call.positional.end());
  const auto taken_out = std::stable_partition(words.begin(), words.end(), is_argument);
  Source source =
      script_source(std::move(read), {words.begin(), taken_out}, environment_of(call), pieces(call.text("config-root")));
  source.overrides.assign(taken_out, words.end());
  add_options(source, call);
  return source;
}

}  // namespace

bool names_script(const Call& call) {
  if (call.positional.empty() || call.positional[0] == "-") return false;
  std::error_code error;
  const std::string& path = call.positional[0];
  if (call.behind && *call.behind >= call.positional.size()) return false;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const Source source = read_file(path);
  return is_script_file(source) || script_carried_by(source);
}

void refuse_without_command(const Call& call) {
  if (is_command(call) || names_script(call) || (!call.positional.empty() && call.positional[0] == "-")) return;
  std::error_code error;
  const bool is_file = !call.positional.empty() && std::filesystem::is_regular_file(call.positional[0], error);
  const bool lacks_gpus = is_file && call.has("gpus") && dialect_of(read_file(call.positional[0])).takes_gpus;
  std::vector<Problem> problems;
  for (const char* const option : kOfLaunch)
    if (call.has(option) && !(option == std::string_view("gpus") && lacks_gpus))
      problems.push_back({{"", 0, 0, std::string("--") + option},
                          "a job file",
                          option == std::string_view("gpus") || option == std::string_view("model")
                              ? "an override behind it, such as gpus=\"64 x H100-80GB\""
                              : "a script or a command",
                          {},
                          "the option is for a command line behind --"});
  if (!problems.empty()) throw InputError(std::move(problems));
}

Source source_as_given(const Call& call) {
  if (is_command(call) && !names_script(call)) return command_of(call);
  const auto& positional = call.positional;
  Problem problem;
  if (positional.empty()) {
    problem.found = "no job file";
    problem.expected = "oomplan COMMAND FILE [key=value ...], or - for standard input";
    throw InputError(problem);
  }
  const std::string& path = positional[0];
  std::error_code error;
  if (path.find('=') != std::string::npos && !std::filesystem::exists(path, error)) {
    problem.found = "'" + path + "' first";
    problem.expected = "the job file before the overrides";
    throw InputError(problem);
  }
  Source source = read_file(path);
  if (is_script_file(source)) return script_of(std::move(source), call);
  if (script_carried_by(source)) {
    source = script_source(std::move(source), {}, environment_of(call), pieces(call.text("config-root")));
    source.overrides.assign(positional.begin() + 1, positional.end());
    add_options(source, call);
    return source;
  }
  source.overrides.assign(positional.begin() + 1, positional.end());
  if (call.has("gpus") && dialect_of(source).takes_gpus) source.overrides.push_back("gpus=" + std::string(call.text("gpus")));
  source.framework_version = call.text("framework-version");
  source.gpu = gpus_of(call, 0).kind;
  source.open = files_beside(path, pieces(call.text("config-root")));
  return source;
}

Source source_of(const Call& call) {
  Source given = source_as_given(call);
  given.host_memory = call.text("host-memory");
  given.sequence_tokens = call.number("sequence-tokens", 1, kTokenLimit.most, 0);
  given.image_size = call.text("image-size");
  given.linear_attention = call.text("linear-attention");
  return is_launch(given) ? resolved(given, *call.catalog) : given;
}

GpusAsked gpus_of(const Call& call, std::int64_t otherwise) {
  GpusAsked out{otherwise, std::string(call.text("gpu"))};
  if (!call.has("gpus")) return out;
  const auto refuse = [&](std::string expected) {
    throw InputError(Problem{{"", 0, 0, "--gpus"}, "'" + std::string(call.text("gpus")) + "'", std::move(expected), {}, {}});
  };
  const GpusSaid said = read_gpus(call.text("gpus"));
  constexpr std::int64_t kMost = std::int64_t{1} << 17;
  if (!said.count || *said.count < 1 || *said.count > kMost)
    refuse("a whole number from 1 to " + std::to_string(kMost) + ", perhaps with a kind: 8 x H100-80GB");
  out.count = *said.count;
  if (said.kind.empty()) return out;
  if (!out.kind.empty() && call.catalog->gpu(out.kind).name != call.catalog->gpu(said.kind).name)
    refuse("the kind that --gpu says, " + out.kind);
  out.kind = said.kind;
  return out;
}

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) out.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return out;
}

Effect effects_of(const Call& call) {
  Effect out = Effect::speed;
  std::vector<Problem> problems;
  for (const auto& word : pieces(call.text("allow"))) {
    const std::optional<Effect> effect = parse<Effect>(word);
    if (!effect)
      problems.push_back(unknown("--allow", word, spellings<Effect>()));
    else
      out = std::max(out, *effect);
  }
  if (!problems.empty()) throw InputError(problems);
  return out;
}

}  // namespace oomplan::cli
