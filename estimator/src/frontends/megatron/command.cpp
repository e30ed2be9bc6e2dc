#include "frontends/megatron/command.hpp"
#include "frontends/shell_words.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "frontends/command_length.hpp"
#include "frontends/megatron/flag_table.hpp"
#include "frontends/megatron/model.hpp"
#include "frontends/megatron/settings.hpp"
#include "frontends/native.hpp"
#include "units/json_depth.hpp"

namespace oomplan::megatron {
namespace {

constexpr const char* kRole = "trainer";
constexpr std::int64_t kMostGpus = std::int64_t{1} << 17;

std::optional<std::int64_t> count_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > kMostGpus) return std::nullopt;
  return value;
}

/// What stands in front of Megatron's own flags.
struct Launch {
  std::optional<std::int64_t> per_node, nodes, world;
  bool expandable_segments = false;
  std::size_t first = 0;  ///< of Megatron's words
};

class LaunchReader {
 public:
  LaunchReader(const std::vector<std::string>& words, Complaints& out) : words_(words), told_(out) {}

  Launch run() {
    std::size_t i = 0;
    for (; i < words_.size() && is_variable(words_[i]); ++i) variable(words_[i]);
    const auto script = std::find_if(words_.begin() + static_cast<std::ptrdiff_t>(i), words_.end(), [](const std::string& w) {
      return w.ends_with(".py") && !w.starts_with("-") && w.find('=') == std::string::npos;
    });
    if (script == words_.end()) {
      told_.add("", i < words_.size() ? fmt::format("'{}'", words_[i]) : "no command", "torchrun ... pretrain_gpt.py --flags ...",
                "the script's name shows where Megatron's flags begin");
      throw InputError(told_.problems);
    }
    const std::size_t at = static_cast<std::size_t>(script - words_.begin());
    for (; i < at; ++i) launcher(i);
    check_script(*script);
    out_.first = at + 1;
    return out_;
  }

 private:
  static bool is_variable(std::string_view word) {
    const std::size_t sign = word.find('=');
    return sign != std::string_view::npos && sign > 0 &&
           std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(sign),
                       [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
  }
  void variable(const std::string& word) {
    const std::string name = word.substr(0, word.find('=')), value = word.substr(name.size() + 1);
    if (name == "WORLD_SIZE") out_.world = number(name, value);
    if (name == "PYTORCH_CUDA_ALLOC_CONF" || name == "PYTORCH_ALLOC_CONF")
      out_.expandable_segments = value.find("expandable_segments:True") != std::string::npos;
  }
  std::optional<std::int64_t> number(const std::string& place, const std::string& value) {
    const auto n = count_of(value);
    if (!n) told_.add(place, fmt::format("'{}'", value), "a number of GPUs or nodes", "");
    return n;
  }
  /// torchrun's own options; those that say nothing about the number of GPUs are passed over.
  void launcher(std::size_t& i) {
    std::string name = words_[i].substr(0, words_[i].find('='));
    std::string value = name.size() < words_[i].size() ? words_[i].substr(name.size() + 1) : "";
    const std::string written = name;
    std::replace(name.begin(), name.end(), '_', '-');
    if (name != "--nproc-per-node" && name != "--nnodes") return;
    if (value.empty() && i + 1 < words_.size()) value = words_[++i];
    if (name == "--nnodes") value = value.substr(value.find(':') == std::string::npos ? 0 : value.find(':') + 1);  // 1:4
    if (value == "gpu" || value == "auto") {
      told_.note(Note::Level::warning, written, "taken as 8, the GPUs of a machine");
      value = "8";
    }
    (name == "--nnodes" ? out_.nodes : out_.per_node) = number(written, value);
  }
  void check_script(const std::string& path) {
    const std::string script = path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
    if (script == "pretrain_gpt.py") return;
    if (script.starts_with("pretrain_"))
      told_.add("", script, "pretrain_gpt.py", "not supported yet: Megatron's other scripts");
    else
      told_.note(Note::Level::warning, script, "not Megatron's own pretrain_gpt.py, and read as if it were");
  }

  const std::vector<std::string>& words_;
  Complaints& told_;
  Launch out_;
};

class CommandReader {
 public:
  CommandReader(const Source& source, const Catalog& catalog) : source_(source), catalog_(catalog) {
    told_.file = source.name.empty() ? "command line" : source.name;
  }

  Reading run() {
    take_overrides();
    const Arguments a = arguments();
    const std::int64_t world = world_size();
    const Run r = derive(a, world, Built::by_arguments, told_);
    const std::size_t before = told_.problems.size();
    check(a, r, Built::by_arguments, told_);
    for (std::size_t i = before; i < told_.problems.size(); ++i) told_.problems[i].kind = ProblemKind::refused_by_framework;
    refuse_unsupported(a, r, told_);
    const auto model = model_.empty() ? model_of(a, r, catalog_, told_) : named_model(model_, a, catalog_, told_);
    if (!told_.problems.empty()) throw InputError(told_.problems);
    return job(a, r, world, model);
  }

