#include "frontends/verl/file_kinds.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "frontends/keys_of_lines.hpp"

namespace oomplan::verl {
namespace {

constexpr FileKind kPpo{"verl.trainer.main_ppo", {}};
constexpr FileKind kSft{"verl.trainer.sft_trainer", {}};
constexpr FileKind kFsdpSft{"verl.trainer.fsdp_sft_trainer", {}};
constexpr FileKind kGeneration{{}, "a configuration of verl.trainer.main_generation, which oomplan does not read yet"};
constexpr FileKind kEvaluation{{}, "a configuration of verl.trainer.main_eval, which uses no GPU"};
constexpr FileKind kPart{{}, "a file of one of verl's config groups: a part of a job"};

/// All keys at the left edge, and the text anywhere.
struct Row {
  FileKind kind;
  std::array<std::string_view, 4> keys;
  std::string_view text;
};
// verl/trainer/config/*.yaml of 0.3.0 to 1dda039b, and what Hydra composes of them. The first that is met counts.
constexpr std::array<Row, 11> kRows{{
    {kPpo, {"actor_rollout_ref"}, {}},
    {kPpo, {"defaults"}, "ppo_trainer"},
    {kPpo, {"defaults"}, "ppo_megatron_trainer"},
    {kSft, {"defaults"}, "sft_trainer_engine"},
    {kSft, {"defaults", "trainer"}, "engine@engine"},
    {kFsdpSft, {"defaults"}, "sft_trainer"},
    {kSft, {"engine", "optim", "data", "trainer"}, {}},
    {kFsdpSft, {"ulysses_sequence_parallel_size", "model", "data", "trainer"}, {}},
    {kGeneration, {"rollout", "model", "data", "trainer"}, "ray_"},
    {kEvaluation, {"data", "custom_reward_function"}, {}},
    {kPart, {}, "_target_: verl."},
}};

/// "pkg://verl.trainer.config/x.yaml": "verl/trainer/config/x.yaml"; other paths are theirs.
std::string of_package(std::string path) {
  constexpr std::string_view kPackage = "pkg://";
  if (!path.starts_with(kPackage)) return path;
  path.erase(0, kPackage.size());
  const auto end = std::min(path.find('/'), path.size());
  std::replace(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(end), '.', '/');
  return path;
}

/// "verl/trainer/config/actor/actor.yaml", but not a file of the folder itself.
bool is_in_group(const std::string& path) {
  constexpr std::string_view kFolder = "verl/trainer/config/";
  return path.starts_with(kFolder) && path.find('/', kFolder.size()) != std::string::npos;
}

}  // namespace

std::string path_in_repository(const std::string& given) {
  std::string path = of_package(given);
  for (const std::string_view top : {"verl/trainer/config/", "verl/experimental/", "recipe/"}) {
    if (path.starts_with(top)) return path;
    const auto at = path.find(fmt::format("/{}", top));
    if (at != std::string::npos) return path.substr(at + 1);
  }
  return {};
}

std::optional<FileKind> kind_of_file(const Source& source) {
  if (is_in_group(path_in_repository(source.name))) return kPart;
  const std::vector<std::string> keys = keys_of_lines(source.text);
  const auto has = [&](std::string_view key) { return key.empty() || std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (keys.empty() || std::find(keys.begin(), keys.end(), "oomplan") != keys.end()) return std::nullopt;
  for (const Row& row : kRows)
    if (std::all_of(row.keys.begin(), row.keys.end(), has) && source.text.find(row.text) != std::string::npos) return row.kind;
  return std::nullopt;
}

}  // namespace oomplan::verl
