#include "frontends/oumi/launched.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace oomplan::oumi {
namespace {

using launch::EntryPoint;
using Kind = launch::Entry::Kind;

/// oumi-ai/oumi d8ed0777: src/oumi/cli/main.py; flags of a judge in src/oumi/cli/judge.py.
constexpr std::array kPrograms{
    EntryPoint{Kind::program, "oumi", "train", "Oumi", "its trainer", "oumi"},
    EntryPoint{Kind::module, "oumi", "train", "Oumi", "its trainer", "oumi"},
    EntryPoint{Kind::module, "oumi.train", "", "Oumi", "its trainer", "oumi"},
    EntryPoint{Kind::program, "oumi", "infer", "Oumi", "its inference", "oumi", false},
    EntryPoint{Kind::module, "oumi", "infer", "Oumi", "its inference", "oumi", false},
    EntryPoint{Kind::program, "oumi", "evaluate", "Oumi", "its evaluation", "oumi", false},
    EntryPoint{Kind::module, "oumi", "evaluate", "Oumi", "its evaluation", "oumi", false},
    EntryPoint{Kind::program, "oumi", "eval", "Oumi", "its evaluation", "oumi", false},
    EntryPoint{Kind::module, "oumi", "eval", "Oumi", "its evaluation", "oumi", false},
    EntryPoint{Kind::program, "oumi", "judge", "Oumi", "its judge", "oumi", false},
    EntryPoint{Kind::module, "oumi", "judge", "Oumi", "its judge", "oumi", false},
    EntryPoint{Kind::program, "oumi", "synth", "Oumi", "its synthesis", "oumi", false},
    EntryPoint{Kind::module, "oumi", "synth", "Oumi", "its synthesis", "oumi", false},
    EntryPoint{Kind::program, "oumi", "synthesize", "Oumi", "its synthesis", "oumi", false},
    EntryPoint{Kind::module, "oumi", "synthesize", "Oumi", "its synthesis", "oumi", false},
};

/// A file of Oumi's repository: "oumi://configs/...".
constexpr std::string_view kRepository = "oumi://";

struct Words {
  std::string file;
  std::vector<std::string> overrides;  ///< "training.run_name=x"
};

/// src/oumi/cli/cli_utils.py, parse_extra_cli_args: "--key value" and "--key=value".
Words words_of_command(Handing& handing) {
  const auto& all = handing.words();
  Words out;
  std::size_t i = std::min(handing.first_argument(), all.size());
  const bool judges = i < all.size() && all[i] == "judge";
  if (judges && i + 1 < all.size() && !all[i + 1].starts_with('-')) ++i;  // dataset, conversations
  const auto value_behind = [&](const std::string& flag) {
    if (++i >= all.size()) handing.fail(fmt::format("{} without a value", flag), "a value behind it", {});
    return all[i];
  };
  for (; i < all.size(); ++i) {
    const std::string& word = all[i];
    const auto equals = word.find('=');
    const std::string flag = word.substr(0, equals);
    if (flag == "-c" || flag == "--config") {
      out.file = equals == std::string::npos ? value_behind(flag) : word.substr(equals + 1);
    } else if (flag.starts_with("--local-rank") || flag.starts_with("--local_rank")) {
      continue;  // _CLI_IGNORED_PREFIXES
    } else if (flag == "-v" || flag == "--verbose" || flag == "-i" || flag == "--interactive") {
      continue;
    } else if (judges && (flag == "--raw" || flag == "--display-raw-output")) {
      continue;
    } else if (judges && (flag == "--input" || flag == "--output")) {
      if (equals == std::string::npos) value_behind(flag);
    } else if (flag == "--log-level" || flag == "-log") {
      value_behind(flag);
    } else if (flag.starts_with("--")) {
      const std::string value = equals == std::string::npos ? value_behind(flag) : word.substr(equals + 1);
      out.overrides.push_back(fmt::format("{}={}", flag.substr(2), value));
    } else if (!out.file.empty() || word.starts_with('-')) {
      handing.fail(fmt::format("'{}'", word), "-c FILE and --key value", "oumi takes no such argument");
    }
  }
  return out;
}

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

Source take(Handing& handing) {
  Words said = words_of_command(handing);
  if (said.file.empty()) handing.fail("no -c", "-c FILE, which Oumi reads its configuration from", {});
  const std::string path = said.file.starts_with(kRepository) ? said.file.substr(kRepository.size()) : said.file;
  std::optional<std::string> text = handing.text_of(path);
  const std::string& job = handing.place().file;  // a file beside it, wherever the job is read from
  const auto slash = job.rfind('/');
  if (!text && slash != std::string::npos && path.front() != '/') text = handing.text_of(job.substr(0, slash + 1) + path);
  if (!text)
    handing.fail(fmt::format("no file {}", said.file), "the file that -c names",
                 said.file.starts_with(kRepository) ? "give the folder of Oumi's repository with --config-root" : "");
  Source out = handing.asked();
  out.text = std::move(*text);
  out.name = path;
  out.overrides.insert(out.overrides.begin(), said.overrides.begin(), said.overrides.end());
  const auto& all = handing.words();
  out.arguments.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(handing.first_argument(), all.size())));
  const launch::Launch& launch = handing.launch();
  if (!handing.states_gpus() && launch.gpus_per_node)
    out.environment["SKYPILOT_NUM_GPUS_PER_NODE"] = fmt::format("{}", launch.gpus_per_node->value);
  if (!handing.states_gpus() && launch.nodes) out.environment["SKYPILOT_NUM_NODES"] = fmt::format("{}", launch.nodes->value);
  out.dialect = "oumi";
  return out;
}

}  // namespace oomplan::oumi
