#include "frontends/areal/areal.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/areal/devices.hpp"
#include "frontends/areal/remarks.hpp"
#include "frontends/compose/compose.hpp"
#include "frontends/structured/over_defaults.hpp"

namespace oomplan::areal {
namespace {

using compose::Node;

constexpr std::string_view kDefaultGpu = "H100-80GB";

class FileReader {
 public:
  FileReader(const Source& source, ReadingStore& store) : source_(source), store_(store) {}

  ArealText run() {
    compose_file();
    if (composed_.entries.empty() && !problems_.empty()) throw InputError(std::move(problems_));
    choose_release();
    choose_class();
    put_over_defaults();
    out_.meaning =
        realhf_ ? realhf_meaning_of(out_.root, out_.release) : meaning_of(out_.root, out_.release, source_.name, servers_alone_);
    for (const auto& note : out_.meaning.notes) out_.notes.push_back(note);
    NativeText native = job_of(out_.meaning, out_.root, surroundings(), out_.notes);
    prefer_refusals(native.problems);
    std::erase_if(native.problems, [&](const Problem& p) { return told(p.place); });
    native.problems.insert(native.problems.begin(), problems_.begin(), problems_.end());
    for (auto& note : remarks_of(out_.meaning, out_.root)) out_.notes.push_back(std::move(note));
    const std::string gpu = source_.gpu.empty() ? std::string(kDefaultGpu) : source_.gpu;
    if (auto note = npu_note(composed_, source_.name, gpu)) out_.notes.push_back(std::move(*note));
    for (auto& p : native.problems)
      if (p.place.file.empty()) p.place.file = source_.name;
    out_.native = std::move(native);
    out_.composed = std::move(composed_);
    return std::move(out_);
  }

 private:
  void add(std::vector<Problem> problems) {
    for (auto& p : problems) problems_.push_back(std::move(p));
  }

  /// That a value is not supported yet says more than that the class does not list it: awex stands in no list of choices.
  void prefer_refusals(const std::vector<Problem>& refusals) {
    for (const auto& refusal : refusals)
      if (refusal.why.starts_with("not supported yet"))
        std::erase_if(problems_, [&](const Problem& p) { return p.place.path == refusal.place.path; });
  }
  /// What is wrong with a value, or with the section that it stands in, is told once.
  bool told(const Place& place) const {
    return std::any_of(problems_.begin(), problems_.end(), [&](const Problem& p) {
      const bool same =
          place.line > 0 && p.place.file == place.file && p.place.line == place.line && p.place.column == place.column;
      return same || p.place.path == place.path || (!p.place.path.empty() && place.path.starts_with(p.place.path + "."));
    });
  }

  void compose_file() {
    // Hydra knows a file by its folder and its name up to ".yaml".
    std::string path = source_.name;
    const auto slash = path.rfind('/');
    compose::Request request;
    request.folder = slash == std::string::npos ? "" : path.substr(0, slash);
    std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    const auto ending = name.find(".yaml");
    if (ending == std::string::npos) {
      name = "stdin";
      request.folder = "";
      path = "stdin.yaml";
    } else {
      name = name.substr(0, ending);
    }
    request.config = name;
    request.overrides = source_.overrides;
    request.environment = source_.environment;
    request.documents = &store_.documents();
    request.files.read = [this, path](const std::string& asked) -> std::optional<std::string> {
      if (asked == path) return source_.text;
      return source_.open ? source_.open(asked) : std::nullopt;
    };
    compose::Composed composed = compose::compose(request);
    add(std::move(composed.problems));
    for (const auto& w : composed.warnings) out_.notes.push_back({Note::Level::warning, w.place, to_text(w)});
    composed_ = std::move(composed.root);
  }

  // ---- which release