 private:
  Arguments arguments() {
    const auto begin = source_.text.find_first_not_of(" \t\r\n");
    if (begin != std::string::npos && source_.text[begin] == '{') {
      if (const std::string deep = too_deep(source_.text); !deep.empty())
        throw InputError(Problem{{told_.file, 0, 0, ""}, deep, "a dict of Megatron's arguments", "", ""});
      return read_dict(bounded_json<nlohmann::json>(source_.text), told_);
    }
    const std::vector<std::string> words = shell_words(source_.text, told_.file);
    check_length(words, told_.file);
    launch_ = LaunchReader(words, told_).run();
    return read_words(std::span(words).subspan(launch_.first), told_);
  }

  /// "gpus=64 x H200-141GB" or "gpus=64", "model=...", and settings of the role.
  void take_overrides() {
    for (const auto& text : source_.overrides) {
      const std::size_t sign = text.find('=');
      const std::string key = text.substr(0, sign), value = sign == std::string::npos ? "" : text.substr(sign + 1);
      if (value.empty()) {
        told_.add("", fmt::format("'{}'", text), "key=value, such as gpus=64", "");
      } else if (key == "model") {
        model_ = value;
      } else if (key == "gpus") {
        stated_ = count_of(value.substr(0, value.find(' ')));
        if (const auto x = value.find(" x "); x != std::string::npos) kind_ = value.substr(x + 3);
        if (!stated_) told_.add("gpus", fmt::format("'{}'", value), "a number of GPUs, such as 64", "");
      } else {
        extra_.push_back({key, value, {Origin::Kind::override_, {told_.file, 0, 0, key}, {}, {}}});
      }
    }
  }

  std::int64_t world_size() {
    std::optional<std::int64_t> said = launch_.world;
    if (launch_.per_node) said = *launch_.per_node * launch_.nodes.value_or(1);
    if (said && stated_ && *said != *stated_)
      told_.add("gpus", fmt::format("{}", *stated_), fmt::format("{}, as the command starts", *said),
                "both say the number of GPUs");
    if (!said && !stated_)
      told_.add("", "no number of GPUs", "torchrun's --nproc-per-node and --nnodes, WORLD_SIZE=..., or oomplan's --gpus", "");
    const std::int64_t world = said.value_or(stated_.value_or(1));
    if (world <= kMostGpus) return world;
    told_.add("--nnodes", fmt::format("{} GPUs", world), fmt::format("at most {}", kMostGpus), "");
    return 1;
  }

  Reading job(const Arguments& a, const Run& r, std::int64_t world, const std::shared_ptr<const Architecture>& model) {
    RoleSettings said = settings_of(a, r, kRole, told_);
    NativeText text;
    text.roles = {{RoleKind::trainer, {told_.file, 0, 0, kRole}}};
    const auto put = [&](std::string key, std::string value, std::string place) {
      text.settings.push_back(
          {std::move(key), std::move(value), {Origin::Kind::override_, {told_.file, 0, 0, std::move(place)}, {}, {}}});
    };
    const std::string kind = !kind_.empty() ? kind_ : source_.gpu.empty() ? "H100-80GB" : source_.gpu;
    put("framework", "torch", "");
    put("gpus", fmt::format("{} x {}", world, catalog_.gpu(kind).name), "--gpu");
    if (launch_.per_node) put("gpus_per_node", fmt::format("{}", *launch_.per_node), "--nproc-per-node");
    if (launch_.expandable_segments) put("expandable_segments", "true", "PYTORCH_CUDA_ALLOC_CONF");
    // the batch is the whole job's: micro-batches of a rank follow from it in any layout
    std::erase_if(said.settings, [](const Setting& x) { return x.key.ends_with(".micro_batches"); });
    put("sequences_per_step", fmt::format("{}", r.micro_batches * r.micro_batch * r.data), "--global-batch-size");
    put("model", model_.empty() ? model->name : model_, "");
    text.settings.insert(text.settings.end(), said.settings.begin(), said.settings.end());
    text.settings.insert(text.settings.end(), extra_.begin(), extra_.end());
    const auto rename = [&](Place& place) {
      const auto flag = said.flags.find(place.path);
      if (flag != said.flags.end() && !flag->second.empty()) place.path = flag->second;
    };
    try {
      Reading out = reading_of(std::move(text), told_.file, catalog_, model);
      for (auto& note : out.notes) rename(note.place);
      out.notes.insert(out.notes.begin(), told_.notes.begin(), told_.notes.end());
      return out;
    } catch (InputError& e) {
      std::vector<Problem> problems = e.problems;
      for (auto& p : problems) rename(p.place);
      throw InputError(std::move(problems));
    }
  }

  const Source& source_;
  const Catalog& catalog_;
  Complaints told_;
  Launch launch_;
  std::string model_, kind_;
  std::optional<std::int64_t> stated_;
  std::vector<Setting> extra_;
};

}  // namespace

Reading read_command(const Source& source, const Catalog& catalog) { return CommandReader(source, catalog).run(); }

}  // namespace oomplan::megatron
