#include "frontends/transformers/read.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "frontends/compose/compose.hpp"
#include "frontends/keys_of_lines.hpp"
#include "frontends/structured/over_defaults.hpp"
#include "frontends/transformers/arguments.hpp"
#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan::transformers {
namespace {

using compose::Node;

/// TRL's newest whose SFT loss is described: 1.6 computes it in chunks.
constexpr std::string_view kDescribed = "trl 1.5.1";

/// Arguments that only one trainer has, the more special ones first.
struct TellingRow {
  std::string_view key, trainer;
};
constexpr std::array<TellingRow, 17> kTelling{{{"num_generations", "grpo"},
                                               {"max_completion_length", "grpo"},
                                               {"desirable_weight", "kto"},
                                               {"center_rewards_coefficient", "reward"},
                                               {"precompute_ref_log_probs", "dpo"},
                                               {"rpo_alpha", "dpo"},
                                               {"ref_model_init_kwargs", "dpo"},
                                               {"max_prompt_length", "dpo"},
                                               {"beta", "dpo"},
                                               {"packing", "sft"},
                                               {"max_seq_length", "sft"},
                                               {"dataset_text_field", "sft"},
                                               {"assistant_only_loss", "sft"},
                                               {"completion_only_loss", "sft"},
                                               {"padding_free", "sft"},
                                               {"max_length", "sft"},
                                               {"block_size", "run_clm"}}};

/// Words in the name of a script.
constexpr std::array<TellingRow, 7> kScripts{{{"run_clm", "run_clm"},
                                              {"grpo", "grpo"},
                                              {"dpo", "dpo"},
                                              {"kto", "kto"},
                                              {"rloo", "rloo"},
                                              {"reward", "reward"},
                                              {"sft", "sft"}}};

/// What an argument of somebody's own script is called where it may change memory.
constexpr std::array<std::string_view, 9> kOfMemory{"lora",   "4bit",      "8bit",       "quant",  "peft",
                                                    "freeze", "flash_att", "seq_length", "max_len"};

std::int64_t number_of(const std::map<std::string, std::string>& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end()) return 0;
  const auto said = read_count(found->second);
  return said && *said.value <= 131072 ? *said.value : 0;
}

/// "gpus=8", "gpus=8 x A100-80GB": so many.
std::int64_t gpus_of(const std::string& word) {
  const std::string text = word.substr(5, word.find(' ') == std::string::npos ? std::string::npos : word.find(' ') - 5);
  const auto said = read_count(text);
  return said && *said.value <= 131072 ? *said.value : 0;
}

class Reader {
 public:
  explicit Reader(const Source& source) : source_(source) {}

  HfText run() {
    split_words();
    read_file();
    choose_trainer();
    choose_release();
    take_words();
    out_.launcher = read_launcher(launcher_words_, source_.open);
    for (Problem& p : out_.launcher.problems) out_.problems.push_back(std::move(p));
    put_over_defaults();
    open_files();
    find_world();
    return std::move(out_);
  }

 private:
  void split_words() {
    out_.gpu = source_.gpu;
    launcher_words_ = source_.arguments;
    for (const std::string& word : source_.overrides) {
      if (word.starts_with("gpus="))
        asked_ = gpus_of(word);
      else if (word.starts_with("trainer="))
        stated_trainer_ = word.substr(8);
      else
        words_.push_back(word);
    }
  }

  void read_file() {
    out_.given.kind = Node::Kind::map;
    out_.has_file = !source_.text.empty();
    if (!out_.has_file) return;
    compose::Composed read = compose::load_with_dotlist(source_.text, source_.name, {}, source_.environment);
    for (Problem& p : read.problems) out_.problems.push_back(std::move(p));
    if (read.root.entries.empty() && !out_.problems.empty()) throw InputError(std::move(out_.problems));  // no YAML
    for (auto& entry : read.root.entries) {
      if (entry.key == "trainer" && entry.value.kind == Node::Kind::text)
        stated_trainer_ = entry.value.text;
      else if (entry.key != "env" && !entry.key.starts_with('_'))  // TRL's variables, to_dict's own
        out_.given.entries.push_back(std::move(entry));
    }
  }

