#include "frontends/verl/read.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/compose/compose.hpp"
#include "frontends/compose/document_store.hpp"
#include "frontends/shell_words.hpp"
#include "frontends/verl/file_kinds.hpp"
#include "frontends/verl/ranges.hpp"
#include "frontends/verl/reward_words.hpp"
#include "units/enums.hpp"

namespace oomplan::verl {
namespace {

using compose::Node;

constexpr std::string_view kRepository = "verl-project/verl";

/// The caller's files first: his own YAML may stand anywhere, and that of verl's repository is known besides.
compose::Files files_of(const Source& source, const std::string& own, Release release) {
  compose::Files files;
  files.read = [&source, own, release](const std::string& path) -> std::optional<std::string> {
    if (path == own) return source.text;
    const std::string known = path_in_repository(path);
    if (!known.empty())
      if (auto text = config_file(known, release)) return text;
    return source.open ? source.open(path) : std::nullopt;
  };
  files.list = [release](const std::string& folder) -> std::optional<std::vector<std::string>> {
    const std::string known = path_in_repository(folder + "/");
    return known.empty() ? std::nullopt : config_folder(known.substr(0, known.size() - 1), release);
  };
  return files;
}

/// Files of this thread that were parsed: every change that is tried composes nearly all of them again.
compose::DocumentStore& documents() {
  constexpr std::size_t kMost = 64;  // of 0.10 a launch composes some forty
  thread_local compose::DocumentStore store(kMost);
  return store;
}

/// Values of verl's own files are the release's defaults.
void mark_defaults(Node& node, const std::string& release) {
  if (node.origin.kind == Origin::Kind::file && !path_in_repository(node.origin.place.file).empty()) {
    node.origin.kind = Origin::Kind::default_;
    node.origin.because = fmt::format("verl {} default", release);
    node.origin.source = fmt::format("{} {}, {}", kRepository, node.origin.place.file, release);
    node.origin.place = {{}, 0, 0, node.origin.place.path};  // a line of data is no place that anybody can edit
  }
  for (Node& item : node.items) mark_defaults(item, release);
  for (auto& entry : node.entries) mark_defaults(entry.value, release);
}

/// The module that would compose a file. Throws InputError: the file is no job.
std::string module_of_file(const Source& source) {
  const auto kind = kind_of_file(source);
  if (!kind) return "verl.trainer.main_ppo";
  if (kind->module.empty())
    throw InputError(Problem{{source.name, 0, 0, {}},
                             std::string(kind->what),
                             "a job: a command or script of verl, or the file that its --config-name names",
                             {},
                             {}});
  return std::string(kind->module);
}

/// Maps whose keys are the user's or an engine's.
bool is_open(const Node& under, std::string_view key) {
  return under.entries.empty() || key.ends_with("kwargs") || key.ends_with("override_config");
}
/// Keys of a file that the release's own lacks: OmegaConf merges them, and nothing of verl's reads them.
void tell_own_keys(const Node& under, const Node& over, const std::string& path, const std::string& release,
                   std::vector<Problem>& out) {
  std::vector<std::string> known;
  for (const auto& entry : under.entries) known.push_back(entry.key);
  for (const auto& entry : over.entries) {
    const std::string key = path.empty() ? entry.key : fmt::format("{}.{}", path, entry.key);
    const Node* below = under.find(entry.key);
    if (below == nullptr) {
      Place place = entry.place;
      place.path = key;
      out.push_back(
          {place, fmt::format("a key that verl {} does not have", release), {}, nearest(entry.key, known), "it does nothing"});
    } else if (below->kind == Node::Kind::map && entry.value.kind == Node::Kind::map && !is_open(*below, entry.key)) {
      tell_own_keys(*below, entry.value, key, release, out);
    }
  }
}

class VerlReader {
 public:
  explicit VerlReader(const Source& source) : source_(source) {
    out_.environment = source.environment;
    if (is_command(source.text)) {
      out_.arguments = read_arguments(shell_words(source.text, source.name), source.name);
    } else {
      file_ = true;
      out_.arguments.module = module_of_file(source);
    }
    for (const std::string& word : source.overrides) out_.arguments.overrides.push_back(word);
  }

  VerlText run() {
    choose_release();
    resolve();
    return std::move(out_);
  }

 private:
  /// "gpus=16" and the like say the machine, in our own words; they are no keys of verl's.
  static bool is_ours(const std::string& override_) { return override_.starts_with("gpus="); }

