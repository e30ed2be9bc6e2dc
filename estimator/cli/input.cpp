#include "input.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "frontends/megatron/command.hpp"
#include "frontends/read_file.hpp"
#include "job/names.hpp"
#include "units/gpus_text.hpp"

namespace oomplan::cli {
namespace {

/// A framework's own command line; what it does not say stands in front of the `--`.
Source command_of(const Call& call) {
  const auto first = call.positional.end() - static_cast<std::ptrdiff_t>(std::min(*call.behind, call.positional.size()));
  Source source;
  source.name = "command line";
  source.dialect = "megatron";
  source.text = megatron::shell_text({first, call.positional.end()});
  source.gpu = call.text("gpu");
  source.overrides.assign(call.positional.begin(), first);
  for (const char* const option : {"gpus", "model"})
    if (call.has(option)) source.overrides.push_back(std::string(option) + "=" + std::string(call.text(option)));
  return source;
}

}  // namespace

void refuse_without_command(const Call& call) {
  std::vector<Problem> problems;
  for (const char* const option : {"gpus", "model"})
    if (call.has(option))
      problems.push_back({{"", 0, 0, std::string("--") + option},
                          "a job file",
                          "an override behind it, such as gpus=\"64 x H100-80GB\"",
                          {},
                          "the option is for a command line behind --"});
  if (!problems.empty()) throw InputError(std::move(problems));
}

Source source_of(const Call& call) {
  if (is_command(call)) return command_of(call);
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
  source.overrides.assign(positional.begin() + 1, positional.end());
  source.framework_version = call.text("framework-version");
  source.gpu = gpus_of(call, 0).kind;
  source.open = files_beside(path, pieces(call.text("config-root")));
  return source;
}

GpusAsked gpus_of(const Call& call, std::int64_t otherwise) {
  GpusAsked out{otherwise, std::string(call.text("gpu"))};
  if (!call.has("gpus")) return out;
  const auto refuse = [&](std::string expected) {
    throw InputError(
        Problem{{"", 0, 0, "--gpus"}, "'" + std::string(call.text("gpus")) + "'", std::move(expected), {}, {}});
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