  // ---- who trains

  std::vector<std::string> keys() const {
    std::vector<std::string> out;
    for (const auto& entry : out_.given.entries) out.push_back(entry.key);
    for (const std::string& word : words_) {
      std::string key = word.substr(0, word.find('='));
      if (!key.starts_with("--") && word.find('=') == std::string::npos) continue;
      while (key.starts_with('-')) key.erase(0, 1);
      std::replace(key.begin(), key.end(), '-', '_');
      out.push_back(std::move(key));
    }
    return out;
  }

  void choose_trainer() {
    out_.trainer = find_trainer(trainer_name());
    if (out_.trainer != nullptr) return;
    throw InputError(Problem{{source_.name, 0, 0, "trainer"}, fmt::format("'{}'", trainer_name()), trainers_text(), {}, {}});
  }
  std::string trainer_name() {
    const auto& words = source_.arguments;
    for (std::size_t i = 0; i + 1 < words.size(); ++i) {
      const std::string name = words[i].substr(words[i].rfind('/') == std::string::npos ? 0 : words[i].rfind('/') + 1);
      if (name != "trl") continue;
      out_.cli = true;
      return words[i + 1];
    }
    if (!stated_trainer_.empty()) return stated_trainer_;
    if (!words.empty()) {
      const std::string script =
          words.back().substr(words.back().rfind('/') == std::string::npos ? 0 : words.back().rfind('/') + 1);
      for (const TellingRow& row : kScripts)
        if (script.find(row.key) != std::string::npos) return std::string(row.trainer);
    }
    const std::vector<std::string> all = keys();
    for (const TellingRow& row : kTelling)
      if (std::find(all.begin(), all.end(), row.key) != all.end()) return std::string(row.trainer);
    return "hf";
  }

  /// Without one the newest that takes most of the arguments.
  void choose_release() {
    if (!source_.framework_version.empty()) {
      const auto found = find_release(source_.framework_version);
      if (!found)
        throw InputError(Problem{{"command line", 0, 0, "--framework-version"},
                                 fmt::format("'{}'", source_.framework_version),
                                 releases_text(),
                                 {},
                                 {}});
      out_.release = *found;
      out_.release_stated = true;
      return;
    }
    const std::size_t first = out_.trl() ? find_release(kDescribed)->index : count_of_releases() - 1;
    std::size_t best = first, least = unread_in(first);
    for (std::size_t i = first; i-- > 0 && least > 0;) try_release(i, best, least);
    for (std::size_t i = first + 1; i < count_of_releases() && least > 0; ++i) try_release(i, best, least);
    out_.release = {best};
    if (best == first) return;
    const Classes classes(out_.release, *out_.trainer);
    out_.notes.push_back(
        {Note::Level::info,
         {},
         fmt::format("{} is taken, which takes these arguments; --framework-version says which runs", classes.reader())});
  }
  void try_release(std::size_t i, std::size_t& best, std::size_t& least) const {
    const std::size_t here = unread_in(i);
    if (here < least) best = i, least = here;
  }
  std::size_t unread_in(std::size_t i) const {
    if (!has_trainer(Release{i}, *out_.trainer)) return 100000;
    const Classes classes(Release{i}, *out_.trainer);
    const Arguments read = read_arguments(words_, classes, std::string(out_.trainer->name));
    std::size_t out = read.problems.size() + read.others.size();
    for (const auto& entry : out_.given.entries) out += classes.field(entry.key) == nullptr ? 1 : 0;
    return out;
  }

  // ---- words

