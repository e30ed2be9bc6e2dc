#include "frontends/slime/rules.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/slime/fsdp.hpp"
#include "frontends/slime/specifications.hpp"
#include "job/role_names.hpp"

namespace oomplan::slime {
namespace {

/// Switches and words of slime that are not described, with the value that is. Sources: slime/utils/arguments.py.
constexpr std::array kNotYet = std::to_array<NotYet>({
    {"train_backend", "slime's other training backends", "megatron or fsdp"},
    {"loss_type", "losses of your own", "policy_loss or sft_loss"},
    {"rollout_external_engine_addrs", "servers that somebody else started"},
    {"prefill_num_servers", "servers that prefill apart from those that decode"},
    {"release_train", "a trainer that is made anew for every step"},
    {"only_train_params_name_list", "models of which a part is trained"},
    {"freeze_params_name_list", "models of which a part is frozen"},
    {"freeze_indexer", "models of which a part is frozen"},
    {"allgather_cp", "context parallelism by all-gathers"},
    {"custom_model_provider_path", "a model of your own code"},
    {"multimodal_keys", "images beside the text"},
    {"balance_by_flops", "micro-batches that may exceed their budget"},
    {"qwen_gdn_backend", "FlashQLA's gated delta rules", "fla"},
    {"megatron_deepgemm_forward_layers", "layers whose forward pass runs in fp8"},
    {"megatron_deepgemm_moe_forward_layers", "layers whose forward pass runs in fp8"},
});

class Checker {
 public:
  Checker(SlimeText& text, const SlimeMeaning& m) : t_(text), m_(m) {}

  void run() {
    const std::size_t before = t_.told.problems.size();
    if (t_.family->check != nullptr)
      t_.family->check(t_, m_);
    else
      of_slime();
    if (by_fsdp(t_)) check_fsdp(t_, m_);
    of_all();
    of_servers();
    of_megatron();
    for (std::size_t i = before; i < t_.told.problems.size(); ++i) t_.told.problems[i].kind = ProblemKind::refused_by_framework;
    if (t_.told.problems.size() > before) of_stray_words(before);
    const std::size_t theirs = t_.told.problems.size();
    not_yet();
    if (by_fsdp(t_) && m_.trains) fsdp_not_yet(t_, m_);
    if (under_megatron()) megatron::refuse_unsupported(t_.megatron, m_.run, t_.told, described_flags(t_));
    for (std::size_t i = theirs; i < t_.told.problems.size(); ++i) t_.told.problems[i].kind = ProblemKind::not_supported;
  }

 private:
  std::string itself(std::string_view does) const { return fmt::format("{} itself {}", t_.family->name, does); }
  void wrong(const char* name, std::string found, std::string expected, std::string why) {
    t_.told.add(t_.own.place(name), std::move(found), std::move(expected), std::move(why));
  }
  std::string found(const char* name) const {
    const nlohmann::json& v = t_.own.value(name);
    if (v.is_null()) return "nothing";
    if (v.is_boolean()) return v.get<bool>() ? "the flag" : "nothing";
    return v.is_string() ? fmt::format("'{}'", t_.own.text(name)) : v.dump();
  }

  // ---- what slime refuses (slime/utils/arguments.py: slime_validate_args)

