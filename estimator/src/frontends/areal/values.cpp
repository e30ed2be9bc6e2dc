#include "frontends/areal/values.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "units/enums.hpp"

namespace oomplan::areal {
namespace {

using compose::Node;
using Kind = Node::Kind;

constexpr std::array<std::string_view, 4> kTrainers{"actor", "critic", "ref", "model"};

/// Values without which there is no estimate: of a trained role, and of the job.
constexpr std::string_view kNeeded[] = {"path", "dtype", "optimizer_dtype", "mb_spec.max_tokens_per_mb"};
constexpr std::string_view kNumbers[] = {
    "cluster.n_nodes",          "cluster.n_gpus_per_node",  "gconfig.n_samples",          "gconfig.max_new_tokens",
    "train_dataset.batch_size", "train_dataset.max_length", "sglang.mem_fraction_static", "vllm.gpu_memory_utilization"};
/// Keys that AReaL needs a name for and an estimate does not.
constexpr std::array<std::string_view, 5> kNames{"experiment_name", "trial_name", "fileroot", "path", "type"};

class Checker {
 public:
  Checker(Teller& t, const Node& root) : t_(t), root_(root) {}

  void run() {
    for (const auto path : kNumbers) refuse_unknown(std::string(path));
    for (const auto role : kTrainers) {
      if (!t_.has(role)) continue;
      for (const auto key : kNeeded) refuse_unknown(fmt::format("{}.{}", role, key));
      check_dtypes(std::string(role));
    }
    for (const auto& r : t_.out().roles) check_model(r);
    check_sharing();
    std::vector<std::string> unnamed;
    find_missing(root_, "", unnamed);
    tell_unnamed(unnamed);
  }

 private:
  void tell_unnamed(const std::vector<std::string>& paths) {
    if (paths.empty()) return;
    const std::string more = paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : "";
    t_.out().notes.push_back(
        {Note::Level::info, root_.origin.place,
         fmt::format("AReaL {} itself asks for {}{}, which no estimate needs", name_of(t_.out().release), paths.front(), more)});
  }
  /// The nearest name, in its long form.
  static std::string meant(const std::string& text, const std::vector<std::string>& valid,
                           const std::vector<std::string>& shorter) {
    const std::string near = nearest(text, shorter);
    for (std::size_t i = 0; i < shorter.size(); ++i)
      if (shorter[i] == near) return valid[i];
    return nearest(text, valid);
  }
  void refuse(const std::string& path, std::string found, std::string expected, std::string why = {}, std::string near = {}) {
    const Node* n = t_.at(path);
    Place place = n != nullptr ? n->origin.place : Place{};
    place.path = path;
    t_.out().refusals.push_back({std::move(place), std::move(found), std::move(expected), std::move(near), std::move(why)});
  }
  /// An environment variable or the time of day.
  void refuse_unknown(const std::string& path) {
    const Node* n = t_.at(path);
    if (n == nullptr || n->kind != Kind::unknown) return;
    refuse(path, fmt::format("a value of the job's machine ({})", n->text), fmt::format("the value itself, as in {}=...", path),
           "no environment is read");
  }
  void check_model(const BuiltRole& r) {
    const std::string path = r.path + ".path";
    const Node* n = t_.at(path);
    if (r.part.kind == PartKind::training && n != nullptr && n->kind == Kind::text && n->text.empty())
      refuse(path, "nothing", "a model: a hub id such as Qwen/Qwen2.5-7B-Instruct, or a folder");
  }

  /// Up to 1.0.4 getattr(torch, dtype) takes the name as it is (areal/engine/fsdp_engine.py); from 2.0.0 on short names are
  /// known, and what is stored is float32 or bfloat16 (areal/api/cli_args.py: TrainEngineConfig.__post_init__).
  void check_dtypes(const std::string& role) {
    const auto check = [&](std::string_view key, const std::vector<std::string>& valid, const std::vector<std::string>& shorter,
                           bool aliases) {
      const std::string path = fmt::format("{}.{}", role, key), text = t_.text(path);
      const auto holds = [&](const std::vector<std::string>& all) {
        return std::find(all.begin(), all.end(), text) != all.end();
      };
      if (text.empty() || holds(valid) || (aliases && holds(shorter))) return;
      refuse(path, fmt::format("'{}'", text), list_of(valid),
             holds(shorter) ? fmt::format("AReaL {} looks the name up in torch", name_of(t_.out().release)) : "",
             meant(text, valid, shorter));
    };
    const bool short_names = t_.since("2.0.0");
    check("dtype", {"float32", "bfloat16", "float16"}, {"fp32", "bf16", "fp16"}, short_names);
    check("optimizer_dtype", {"float32", "bfloat16"}, {"fp32", "bf16"}, short_names);
    check("grad_reduce_dtype", {"float32", "bfloat16", "float16"}, {"fp32", "bf16", "fp16"}, false);
  }

  bool colocates(std::string_view role, std::string_view target) const {
    return t_.text(fmt::format("{}.scheduling_strategy.type", role)) == "colocation" &&
           t_.text(fmt::format("{}.scheduling_strategy.target", role)) == target;
  }
  /// areal/trainer/rl_trainer.py: _validate_cfg, from 1.0.3 on.
  void check_sharing() {
    if (!t_.since("1.0.3") || t_.out().kind != "rl") return;
    const bool shared = colocates("actor", "rollout") || colocates("rollout", "actor");
    const std::string mode = t_.text("actor.weight_update_mode", "xccl");
    if (shared && mode != "disk" && mode != "awex")
      refuse("actor.weight_update_mode", fmt::format("'{}'", mode), "disk",
             "actor and rollout share GPUs, and NCCL cannot connect two processes on one GPU");
    if (t_.flag("enable_offload")) return;
    std::string who = shared ? "actor and rollout share GPUs" : "";
    for (const std::string role : {"actor", "critic", "ref", "teacher"})
      if (who.empty() && t_.flag(role + ".offload")) who = fmt::format("{}.offload is true", role);
    if (!who.empty()) refuse("enable_offload", "false", "true", fmt::format("{}, and AReaL starts such a job only so", who));
  }

  /// OmegaConf.to_object stops at a value that is missing. A `backend` is told with its role.
  void find_missing(const Node& n, const std::string& path, std::vector<std::string>& unnamed) {
    for (std::size_t i = 0; i < n.items.size(); ++i) find_missing(n.items[i], fmt::format("{}.{}", path, i), unnamed);
    for (const auto& entry : n.entries) {
      const std::string below = path.empty() ? entry.key : fmt::format("{}.{}", path, entry.key);
      find_missing(entry.value, below, unnamed);
      if (entry.key == "backend") continue;
      if (entry.value.kind != Kind::missing || !entry.value.via.empty()) continue;  // what it leads to is told itself
      const bool stated = entry.value.origin.kind != Origin::Kind::default_;
      const bool name = std::find(kNames.begin(), kNames.end(), entry.key) != kNames.end();
      if (stated && !(name && below != "actor.path"))
        refuse(below, compose::describe(entry.value), "a value", "AReaL stops at a value that is still missing");
      else if (!stated && name)
        unnamed.push_back(below);
    }
  }

  Teller& t_;
  const Node& root_;
};

}  // namespace

void check_values(Teller& t, const Node& root) { Checker(t, root).run(); }

}  // namespace oomplan::areal