  void take_words() {
    const Classes classes(out_.release, *out_.trainer);
    Arguments read = read_arguments(words_, classes, std::string(out_.trainer->name));
    for (Problem& p : read.problems) out_.problems.push_back(std::move(p));
    hand_on_keys(classes);
    for (OtherFlag& other : read.others) take_other(other, classes);
    for (auto& entry : read.given.entries) {
      if (Node* there = out_.given.find(entry.key))
        *there = std::move(entry.value);
      else
        out_.given.entries.push_back(std::move(entry));
    }
  }
  /// Keys of TRL's file that are accelerate's.
  void hand_on_keys(const Classes& classes) {
    std::erase_if(out_.given.entries, [&](const compose::Entry& entry) {
      if (classes.field(entry.key) != nullptr || !is_accelerate_flag(entry.key) || entry.value.is_container()) return false;
      if (launcher_words_.empty()) launcher_words_ = {"accelerate", "launch"};
      launcher_words_.push_back(fmt::format("--{}={}", entry.key, compose::python_text(entry.value)));
      return true;
    });
  }
  void take_other(const OtherFlag& other, const Classes& classes) {
    std::string key = other.name;
    while (key.starts_with('-')) key.erase(0, 1);
    std::replace(key.begin(), key.end(), '-', '_');
    if (key == "local_rank") return;
    if (out_.cli && is_accelerate_flag(key)) {
      launcher_words_.push_back(other.values.empty() ? other.name : other.name + "=" + other.values.front());
      return;
    }
    unknown(key, {"command line", 0, 0, other.name}, classes);
  }

  /// TRL's own script takes no other arguments; somebody's own may.
  void unknown(const std::string& key, Place place, const Classes& classes) {
    structured::Unknown read = classes.unknown(out_.trainer->name, key);
    if (out_.cli || !read.maybe_own || (out_.has_file && source_.arguments.empty() && !read.nearest.empty())) {
      out_.problems.push_back({std::move(place), "an unknown argument", {}, std::move(read.nearest), std::move(read.why)});
      return;
    }
    const bool of_memory = std::any_of(kOfMemory.begin(), kOfMemory.end(),
                                       [&](std::string_view word) { return key.find(word) != std::string::npos; });
    if (of_memory)
      out_.problems.push_back({std::move(place),
                               "an argument of the script's own",
                               {},
                               read.nearest,
                               "not supported yet: what it does is not known, and it may change memory",
                               ProblemKind::not_supported});
    else
      out_.notes.push_back({Note::Level::info, std::move(place), "an argument of the script's own, taken to change no memory"});
  }

  void put_over_defaults() {
    const Classes classes(out_.release, *out_.trainer);
    structured::ClassTable table(std::make_unique<Classes>(out_.release, *out_.trainer));
    structured::OverDefaults merged = structured::over_defaults(table, out_.trainer->name, out_.given, false);
    for (Problem& p : merged.problems)
      if (p.found != "an unknown key") out_.problems.push_back(std::move(p));
    out_.root = std::move(merged.root);
    for (const auto& entry : out_.given.entries) {
      if (classes.field(entry.key) != nullptr) continue;
      Place place = entry.value.origin.place.line > 0 ? entry.value.origin.place : entry.place;
      place.path = entry.key;
      unknown(entry.key, std::move(place), classes);
    }
    put("accelerate", out_.launcher.settings);
  }
  void put(const std::string& key, Node value) {
    if (Node* there = out_.root.find(key))
      *there = std::move(value);
    else
      out_.root.entries.push_back({key, Node::Kind::text, value.origin.place, std::move(value)});
  }

  // ---- files that arguments name