  void of_slime() {
    const Own& o = t_.own;
    const std::string kAsks = itself("asks for it");
    if (!o.has("rollout_batch_size")) wrong("rollout_batch_size", "nothing", "prompts of a rollout", kAsks);
    if (!o.has("hf_checkpoint")) wrong("hf_checkpoint", "nothing", "the checkpoint of the model", kAsks);
    if (o.on("use_dynamic_batch_size") && !o.has("max_tokens_per_gpu") && !o.given("max_tokens_per_gpu"))
      wrong("max_tokens_per_gpu", "nothing", "tokens of a GPU beside --use-dynamic-batch-size", kAsks);
    if (o.number("kl_coef", 0) != 0 && o.number("kl_loss_coef", 0) != 0)
      wrong("kl_coef", found("kl_coef"), "0, or --kl-loss-coef 0", itself("takes only one of them"));
    if (o.text("advantage_estimator").starts_with("reinforce_plus_plus") && !o.on("normalize_advantages"))
      wrong("advantage_estimator", found("advantage_estimator"), "--normalize-advantages beside it", kAsks);
    if (!o.has("num_rollout") && !o.has("num_epoch")) wrong("num_rollout", "nothing", "--num-rollout or --num-epoch", kAsks);
    if (o.on("enable_mtp_training") && t_.megatron.whole_or("mtp_num_layers", 0) == 0)
      wrong("enable_mtp_training", "the flag", "--mtp-num-layers beside it", kAsks);
    if (t_.async && o.on("colocate"))
      wrong("colocate", "the flag", "train.py, or GPUs of their own (--rollout-num-gpus)",
            "train_async.py itself refuses it: servers generate while the trainer works");
    if (o.has("use_stateless_adam") && o.on("use_stateless_adam")) stateless_adam();
    if (o.has("use_opd") && o.on("use_opd") && !o.has("opd_type")) wrong("opd_type", "nothing", "sglang or megatron", kAsks);
    if (o.number("rollout_temperature", 1) <= 0 && t_.release.since("0.4.0"))
      wrong("rollout_temperature", found("rollout_temperature"), "above 0", itself("asks for it: greedy decoding is no policy"));
    if (o.on("debug_rollout_only") && (o.on("debug_train_only") || o.has("load_debug_rollout_data")))
      wrong("debug_rollout_only", "the flag", "nothing, or no --debug-train-only", itself("takes only one of them"));
  }
  /// slime/backends/megatron_utils/model.py: setup_model_and_optimizer; stateless_adam.py.
  void stateless_adam() {
    if (t_.megatron.text("optimizer") != "adam")
      t_.told.add(t_.megatron.place("optimizer"), t_.megatron.text("optimizer"), "adam",
                  itself("asks for it: --use-stateless-adam"));
    if (!t_.own.on("no_save_optim") && !t_.megatron.on("no_save_optim"))
      wrong("use_stateless_adam", "the flag", "--no-save-optim beside it",
            itself("asks for it: there are no states to be saved"));
    if (t_.megatron.on("use_precision_aware_optimizer") && !t_.megatron.on("optimizer_cpu_offload"))
      t_.told.add("--use-precision-aware-optimizer", "the flag", "nothing beside --use-stateless-adam",
                  itself("fails: StatelessAdam has no masters of its own"));
  }
  /// What every framework of the family asks for.
  void of_all() {
    const Own& o = t_.own;
    batches();
    lengths();
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    for (const char* name : {"actor_num_nodes", "actor_num_gpus_per_node", "rollout_num_gpus_per_engine", "num_gpus_per_node",
                             "max_tokens_per_gpu", "n_samples_per_prompt", "rollout_batch_size", "data_pad_size_multiplier",
                             "rollout_max_prompt_len", "rollout_max_response_len", "rollout_max_context_len"})
      if (const auto n = o.whole(name); n && (*n < 1 || *n > kMost))
        wrong(name, fmt::format("{}", *n), fmt::format("1 to {}", kMost), "");
  }
  void batches() {
    const Own& o = t_.own;
    const std::int64_t all = o.whole_or("rollout_batch_size", 0) * o.whole_or("n_samples_per_prompt", 1);
    if (const auto steps = o.whole("num_steps_per_rollout")) {
      if (*steps < 1) return wrong("num_steps_per_rollout", fmt::format("{}", *steps), "1 or more", "");
      const auto said = t_.megatron.given("global_batch_size") ? t_.megatron.whole("global_batch_size") : std::nullopt;
      if (said && *said != all / *steps)
        t_.told.add("--global-batch-size", fmt::format("{}", *said),
                    fmt::format("{}, of {} sequences in {} steps", all / *steps, all, *steps), itself("compares them"));
    }
    if (const auto more = o.whole("over_sampling_batch_size"); more && *more < o.whole_or("rollout_batch_size", 0))
      wrong("over_sampling_batch_size", fmt::format("{}", *more), "at least --rollout-batch-size", itself("asks for it"));
  }
  void lengths() {
    const auto prompt = t_.own.whole("rollout_max_prompt_len"), context = t_.own.whole("rollout_max_context_len");
    if (prompt && context && *prompt > *context - 1)
      wrong("rollout_max_prompt_len", fmt::format("{}", *prompt), fmt::format("at most {}", *context - 1),
            itself("keeps one token of --rollout-max-context-len for the response"));
  }