  compose::Composed compose_in(Release release) const {
    const Arguments& a = out_.arguments;
    const auto entry = entry_row(a.module, release);
    compose::Request request;
    std::string module_folder = a.module.substr(0, a.module.rfind('.'));
    std::replace(module_folder.begin(), module_folder.end(), '.', '/');
    std::string own;
    if (file_) {
      const auto slash = source_.name.rfind('/');
      own = source_.name.ends_with(".yaml") || source_.name.ends_with(".yml") ? source_.name : "stdin.yaml";
      request.folder = slash == std::string::npos ? "" : own.substr(0, slash);
      request.config = own.substr(slash == std::string::npos ? 0 : slash + 1);
      request.config.resize(request.config.rfind('.'));
    } else {
      request.folder = !a.config_path.empty()
                           ? compose::join_path(a.config_path.starts_with('/') ? "" : module_folder, a.config_path)
                       : entry ? entry->folder
                               : module_folder + "/config";
      request.config = !a.config_name.empty() ? a.config_name : entry ? entry->config : std::string();
      for (const std::string_view end : {".yaml", ".yml"})
        if (request.config.ends_with(end)) request.config.resize(request.config.size() - end.size());
    }
    if (!a.config_dir.empty()) request.search.push_back(a.config_dir);
    for (const std::string& word : a.overrides)
      if (!is_ours(word)) request.overrides.push_back(word);
    request.environment = source_.environment;
    request.files = files_of(source_, own, release);
    request.documents = &documents();
    compose::Composed composed = compose::compose(request);
    if (file_ && !(composed.root.entries.empty() && !composed.problems.empty())) put_defaults_under(composed, release);
    return composed;
  }

  /// A file that was composed before (.hydra/config.yaml) or names only what it changes stands over the release's defaults.
  void put_defaults_under(compose::Composed& composed, Release release) const {
    const auto entry = entry_row(out_.arguments.module, release);
    if (!entry || !composed.choices.empty()) return;
    compose::Request request;
    request.folder = entry->folder;
    request.config = entry->config;
    const bool tuned = entry->config == "sft_trainer_engine";
    const Node* strategy = composed.root.at(tuned ? "engine.strategy" : "actor_rollout_ref.actor.strategy");
    if (strategy != nullptr && strategy->kind == Node::Kind::text && strategy->text == "megatron") {
      if (tuned)
        request.overrides = {"engine=megatron", "optim=megatron"};
      else if (release >= release_named("0.8.0"))
        request.overrides.push_back("model_engine=megatron");
      else
        request.config = "ppo_megatron_trainer";
    }
    request.files = files_of(source_, "", release);
    compose::Composed under = compose::compose(request);
    tell_own_keys(under.root, composed.root, "", name_of(release), composed.warnings);
    composed.root = compose::merge_over(std::move(under.root), composed.root, source_.environment, composed.problems);
  }

  void take(compose::Composed composed, Release release) {
    out_.release = release;
    out_.root = std::move(composed.root);
    out_.problems = std::move(composed.problems);
    for (Problem& w : composed.warnings) {
      const Place place = std::exchange(w.place, {});
      out_.notes.push_back({Note::Level::warning, place, to_text(w)});
    }
  }

  void choose_release() {
    const std::string& asked = source_.framework_version;
    const std::vector<std::string> with = releases_with(out_.arguments.module);
    if (!asked.empty()) {
      const auto found = find_release(asked);
      if (!found)
        throw InputError(Problem{{"command line", 0, 0, "--framework-version"},
                                 fmt::format("'{}'", asked),
                                 known_releases(),
                                 {},
                                 "a release of verl",
                                 {}});
      out_.release_stated = true;
      if (!names(asked, *found))
        out_.notes.push_back({Note::Level::warning,
                              {"command line", 0, 0, "--framework-version"},
                              fmt::format("no release of verl known here is called '{}'; read as {}, the last one before it",
                                          asked, name_of(*found))});
      if (!with.empty() && !entry_row(out_.arguments.module, *found))
        throw InputError(Problem{{source_.name, 0, 0, {}},
                                 fmt::format("'{}'", out_.arguments.module),
                                 fmt::format("a module of verl {}", name_of(*found)),
                                 {},
                                 fmt::format("verl has it in {} to {}", with.front(), with.back()),
                                 ProblemKind::refused_by_framework});
      return take(compose_in(*found), *found);
    }
    const Release newest = with.empty() ? newest_release() : release_named(with.back());
    const Release oldest = with.empty() ? Release{0} : release_named(with.front());
    compose::Composed first = compose_in(newest);
    if (first.problems.empty()) return take(std::move(first), newest);
    for (Release older{newest.number - 1}; older >= oldest; --older.number) {
      compose::Composed composed = compose_in(older);
      if (!composed.problems.empty()) continue;
      out_.notes.push_back({Note::Level::info,
                            {source_.name, 0, 0, {}},
                            fmt::format("read as of verl {}, the newest release that takes it; --framework-version says another",
                                        name_of(older))});
      return take(std::move(composed), older);
    }
    take(std::move(first), newest);
  }