  void open_files() {
    for (const char* key : {"deepspeed", "fsdp_config"}) open_file(key, out_.root.find(key));
    Node* there = out_.root.find("deepspeed");
    const Node* named = out_.root.at("accelerate.deepspeed_config.deepspeed_config_file");
    if (named == nullptr || (there != nullptr && there->kind == Node::Kind::map)) return;
    put("deepspeed", *named);
    open_file("deepspeed", out_.root.find("deepspeed"));
  }
  void open_file(const std::string& key, Node* n) {
    if (n == nullptr || n->kind != Node::Kind::text || n->text.empty()) return;
    const std::string path = n->text;
    Place place = n->origin.place;
    place.path = key;
    const std::optional<std::string> text = source_.open ? source_.open(path) : std::nullopt;
    if (!text) {
      out_.problems.push_back({place, fmt::format("no file {}", path), "the file that it names", {}, {}});
      n->kind = Node::Kind::null;
      return;
    }
    compose::Composed read = compose::load_with_dotlist(*text, path, {}, source_.environment);
    for (Problem& p : read.problems) out_.problems.push_back(std::move(p));
    *n = std::move(read.root);
  }

  // ---- processes

  /// torchrun and its like start a process for every GPU; python alone starts one. A file by itself is started by one of them
  /// where it has several GPUs.
  void find_world() {
    World& w = out_.world;
    const Launcher& l = out_.launcher;
    w.distributed = source_.arguments.empty() || l.kind != LauncherKind::none;
    w.nodes = std::max<std::int64_t>(1, l.nodes > 0 ? l.nodes : number_of(source_.environment, "OOMPLAN_STATED_NODES"));
    w.per_node = l.per_node > 0 ? l.per_node : number_of(source_.environment, "OOMPLAN_STATED_GPUS_PER_NODE");
    if (l.processes > 0) w.per_node = std::max<std::int64_t>(1, l.processes / w.nodes);
    w.place = l.place;
    if (one_process(l)) w.nodes = w.per_node = 1;
    if (asked_ == 0) return;
    if (one_process(l) && asked_ > 1) w.distributed = false;
    if (w.nodes <= 1 || asked_ % w.nodes != 0) w.nodes = std::max<std::int64_t>(1, asked_ / 8);
    w.per_node = asked_ / w.nodes;
    if (w.nodes * w.per_node != asked_) w.nodes = 1, w.per_node = asked_;
    w.place = {"command line", 0, 0, "--gpus"};
  }
  /// accelerate's distributed_type NO.
  bool one_process(const Launcher& l) const {
    const Node* type = l.settings.find("distributed_type");
    return type != nullptr && (type->kind == Node::Kind::boolean || type->text == "NO");
  }

  const Source& source_;
  HfText out_;
  std::vector<std::string> words_, launcher_words_;
  std::string stated_trainer_;
  std::int64_t asked_ = 0;
};

}  // namespace

std::vector<std::string> keys_of_json(std::string_view text) {
  std::vector<std::string> out;
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return out;
  int depth = 0;
  for (std::size_t at = begin; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != '"') continue;
    std::size_t end = at + 1;
    while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
    const std::size_t next = text.find_first_not_of(" \t\r\n", std::min(end + 1, text.size()));
    if (depth == 1 && end < text.size() && next != std::string_view::npos && text[next] == ':')
      out.emplace_back(text.substr(at + 1, end - at - 1));
    at = end;
  }
  return out;
}

bool is_arguments(const std::vector<std::string>& keys) {
  const auto has = [&](std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  for (const std::string_view other :
       {"oomplan", "finetuning_type", "base_model", "stage", "actor", "rollout", "compute_environment"})
    if (has(other)) return false;
  constexpr std::array<std::string_view, 12> kOwn{"per_device_train_batch_size",
                                                  "gradient_accumulation_steps",
                                                  "gradient_checkpointing",
                                                  "learning_rate",
                                                  "output_dir",
                                                  "num_train_epochs",
                                                  "max_steps",
                                                  "bf16",
                                                  "use_peft",
                                                  "lr_scheduler_type",
                                                  "per_device_eval_batch_size",
                                                  "dataset_name"};
  const auto count = std::count_if(kOwn.begin(), kOwn.end(), has);
  return has("model_name_or_path") ? count >= 1 : has("per_device_train_batch_size") && count >= 3;
}

HfText read_arguments_of(const Source& source) { return Reader(source).run(); }

}  // namespace oomplan::transformers
