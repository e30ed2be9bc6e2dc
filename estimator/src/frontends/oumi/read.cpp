#include "frontends/oumi/read.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include <fmt/format.h>

#include "frontends/compose/compose.hpp"
#include "frontends/keys_of_lines.hpp"
#include "frontends/oumi/escapes.hpp"
#include "frontends/structured/over_defaults.hpp"
#include "units/sizes.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

/// Keys at the left edge, and what a file with one of them is.
struct KindRow {
  std::string_view key;
  FileKind kind;
};
constexpr std::array<KindRow, 9> kKinds{{{"training", FileKind::training},
                                         {"peft", FileKind::training},
                                         {"fsdp", FileKind::training},
                                         {"deepspeed", FileKind::training},
                                         {"tasks", FileKind::evaluation},
                                         {"judge_params", FileKind::judge},
                                         {"strategy_params", FileKind::synthesis},
                                         {"engine", FileKind::inference},
                                         {"generation", FileKind::inference}}};

void unescape(Node& n) {
  n.text = unescaped(std::move(n.text));
  if (n.kind == Node::Kind::interpolation) n.kind = Node::Kind::text;
  for (Node& item : n.items) unescape(item);
  for (auto& entry : n.entries) unescape(entry.value);
}

std::int64_t number_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end()) return 0;
  const auto said = read_count(found->second);
  return said && *said.value <= 4096 ? *said.value : 0;
}

/// "gpus=8", "gpus=8 x A100-80GB": so many.
std::int64_t gpus_asked(const Source& source) {
  std::int64_t out = 0;
  for (const std::string& word : source.overrides)
    if (word.starts_with("gpus=")) {
      const std::string text = word.substr(5, word.find(' ') == std::string::npos ? std::string::npos : word.find(' ') - 5);
      if (const auto said = read_count(text); said && *said.value <= 131072) out = *said.value;
    }
  return out;
}

class FileReader {
 public:
  explicit FileReader(const Source& source) : source_(source) {}

  OumiText run() {
    choose_release();
    compose_file();
    find_world();
    const auto kind = kind_of(keys_of_lines(source_.text), source_.text);
    out_.kind = kind.value_or(FileKind::training);
    // what a file by itself is for is started by itself, but for training
    if (source_.arguments.empty() && out_.kind != FileKind::training) out_.world.distributed = false;
    put_over_defaults();
    return std::move(out_);
  }

 private:
  void choose_release() {
    out_.release = newest_release();
    if (source_.framework_version.empty()) return;
    const auto found = find_release(source_.framework_version);
    if (!found)
      throw InputError(Problem{{"command line", 0, 0, "--framework-version"},
                               fmt::format("'{}'", source_.framework_version),
                               releases_text(),
                               {},
                               "a release of Oumi"});
    out_.release = *found;
    out_.release_stated = true;
  }

  void compose_file() {
    std::vector<std::string> arguments;
    for (const std::string& word : source_.overrides)
      if (!word.starts_with("gpus=")) arguments.push_back(word.starts_with("--") ? word.substr(2) : word);
    compose::Composed composed = compose::load_with_dotlist(escaped(source_.text), source_.name, arguments, source_.environment);
    for (Problem& p : composed.problems) out_.problems.push_back(std::move(p));
    for (const Problem& w : composed.warnings) out_.notes.push_back({Note::Level::warning, w.place, to_text(w)});
    if (composed.root.entries.empty() && !out_.problems.empty()) throw InputError(std::move(out_.problems));  // no YAML
    out_.given = std::move(composed.root);
    unescape(out_.given);
  }