  /// slime/backends/sglang_utils/arguments.py: validate_args.
  void of_servers() {
    if (!m_.serves) return;
    std::int64_t all = 0;
    for (const ServerGroup& g : t_.groups) all += g.gpus;
    if (!t_.groups.empty() && all != m_.rollout_gpus)
      wrong("sglang_config", fmt::format("{} GPUs", all), fmt::format("the {} of --rollout-num-gpus", m_.rollout_gpus),
            itself("compares them"));
    if (m_.engine_gpus % m_.server_stages != 0)
      wrong("rollout_num_gpus_per_engine", fmt::format("{}", m_.engine_gpus),
            fmt::format("a multiple of the {} stages", m_.server_stages), itself("asks for it"));
    const ServerFlag* groups = t_.server_flag({"data-parallel-size", "dp-size"});
    if (m_.server_groups > 1 && t_.server_flag({"enable-dp-attention"}) == nullptr)
      t_.told.add(groups->written, fmt::format("{}", m_.server_groups), "--sglang-enable-dp-attention beside it",
                  itself("asks for it"));
    if (!(m_.trains ? m_.colocated : t_.own.on("colocate")) && !t_.own.has("rollout_num_gpus") &&
        !t_.own.has("rollout_external_engine_addrs"))
      wrong("rollout_num_gpus", "nothing", "GPUs of the servers, or --colocate",
            fmt::format("servers on GPUs of their own: {} does not know how many", t_.family->name));
    if (m_.rollout_gpus % m_.engine_gpus != 0)
      wrong("rollout_num_gpus_per_engine", fmt::format("{}", m_.engine_gpus),
            fmt::format("a divisor of the {} GPUs of the servers", m_.rollout_gpus), "");
  }