  /// What is wrong in verl's own files follows from what was typed; alone it stands at no line that anybody can edit.
  void leave_out_own_files() {
    const auto own = [&](const Problem& p) {
      return !path_in_repository(p.place.file).empty() && p.place.file != source_.name && !source_.text.empty() &&
             config_file(path_in_repository(p.place.file), out_.release);
    };
    const bool all = std::all_of(out_.problems.begin(), out_.problems.end(), own);
    if (!all) std::erase_if(out_.problems, own);
    for (Problem& p : out_.problems)
      if (own(p)) p.place.line = p.place.column = 0;
  }

  /// Verl's own configuration, with the engine's group where one is named. nullopt: the release has no such module.
  std::optional<Node> bare(Release release, bool megatron) const {
    const auto entry = entry_row(out_.arguments.module, release);
    if (!entry) return std::nullopt;
    compose::Request request;
    request.folder = entry->folder;
    request.config = entry->config;
    const bool group = release >= release_named("0.8.0");
    if (megatron && group) request.overrides.push_back("model_engine=megatron");
    if (megatron && !group) request.config = "ppo_megatron_trainer";
    request.files = files_of(source_, "", release);
    compose::Composed composed = compose::compose(request);
    if (!composed.problems.empty()) return std::nullopt;
    return std::move(composed.root);
  }

  /// An unknown key may be one of another engine, or of another release.
  void tell_where_keys_are() {
    std::vector<Problem*> unknown;
    for (Problem& p : out_.problems)
      if (p.found == "an unknown key") unknown.push_back(&p);
    constexpr std::size_t kMost = 20;
    if (unknown.empty() || unknown.size() > kMost) return;
    const auto tell = [&](const std::optional<Node>& root, const std::string& why) {
      for (Problem*& p : unknown)
        if (p != nullptr && root && root->at(p->place.path) != nullptr) {
          p->nearest.clear();
          p->why = why;
          p = nullptr;
        }
    };
    if (out_.arguments.module.starts_with("verl.trainer.main_ppo")) {
      const bool group = out_.release >= release_named("0.8.0");
      tell(bare(out_.release, true),
           fmt::format("verl has it with {}", group ? "model_engine=megatron" : "--config-name=ppo_megatron_trainer"));
      tell(bare(out_.release, false), "verl has it with another engine: FSDP");
    }
    std::vector<Release> others;
    for (Release r{0}; r <= newest_release(); ++r.number)
      if (r != out_.release) others.push_back(r);
    std::vector<std::vector<Release>> having(unknown.size());
    for (const Release r : others)
      if (const auto root = bare(r, false))
        for (std::size_t i = 0; i < unknown.size(); ++i)
          if (unknown[i] != nullptr && root->at(unknown[i]->place.path) != nullptr) having[i].push_back(r);
    for (std::size_t i = 0; i < unknown.size(); ++i)
      if (!having[i].empty())
        unknown[i]->why += fmt::format("; verl {}{} has it", name_of(having[i].front()),
                                       having[i].size() > 1 ? " to " + name_of(having[i].back()) : "");
  }

  void resolve() {
    leave_out_own_files();
    tell_where_keys_are();
    compose::Resolved resolved = compose::resolve(out_.root, source_.environment);
    out_.root = std::move(resolved.root);
    for (auto& p : resolved.problems) out_.problems.push_back(std::move(p));
    leave_out_own_files();
    for (Problem& p : out_.problems) {
      p.kind = ProblemKind::refused_by_framework;
      if (p.place.file.empty()) p.place.file = source_.name;
    }
    mark_defaults(out_.root, name_of(out_.release));
    take_over_reward_words(out_);
    for (Problem& p : bring_into_range(out_.root)) {
      if (p.place.file.empty()) p.place.file = source_.name;
      out_.problems.push_back(std::move(p));
    }
  }

  const Source& source_;
  bool file_ = false;
  VerlText out_;
};

}  // namespace

VerlText read_verl(const Source& source) { return VerlReader(source).run(); }

}  // namespace oomplan::verl