  void choose_release() {
    if (!source_.framework_version.empty()) {
      const auto found = find_release(source_.framework_version);
      if (!found)
        throw InputError(Problem{{"command line", 0, 0, "--framework-version"},
                                 fmt::format("'{}'", source_.framework_version),
                                 releases_text(),
                                 {},
                                 "a release of AReaL"});
      out_.release = *found;
      out_.release_stated = true;
      if (!names(source_.framework_version, *found))
        out_.notes.push_back({Note::Level::warning,
                              {"command line", 0, 0, "--framework-version"},
                              fmt::format("no release of AReaL known here is called '{}'; read as {}, the last one before it",
                                          source_.framework_version, name_of(*found))});
      return;
    }
    const Node* mode = composed_.find("allocation_mode");
    const bool own_strings = composed_.at("actor.backend") != nullptr || composed_.at("rollout.backend") != nullptr ||
                             composed_.at("model.backend") != nullptr;
    std::string why = "the newest release";
    out_.release = newest_release();
    if (composed_.find("actor_train") != nullptr || composed_.find("exp_ctrl") != nullptr) {
      out_.release = release_named("0.3.0");
      why = "the file has the keys of the realhf trainer, up to 0.3.0";
    } else if (!own_strings && mode != nullptr && mode->kind == Node::Kind::text) {
      out_.release = newest_that_reads(mode->text);
      why = "the newest release that reads this allocation_mode";
    }
    out_.notes.push_back({Note::Level::warning,
                          {source_.name, 0, 0, {}},
                          fmt::format("read as AReaL {}, {}; --framework-version names another", name_of(out_.release), why)});
  }
  static Release newest_that_reads(const std::string& text) {
    Release best = release_named("1.0.2");
    for (const auto& a : acceptance(text))
      if (a.accepted && a.first <= release_named("1.0.2")) best = std::min(a.last, release_named("1.0.2"));
    return best;
  }

  // ---- which class

  /// The entry script of an example is known by its folder; another file is what its keys say.
  /// Scripts that start servers and train nothing, whatever their class has besides (examples/experimental/inference_service,
  /// 1.0.3 on). Every other class has an actor, and AReaL asks for its backend.
  std::string rollout_script() const {
    for (const std::string_view name : {"inference_service/online_rollout", "inference_service/tau2_rollout"})
      if (source_.name.ends_with(fmt::format("{}.yaml", name))) return fmt::format("examples/experimental/{}.py", name);
    return {};
  }
  void find_servers_alone() {
    if (out_.release < release_named("1.0.3") || composed_.find("rollout") == nullptr) return;
    const std::string script = rollout_script();
    servers_alone_ = !script.empty();
    if (!servers_alone_) return;
    out_.notes.push_back({Note::Level::warning,
                          {source_.name, 0, 0, "rollout"},
                          fmt::format("{} trains nothing: the servers alone are judged", script)});
    out_.root_class = schema_->root_of_script(script);
    certain_ = !out_.root_class.empty();
  }
  void choose_class() {
    schema_ = Schema::of(out_.release);
    if (!schema_)
      throw InputError(
          Problem{{"command line", 0, 0, "--framework-version"},
                  fmt::format("'{}'", source_.framework_version.empty() ? name_of(out_.release) : source_.framework_version),
                  "0.2.0 or later",
                  {},
                  "AReaL 0.1.1 and 0.1.2 have no configuration files: a job is the command line of realhf.apps.quickstart"});
    realhf_ = is_realhf();
    find_servers_alone();
    if (certain_) return;
    const std::vector<std::string> wanted = wanted_classes();
    const auto beside = schema_->roots_beside(source_.name);
    for (const auto& base : wanted)
      for (const auto& root : beside)
        if (out_.root_class.empty() && schema_->derives(root, base)) out_.root_class = root;
    // the only script of the folder, whose class derives from none of AReaL's own
    if (out_.root_class.empty() && beside.size() == 1 && is_of_this_kind(beside.front())) out_.root_class = beside.front();
    certain_ = !out_.root_class.empty();
    for (const auto& name : wanted)
      if (out_.root_class.empty() && schema_->has_class(name)) out_.root_class = name;
    if (out_.root_class.empty()) throw Defect("a release without a configuration class");
  }
  /// The trainer of 0.2.0 and 0.3.0, which is shipped beside another until 0.5.1 (realhf/training), has keys of its own.
  bool is_realhf() {
    if (out_.release <= release_named("0.3.0")) return true;
    constexpr std::array<std::string_view, 4> kKeys{"exp_ctrl", "actor_train", "ppo", "torch_cache_mysophobia"};
    const auto known = std::count_if(kKeys.begin(), kKeys.end(), [&](auto key) { return composed_.find(key) != nullptr; });
    if (known < 2 || release_named("0.5.1") < out_.release) return false;
    out_.notes.push_back({Note::Level::info,
                          {source_.name, 0, 0, {}},
                          fmt::format("the file is the realhf trainer's (realhf/training), which AReaL {} has beside its own",
                                      name_of(out_.release))});
    return true;
  }
  /// Has the class what a file of its kind has?
  bool is_of_this_kind(const std::string& root) const {
    constexpr std::array<std::string_view, 4> kParts{"actor", "rollout", "gconfig", "train_dataset"};
    return std::all_of(kParts.begin(), kParts.end(),
                       [&](auto key) { return composed_.find(key) == nullptr || schema_->field(root, key) != nullptr; });
  }
  /// What the keys speak for, best first. Up to 0.4.1 PPOConfig always has a critic, GRPOConfig never.
  std::vector<std::string> wanted_classes() const {
    const auto has = [&](std::string_view key) { return composed_.find(key) != nullptr; };
    if (realhf_) {
      const std::string beside = out_.release <= release_named("0.3.0") ? "" : "realhf:";
      if (!has("ppo") && !has("actor")) return {beside + "SFTConfig"};
      const bool async = has("max_head_offpolicyness") || has("n_rollout_workers");
      return {beside + (async ? "AsyncPPOMATHConfig" : "PPOMATHConfig")};
    }
    if (has("rollout") || has("gconfig"))
      return has("critic") ? std::vector<std::string>{"PPOConfig", "GRPOConfig"}
                           : std::vector<std::string>{"GRPOConfig", "PPOConfig"};
    const Node* type = composed_.at("train_dataset.type");
    const std::string data = type != nullptr ? type->text : "";
    if (data == "dpo") return {"DPOConfig", "SFTConfig"};
    return {data == "rw" ? "RWConfig" : "SFTConfig", "SFTConfig"};
  }