  /// Megatron's arguments mean nothing to another backend.
  bool under_megatron() const {
    const std::string backend = t_.own.text("train_backend");
    return m_.trains && (backend.empty() || backend == "megatron");
  }
  /// The framework calls Megatron's own checks. Its batches are no Megatron's.
  void of_megatron() {
    if (!under_megatron()) return;
    megatron::Arguments& a = t_.megatron;
    megatron::check_layout(a, m_.run, megatron::Built::by_arguments, t_.told);
    megatron::check_stages(a, m_.run, t_.told);
    megatron::check_model(a, m_.run, t_.told);
    megatron::check_experts(a, m_.run, t_.told);
    megatron::check_recompute(a, m_.run, t_.told);
    megatron::check_deferral(a, m_.run, t_.told);
    megatron::check_optimizer(a, t_.told);
    megatron::check_formats(a, t_.told);
    megatron::check_fp8(a, m_.run, t_.told);
    if (m_.run.pipeline == 1)
      for (const char* name : {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"})
        if (a.has(name))
          t_.told.add(a.place(name), a.value(name).dump(), "nothing with one pipeline stage", itself("refuses it"));
  }

  /// What is missing may be in a word that nobody knows, such as an array of a file that is not here.
  void of_stray_words(std::size_t before) {
    std::vector<Problem> words;
    for (const std::string& word : t_.stray)
      words.push_back({{t_.told.file, 0, 0, {}}, fmt::format("'{}'", word), "a flag", {}, "it belongs to none"});
    auto& all = t_.told.problems;
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(before), words.begin(), words.end());
  }

  // ---- what is not described

  void not_yet() {
    for (const NotYet& row : t_.family->not_yet) {
      if (!t_.own.given(row.name)) continue;
      const std::string text = t_.own.text(row.name);
      const std::string_view only = row.only;
      const bool described = only.empty() ? !t_.own.on(row.name) : !text.empty() && only.find(text) != std::string_view::npos;
      if (!described && (row.described == nullptr || !row.described(t_)))
        wrong(row.name, found(row.name), only.empty() ? "nothing" : std::string(only),
              fmt::format("not supported yet: {}", row.what));
    }
    if (m_.trains && t_.int4_training && !t_.megatron.text("fp8").empty())
      t_.told.add("OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "1", "nothing beside --fp8-format",
                  "not supported yet: experts that are rounded to 4 bits, and products in 8");
    groups();
    roles();
    replayed_routes();
    images();
    if (m_.critic && !t_.family->critics)
      wrong("advantage_estimator", "'ppo'", "another estimator", fmt::format("not supported yet: {}'s critics", t_.family->name));
    else if (m_.critic && m_.run.pipeline > 1 && !t_.megatron.on("untie_embeddings_and_output_weights"))
      wrong("advantage_estimator", "'ppo'", "one pipeline stage",
            "not supported yet: a critic in stages whose model has its embedding as output layer");
    if (m_.critic && !m_.odd_critic.empty())
      wrong("advantage_estimator", "'ppo'", "another estimator, or a critic as it is described",
            fmt::format("not supported yet: {}", m_.odd_critic));
    if (!m_.trains && !m_.beside.empty())
      wrong("debug_rollout_only", "the flag", "nothing", "not supported yet: servers of other models without a trainer");
    for (const Served& server : m_.beside) beside(server);
    if (t_.own.text("update_weight_transport") == "disk")
      wrong("update_weight_transport", "'disk'", "nccl", "not supported yet: a weight update through files");
    if (m_.serves && m_.trains && m_.rollout_gpus == 0)
      wrong("rollout_num_gpus", "0", "1 or more", "not supported yet: a rollout without servers");
    if (m_.colocated && m_.rollout_gpus > m_.actor_gpus)
      wrong("rollout_num_gpus", fmt::format("{} beside {} of the actor", m_.rollout_gpus, m_.actor_gpus),
            "no more than the actor has", "not supported yet: servers on the trainer's GPUs and on others");
    if (m_.colocated && !m_.critic && m_.offload_train != m_.offload_rollout)
      wrong("offload_train", m_.offload_train ? "the trainer alone" : "the servers alone", "both of them, or neither",
            "not supported yet: one of them leaves the GPUs of both");
    if (!m_.colocated && (m_.critic ? m_.offload_rollout : m_.offload_train || m_.offload_rollout) && m_.serves && m_.trains)
      wrong(m_.offload_train ? "offload_train" : "offload_rollout", "the flag", "nothing without --colocate",
            "not supported yet: sleeping on GPUs of one's own");
    if (m_.supervised && m_.serves && m_.trains && !t_.own.has("sft_predict_interval"))
      wrong("debug_train_only", "nothing", "--debug-train-only beside --loss-type sft_loss",
            "not supported yet: supervised training beside servers");
  }
  void beside(const Served& server) {
    const auto refuse = [&](const std::string& flag, std::string found, std::string expected, std::string what) {
      t_.told.add(flag, std::move(found), std::move(expected), fmt::format("not supported yet: {}", what));
    };
    if (server.kind == RoleKind::reward && server.stages > 1)
      refuse(server.flag, fmt::format("{} stages", server.stages), "1", "a judge in stages");
    for (const ServerFlag& flag : server.flags)
      if (flag.name == "tp-size" || flag.name == "tensor-parallel-size")
        refuse(flag.written, "tp_size", server.engine_flag, "another number of GPUs in an engine's configuration");
    const bool judges = server.kind == RoleKind::reward;
    if (kind_of_role_named(server.name) != server.kind)
      refuse(server.flag, server.name,
             fmt::format("at most {} {}", judges ? kMostJudges : kMostTeachers, judges ? "judges" : "teachers"),
             judges ? "more judges" : "more teachers");
  }
  /// --megatron-config-path: what memory does not depend on may differ between actor and critic.
  void roles() {
    constexpr std::array<std::string_view, 7> kHarmless{"ref_load", "value_clip",           "eps_clip", "eps_clip_high", "gamma",
                                                        "lambd",    "num_critic_only_steps"};
    for (const RoleArguments& r : t_.roles) {
      if (r.role == "critic" && !m_.critic) continue;
      for (const FileArgument& a : r.arguments) {
        const megatron::Flag* flag = megatron::flag_named(a.name);
        if (r.role == "critic" && a.name == "kl_coef") continue;  // a critic has none
        const bool matters = flag != nullptr ? !flag->memory.empty() : flag_named(t_.release, a.name) != nullptr;
        if (matters && std::find(kHarmless.begin(), kHarmless.end(), a.name) == kHarmless.end())
          wrong("megatron_config_path", fmt::format("{} of the {}", a.name, r.role), "nothing that memory depends on",
                "not supported yet: arguments of single roles");
      }
    }
  }
  /// slime/backends/sglang_utils/sglang_config.py.
  void groups() {
    if (t_.groups.empty() || !m_.serves) return;
    const auto refuse = [&](std::string found, const char* expected, const char* what) {
      wrong("sglang_config", std::move(found), expected, fmt::format("not supported yet: {}", what));
    };
    for (const ServerGroup& g : t_.groups) {
      if (g.worker == "prefill" || g.worker == "decode")
        return refuse(fmt::format("worker_type {}", g.worker), "regular", "servers that prefill apart from those that decode");
      if (g.worker != "regular")
        return refuse(fmt::format("worker_type {}", g.worker), "regular",
                      g.worker == "encoder" ? "servers that encode images alone" : "GPUs of the servers that stay free");
      if (!g.model.empty() && g.model != t_.own.text("hf_checkpoint"))
        return refuse(fmt::format("model_path '{}'", g.model), "--hf-checkpoint", "servers of other models");
    }
    if (!alike(t_.groups)) refuse("groups that differ", "groups that are alike", "servers that are started differently");
  }

  /// Routes lie on the host (slime/utils/routing_replay.py). A router that replays some keeps them in two formats; under a
  /// checkpoint nothing of it lives beyond its layer.
  void replayed_routes() {
    const megatron::Arguments& a = t_.megatron;
    const bool whole = a.text("recompute_granularity") == "full" && a.text("recompute_method") == "uniform";
    for (const char* name : {"use_routing_replay", "use_rollout_routing_replay"})
      if (t_.own.on(name) && !whole)
        return wrong(name, "the flag", "--recompute-granularity full --recompute-method uniform beside it",
                     "not supported yet: experts' routes that are replayed without recomputation");
  }

  /// Images of --multimodal-keys, and towers that are frozen, as Megatron-Bridge's models have them.
  void images() {
    if (t_.family->image_size == nullptr || !m_.trains) return;
    const Own& o = t_.own;
    const bool bridge = is_made_by_bridge(t_);
    if (o.on("freeze_vision_projection") && !o.on("freeze_vision_model") && bridge)
      wrong("freeze_vision_projection", "the flag", "--freeze-vision-model beside it",
            "not supported yet: a trained tower whose mergers are frozen");
    if (o.on("enable_mtp_training") && bridge && !t_.release.since("2026.07"))  // mtp_num_layers is the checkpoint's there
      wrong("enable_mtp_training", "the flag", "a later state of Relax", "not supported yet: multi-token prediction of 2026.05");
    if (!o.on("multimodal_keys")) return;
    const nlohmann::json keys = nlohmann::json::parse(o.text("multimodal_keys"), nullptr, false);
    if (!keys.is_object() || keys.size() != 1 || !(keys.contains("image") || keys.contains("video")))
      return wrong("multimodal_keys", found("multimodal_keys"), R"('{"image": "..."}' or '{"video": "..."}')",
                   "not supported yet: sound, or images and video at once");
    if (!bridge)
      wrong("multimodal_keys", found("multimodal_keys"), "--megatron-to-hf-mode bridge beside it",
            "not supported yet: images of a model that Megatron-Bridge does not make");
    else if (keys.contains("video") && o.on("use_audio_in_video"))
      wrong("use_audio_in_video", "the flag", "nothing", "not supported yet: the sound of a video");
  }

  SlimeText& t_;
  const SlimeMeaning& m_;
};

}  // namespace

void check(SlimeText& text, const SlimeMeaning& m) { Checker(text, m).run(); }

std::span<const NotYet> not_yet() { return kNotYet; }

}  // namespace oomplan::slime