  /// `oumi distributed` starts as many processes as there are GPUs (src/oumi/cli/distributed_run.py), told by the cluster's
  /// variables.
  void find_world() {
    out_.gpu = source_.gpu;
    World& w = out_.world;
    const auto& e = source_.environment;
    launcher();
    w.nodes = std::max<std::int64_t>(1, number_of(e, "SKYPILOT_NUM_NODES"));
    w.per_node = number_of(e, "SKYPILOT_NUM_GPUS_PER_NODE");
    if (stated_nodes_ > 0) w.nodes = stated_nodes_;
    if (stated_gpus_ > 0) w.per_node = stated_gpus_;
    const std::int64_t asked = gpus_asked(source_);
    if (asked == 0) return;
    w.nodes = std::max<std::int64_t>(1, asked / 8);
    w.per_node = asked / w.nodes;
    if (w.nodes * w.per_node != asked) w.nodes = 1, w.per_node = asked;
    w.place = w.nodes_place = {"command line", 0, 0, "--gpus"};
  }

  /// Words in front of Oumi's own: `oumi distributed torchrun`, torchrun or accelerate with their flags. A file by itself is
  /// started by one of them where it has several GPUs.
  void launcher() {
    World& w = out_.world;
    w.distributed = source_.arguments.empty();
    const auto value = [&](std::size_t& i, std::string_view flag) -> std::int64_t {
      std::string word = source_.arguments[i];
      std::replace(word.begin(), word.end(), '_', '-');
      const auto equals = word.find('=');
      if (word.substr(0, equals) != flag) return 0;
      const std::string text = equals != std::string::npos        ? word.substr(equals + 1)
                               : i + 1 < source_.arguments.size() ? source_.arguments[i + 1]
                                                                  : "";
      const auto said = read_count(text);
      return said && *said.value <= 4096 ? *said.value : 0;
    };
    std::int64_t processes = 0;
    for (std::size_t i = 0; i < source_.arguments.size(); ++i) {
      const std::string& word = source_.arguments[i];
      if (word == "torchrun" || word == "accelerate" || word == "distributed" || word == "torch.distributed.run")
        w.distributed = true;
      stated_nodes_ = std::max(stated_nodes_, value(i, "--nnodes"));
      stated_gpus_ = std::max(stated_gpus_, value(i, "--nproc-per-node"));
      processes = std::max(processes, value(i, "--num-processes"));
    }
    if (processes > 0 && stated_gpus_ == 0) stated_gpus_ = processes / std::max<std::int64_t>(1, stated_nodes_);
  }

  void put_over_defaults() {
    structured::ClassTable classes(std::make_unique<Classes>(out_.release));
    structured::OverDefaults merged = structured::over_defaults(classes, class_of(out_.kind), out_.given, true);
    for (Problem& p : merged.problems) out_.problems.push_back(std::move(p));
    out_.root = std::move(merged.root);
  }

  const Source& source_;
  OumiText out_;
  std::int64_t stated_nodes_ = 0, stated_gpus_ = 0;
};

}  // namespace

std::string_view inference_path(FileKind kind) {
  return kind == FileKind::judge || kind == FileKind::synthesis ? "inference_config." : "";
}

std::string_view class_of(FileKind kind) {
  constexpr std::string_view kNames[] = {"TrainingConfig", "InferenceConfig", "EvaluationConfig", "JudgeConfig",
                                         "SynthesisConfig"};
  return kNames[static_cast<int>(kind)];
}

std::optional<FileKind> kind_of(const std::vector<std::string>& keys, std::string_view text) {
  const auto has = [&](std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (has("oomplan")) return std::nullopt;
  const bool named = text.find("  model_name:") != std::string_view::npos;
  if (has("tuning")) return std::nullopt;  // `oumi tune` starts many
  if (has("judge_params")) return FileKind::judge;
  if (has("strategy_params") && has("strategy")) return FileKind::synthesis;
  if (has("training") && (named || text.find("trainer_type:") != std::string_view::npos)) return FileKind::training;
  if (!has("model") || !named) return std::nullopt;
  for (const KindRow& row : kKinds)
    if (has(row.key)) return row.kind;
  if (has("data")) return FileKind::training;
  return keys.size() == 1 ? std::optional(FileKind::inference) : std::nullopt;
}

OumiText read_oumi(const Source& source) { return FileReader(source).run(); }

}  // namespace oomplan::oumi