  void put_over_defaults() {
    structured::ClassTable& classes = store_.classes(*schema_);
    structured::OverDefaults merged = structured::over_defaults(classes, out_.root_class, composed_, certain_);
    add(std::move(merged.problems));
    for (const auto& p : merged.unknown)
      out_.notes.push_back(
          {Note::Level::warning, p.place,
           fmt::format("{}: no class of AReaL {} has it, so the entry script's own class must{}", p.place.path,
                       name_of(out_.release), p.nearest.empty() ? "" : fmt::format(" (or is it {}?)", p.nearest))});
    compose::Resolved resolved = compose::resolve(merged.root, source_.environment);
    add(std::move(resolved.problems));
    out_.root = std::move(resolved.root);
    if (problems_.empty()) add(structured::type_problems(classes, out_.root_class, out_.root));
  }

  Surroundings surroundings() {
    Surroundings out;
    out.refusals_only = !problems_.empty();
    if (!source_.gpu.empty()) {
      out.gpu = source_.gpu;
      out.gpu_origin = {Origin::Kind::override_, {"command line", 0, 0, "--gpu"}, {}, {}};
      return out;
    }
    out.gpu = kDefaultGpu;
    out.gpu_origin = {Origin::Kind::default_, {}, "no key of AReaL says which GPU", {}};
    out_.notes.push_back({Note::Level::warning,
                          {source_.name, 0, 0, "cluster"},
                          fmt::format("no key says which GPU it is; taken as {}: --gpu names another", kDefaultGpu)});
    return out;
  }

  const Source& source_;
  ReadingStore& store_;
  Node composed_;
  std::optional<Schema> schema_;
  bool certain_ = false, servers_alone_ = false;
  bool realhf_ = false;
  std::vector<Problem> problems_;
  ArealText out_;
};

}  // namespace

bool recognises(const std::vector<std::string>& keys) {
  const auto has = [&](std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (has("oomplan")) return false;
  if (has("allocation_mode") || has("exp_ctrl") || has("defaults")) return true;
  if (has("experiment_name") && has("trial_name")) return true;
  return has("gconfig") && has("actor");
}

ArealText read_areal(const Source& source, ReadingStore& store) { return FileReader(source, store).run(); }
ArealText read_areal(const Source& source) {
  ReadingStore store;
  return read_areal(source, store);
}

}  // namespace oomplan::areal
