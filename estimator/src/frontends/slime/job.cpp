#include "frontends/slime/job.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <oomplan/units/bytes.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/text_alone.hpp"
#include "frontends/defaults.hpp"
#include "frontends/images.hpp"
#include "frontends/megatron/model.hpp"
#include "frontends/megatron/settings.hpp"
#include "frontends/native.hpp"
#include "frontends/slime/adapters.hpp"
#include "frontends/slime/checkpoints.hpp"
#include "frontends/slime/frozen.hpp"
#include "frontends/slime/fsdp.hpp"
#include "frontends/slime/meaning.hpp"
#include "frontends/slime/predicted.hpp"
#include "frontends/slime/rules.hpp"
#include "frontends/slime/servers.hpp"
#include "frontends/slime/specifications.hpp"
#include "frontends/slime/videos.hpp"

namespace oomplan::slime {
namespace {

constexpr std::int64_t kPromptTaken = 1024;

class JobWriter {
 public:
  JobWriter(const Family& family, const Source& source, const Catalog& catalog)
      : source_(source),
        catalog_(catalog),
        said_(images_said(source.image_size)),
        t_(read_slime(family, source)),
        m_(meaning_of(t_)) {}

  Reading run() {
    check(t_, m_);
    const auto architecture = model();
    const std::size_t theirs = t_.told.problems.size();
    if (theirs == 0) write();
    stop_at(t_.told.problems);
    stop_at(text_.problems);
    return reading(architecture);
  }

 private:
  // ---- the model

  /// _hf_validate_args (slime/backends/megatron_utils/arguments.py): what Megatron builds must be what the checkpoint has.
  std::shared_ptr<const Architecture> model() {
    name_ = t_.own.text("hf_checkpoint");
    if (name_.empty()) return nullptr;  // told
    std::shared_ptr<const Architecture> found;
    try {
      found = architecture_of_name();
    } catch (const InputError& e) {
      for (Problem p : e.problems) {
        p.place = place(t_.own.place("hf_checkpoint"));
        t_.told.problems.push_back(std::move(p));
      }
      return nullptr;
    }
    token_side_ = found->tower.patch * found->tower.merge;
    if (m_.trains && by_fsdp(t_)) {
      check_fsdp_model(t_, *found, name_);
      return nullptr;
    }
    if (m_.trains) compare(*found, name_);
    if (m_.trains) check_layers(t_, *found, name_);
    const Specification* layers = specification_of(t_);
    text_alone_ = ((layers != nullptr && layers->text_alone) || bridges_text_alone(t_, *found)) && !found->tower.kind.empty();
    if (text_alone_ && layers == nullptr) tell_text();
    stored_ = !found->quantization.method.empty();
    linear_ = std::ranges::any_of(found->runs, [](const auto& run) { return run.layer.mixer.kind == MixerKind::gated_delta; });
    if (m_.serves && m_.trains && stored_) tell_formats(found->quantization.method);
    const megatron::Arguments& a = t_.megatron;
    if (a.number("attention_dropout") == 0 && a.number("hidden_dropout") == 0) return nullptr;  // as the catalog has it
    // Megatron-Bridge's models have hidden_dropout 0 and the checkpoint's attention_dropout, whatever the flags say
    // (megatron/bridge/models/*/*_bridge.py, 0.5.2; bridge_keys of relax/backends/megatron/model_provider.py, 0011f56b)
    if (is_made_by_bridge(t_)) return nullptr;
    if (text_alone_ && m_.serves)
      refuse_dropout("a checkpoint with a tower", "the text alone of a checkpoint that servers have whole");
    if (!m_.beside.empty()) refuse_dropout("a model beside servers of another", "a model beside servers of another");
    auto with = std::make_shared<Architecture>(*found);
    if (text_alone_) with->tower = {};
    with->attention_dropout = a.number("attention_dropout");
    with->hidden_dropout = with->embedding_dropout = a.number("hidden_dropout");
    return with;
  }
  /// GEMMA4_CONVERSION_MODE of Megatron-Bridge (models/gemma_vl/gemma4_vl_bridge.py, af17edf52), which Relax's scripts set.
  void tell_text() {
    token_side_ = 0;
    note(Note::Level::info, t_.own.place("hf_checkpoint"),
         "the trainer has the text of Gemma 4 alone: GEMMA4_CONVERSION_MODE=text is taken, as Relax's own scripts have it");
  }

  /// The trainer's model has none of the tower that the servers' has.
  void refuse_dropout(std::string_view found, std::string_view what) {
    t_.told.add("--hidden-dropout", fmt::format("dropout of {}", found), "--attention-dropout 0 --hidden-dropout 0",
                fmt::format("not supported yet: dropout of {}", what));
    t_.told.problems.back().kind = ProblemKind::not_supported;
  }
  /// New weights are converted for the servers into what the checkpoint has
  /// (slime/backends/megatron_utils/megatron_to_hf/processors); Megatron builds the model in 16 bits, of its own flags.
  void tell_formats(const std::string& method) {
    note(Note::Level::info, t_.own.place("hf_checkpoint"),
         fmt::format("{} is stored in {}: so the servers have it, and the trainer in 16 bits", name_, method));
  }
  /// Scripts name a folder of the cluster.
  std::shared_ptr<const Architecture> architecture_of_name() {
    try {
      return catalog_.model(name_).architecture;
    } catch (InputError& e) {
      constexpr std::int64_t kGroupOfTool = 32;  // tools/convert_hf_to_int4_direct.py
      const auto taken = checkpoint_of_folder(name_, t_.int4_group > 0 ? t_.int4_group : kGroupOfTool, catalog_);
      if (!taken) {
        for (Problem& p : e.problems) p.why += "; --model NAME of oomplan takes the place of this flag";
        throw;
      }
      note(Note::Level::warning, t_.own.place("hf_checkpoint"),
           fmt::format("no folder {} here: taken as {}{}{}", name_, taken->id, taken->how.empty() ? "" : ", ", taken->how));
      name_ = taken->id;
      return catalog_.model(name_).architecture;
    }
  }
  void compare(const Architecture& model, const std::string& name) {
    const megatron::Arguments& a = t_.megatron;
    const auto agree = [&](const char* argument, std::int64_t own) {
      const auto said = a.whole(argument);
      if (!said || *said == own) return;
      t_.told.add(a.place(argument), fmt::format("{}", *said), fmt::format("{}, as {} has it", own, name),
                  fmt::format("{} itself compares them with --hf-checkpoint", t_.family->name));
      t_.told.problems.back().kind = ProblemKind::refused_by_framework;
    };
    agree("num_layers", model.layers());
    agree("hidden_size", model.hidden);
    agree("num_attention_heads", model.runs.back().layer.mixer.heads);
    const FeedForward& last = model.runs.back().layer.feed_forward;
    if (last.kind == FeedForwardKind::moe)
      agree("moe_ffn_hidden_size", last.expert_width);
    else
      agree("ffn_hidden_size", last.width);
    if (a.given("num_layers") && a.on("untie_embeddings_and_output_weights") == model.tied) {
      t_.told.add(a.place("untie_embeddings_and_output_weights"), model.tied ? "the flag" : "nothing",
                  model.tied ? fmt::format("nothing: the embedding of {} is its output layer", name)
                             : fmt::format("the flag: {} has an output layer of its own", name),
                  fmt::format("{} itself compares them with --hf-checkpoint", t_.family->name));
      t_.told.problems.back().kind = ProblemKind::refused_by_framework;
    }
  }

  // ---- settings

  std::string_view name() const { return t_.family->name; }
  Place place(std::string path) const { return {t_.told.file, 0, 0, std::move(path)}; }
  void put(std::string key, std::string value, const std::string& flag, bool given = true) {
    Origin origin{
        given ? Origin::Kind::file : Origin::Kind::derived, place(flag), given ? "" : fmt::format("{}'s code", name()), {}};
    text_.settings.push_back({std::move(key), std::move(value), std::move(origin)});
  }
  void own(std::string key, std::string value, const char* name) {
    put(std::move(key), std::move(value), t_.own.place(name), t_.own.given(name));
  }
  void note(Note::Level level, const std::string& flag, std::string what) { t_.told.note(level, flag, std::move(what)); }

  void write() {
    cluster();
    lengths();
    if (m_.serves) rollout();
    for (const Served& server : m_.beside) beside(server);
    if (m_.trains) trainers();
    for (const Forward& role : m_.apart)
      if (role.starts) forward(role);
    add_beside(text_, source_);
    for (const std::string& text : source_.overrides) {
      if (text.starts_with("--") || text.starts_with("~--") || text.starts_with(kModelKey)) continue;  // read with the command
      const std::size_t sign = text.find('=');
      if (sign == std::string::npos)
        text_.problems.push_back(
            {{"command line", 0, 0, {}}, fmt::format("'{}'", text), "key=value, such as gpus=\"64 x H200-141GB\"", {}, {}});
      else
        text_.settings.push_back({text.substr(0, sign),
                                  text.substr(sign + 1),
                                  {Origin::Kind::override_, {"command line", 0, 0, text.substr(0, sign)}, {}, {}}});
    }
  }

  void cluster() {
    const std::string kind = source_.gpu.empty() ? "H100-80GB" : source_.gpu;
    const std::int64_t nodes_of = std::max<std::int64_t>(1, t_.own.whole_or("actor_num_gpus_per_node", 8));
    const std::int64_t of_servers = m_.colocated ? 0 : std::max<std::int64_t>(1, t_.own.whole_or("num_gpus_per_node", 8));
    const std::int64_t machine = std::max(nodes_of, std::min(of_servers, m_.used_gpus));
    const std::int64_t all = (m_.used_gpus + machine - 1) / machine * machine;
    if (m_.trains) own("framework", fmt::format("{} {}", t_.family->word, name_of(t_.release)), "hf_checkpoint");
    put("gpus", fmt::format("{} x {}", all, catalog_.gpu(kind).name), "--actor-num-gpus-per-node");
    put("gpus_per_node", fmt::format("{}", machine), "--actor-num-gpus-per-node");
  }

  /// Longest prompt and response. No flag has to say how long prompts are.
  void lengths() {
    if (m_.supervised) return;
    if (source_.sequence_tokens > 0) return said_lengths();
    const Own& o = t_.own;
    const auto prompt = o.whole("rollout_max_prompt_len"), response = o.whole("rollout_max_response_len"),
               context = o.whole("rollout_max_context_len");
    if (!response && !context) {
      text_.problems.push_back({place("--rollout-max-response-len"),
                                "nothing",
                                "tokens of the longest response",
                                {},
                                "no flag says how long sequences are"});
      return;
    }
    response_ = response ? *response : *context;
    if (context) response_ = std::min(response_, *context - 1);
    const std::int64_t left = context ? *context - response_ : kPromptTaken;
    prompt_ = prompt ? (context ? std::min(*prompt, std::max<std::int64_t>(1, left)) : *prompt) : left;
    if (!prompt && !context)
      note(Note::Level::info, "--rollout-max-prompt-len",
           fmt::format("not said: prompts are taken to have up to {} tokens", kPromptTaken));
    own("prompt_tokens", fmt::format("{}", std::max<std::int64_t>(1, prompt_)),
        prompt || !context ? "rollout_max_prompt_len" : "rollout_max_context_len");
    own("response_tokens", fmt::format("{}", std::max<std::int64_t>(1, response_)),
        response ? "rollout_max_response_len" : "rollout_max_context_len");
    samples();
  }
  std::string batch_flag() const {
    return t_.own.has("num_steps_per_rollout") ? t_.own.place("num_steps_per_rollout") : "--global-batch-size";
  }
  /// --sequence-tokens: of the longest sample, which turns of an agent or untruncated data may make longer than any flag says.
  void said_lengths() {
    const std::int64_t prompt = t_.own.whole_or("rollout_max_prompt_len", kPromptTaken);
    prompt_ = std::clamp<std::int64_t>(prompt, 1, std::max<std::int64_t>(1, source_.sequence_tokens - 1));
    response_ = std::max<std::int64_t>(1, source_.sequence_tokens - prompt_);
    put("prompt_tokens", fmt::format("{}", prompt_), "--sequence-tokens");
    put("response_tokens", fmt::format("{}", response_), "--sequence-tokens");
    samples();
  }
  void samples() {
    const std::int64_t each = t_.own.whole_or("n_samples_per_prompt", 1);
    if (m_.global_batch > 0) put("sequences_per_step", fmt::format("{}", m_.global_batch), batch_flag());
    if (each > 1) own("samples_per_prompt", fmt::format("{}", each), "n_samples_per_prompt");
  }
  std::int64_t longest() const { return m_.supervised ? source_.sequence_tokens : prompt_ + response_; }

  // ---- servers

  void rollout() {
    const std::string r(m_.servers());
    text_.roles.push_back({m_.trains ? RoleKind::rollout : RoleKind::server, place("--rollout-num-gpus-per-engine")});
    const std::string version = server_version(t_.family->framework, name_of(t_.release), EngineKind::sglang, catalog_.facts());
    const std::string id = model_of_servers();
    if (id.empty()) return;  // told
    own(r + ".model", id, id == name_ ? "hf_checkpoint" : "sglang_hf_checkpoint");
    const bool stored = !catalog_.model(id).architecture->quantization.method.empty();
    if (stored) own(r + ".weights", "auto", "hf_checkpoint");
    if (!stored && t_.megatron.on("fp16")) put(r + ".weights", "fp16", "--fp16");
    put(r + ".engine", "sglang " + version, "--rollout-num-gpus-per-engine", false);
    note(Note::Level::info, "--framework-version",
         fmt::format("{} {} is taken to run SGLang {}, which its image has", name(), name_of(t_.release), version));
    const ServerOf of{t_.server, m_.engine_gpus, m_.server_stages, m_.server_groups, m_.server_experts, id, version, source_.gpu};
    own(r + ".layout", letters_of(of, m_.rollout_gpus), "rollout_num_gpus_per_engine");
    if (m_.partial()) own(r + ".beside", std::string(m_.learner()), "rollout_num_gpus");
    if (m_.server_groups > 1)
      put(r + ".attention_data", fmt::format("{}", m_.server_groups), t_.server_flag({"data-parallel-size", "dp-size"})->written);
    const char* asleep = m_.backs_up || serves_adapters(t_) ? "1" : "2";
    if (m_.colocated) put("rollout.sleep", m_.offload_rollout ? asleep : "0", "--colocate");
    if (serves_adapters(t_)) append(slots_of_adapters(t_, r));
    serve(r, of);
  }
  static std::string letters_of(const ServerOf& of, std::int64_t gpus) {
    std::string out = fmt::format("d{}t{}", std::max<std::int64_t>(1, gpus / of.engine_gpus),
                                  std::max<std::int64_t>(1, of.engine_gpus / of.stages));
    if (of.stages > 1) out += fmt::format("p{}", of.stages);
    if (of.experts > 1) out += fmt::format("e{}", of.experts);
    return out;
  }
  void serve(const std::string& role, const ServerOf& of) {
    ServerSettings said = server_settings(t_, of, catalog_);
    text_.problems.insert(text_.problems.end(), said.problems.begin(), said.problems.end());
    t_.told.notes.insert(t_.told.notes.end(), said.notes.begin(), said.notes.end());
    for (Setting& s : said.settings) s.key = fmt::format("{}.{}", role, s.key);
    text_.settings.insert(text_.settings.end(), said.settings.begin(), said.settings.end());
  }
  /// --sglang-hf-checkpoint of Relax: the trainer's model, stored in another format (relax/distributed/ray/rollout.py:
  /// ModelConfig).
  std::string model_of_servers() {
    if (!t_.own.has("sglang_hf_checkpoint")) return name_;
    Served servers;
    servers.model = t_.own.text("sglang_hf_checkpoint");
    servers.flag = t_.own.place("sglang_hf_checkpoint");
    std::string id = model_beside(servers);
    if (id.empty()) return id;
    const auto one = catalog_.model(name_).architecture, other = catalog_.model(id).architecture;
    if (one->hidden == other->hidden && one->vocab == other->vocab && one->layers() == other->layers()) return id;
    text_.problems.push_back({place(servers.flag),
                              id,
                              fmt::format("{} in another format", name_),
                              {},
                              "not supported yet: servers of another model than the trainer's",
                              ProblemKind::not_supported});
    return {};
  }
  /// A judge, a teacher: servers of another model.
  void beside(const Served& server) {
    const std::string& r = server.name;
    const std::string id = model_beside(server);
    if (id.empty()) return;  // told
    text_.roles.push_back({server.kind, place(server.flag), r});
    const std::string version = server_version(t_.family->framework, name_of(t_.release), EngineKind::sglang, catalog_.facts());
    const ServerOf of{server.flags,
                      server.engine_gpus,
                      server.stages,
                      server.groups,
                      server.experts,
                      id,
                      version,
                      source_.gpu,
                      server.flag,
                      server.engine_flag,
                      server.kind == RoleKind::teacher ? std::string(t_.family->second_servers) : "--sglang-"};
    put(r + ".model", id, server.flag);
    if (!catalog_.model(id).architecture->quantization.method.empty()) put(r + ".weights", "auto", server.flag);
    put(r + ".engine", "sglang " + version, server.engine_flag, false);
    put(r + ".layout", letters_of(of, server.gpus), server.engine_flag);
    if (server.groups > 1) put(r + ".attention_data", fmt::format("{}", server.groups), server.flag);
    if (server.shares) {
      put(r + ".beside", "actor", "--colocate");
      if (server.first_gpu > 0) put(r + ".first_gpu", fmt::format("{}", server.first_gpu), "--resource");
      put(r + ".sleep", fmt::format("{}", server.sleep), "--colocate");
    }
    if (server.score_chunk > 0)
      put(r + ".score_chunk", fmt::format("{}", server.score_chunk), "SGLANG_LOGITS_PROCESSER_CHUNK_SIZE");
    serve(r, of);
  }
  /// "": told.
  std::string model_beside(const Served& server) {
    try {
      return catalog_.model(server.model).id;
    } catch (InputError& e) {
      auto taken = checkpoint_of_folder(server.model, 0, catalog_);
      if (!taken) taken = tuned_checkpoint(server.model, catalog_);
      if (taken) {
        note(Note::Level::warning, server.flag,
             fmt::format("no folder {} here: taken as {}{}{}", server.model, taken->id, taken->how.empty() ? "" : ", ",
                         taken->how));
        return taken->id;
      }
      for (Problem p : e.problems) {
        p.place = place(server.flag);
        p.why += "; a model of the same shape may be named in its place";
        text_.problems.push_back(std::move(p));
      }
      return {};
    }
  }

  void append(std::vector<Setting> settings) {
    text_.settings.insert(text_.settings.end(), std::make_move_iterator(settings.begin()),
                          std::make_move_iterator(settings.end()));
  }

  // ---- trainers

  /// A critic is a process of its own on the actor's GPUs; only one of both is awake (slime/ray/placement_group.py, train.py).
  void trainers() {
    if (by_fsdp(t_)) return by_fsdp_units();
    learner(std::string(m_.learner()), m_.supervised ? RoleKind::trainer : RoleKind::actor);
    if (!m_.critic) return;
    learner("critic", RoleKind::critic);
    put("critic.beside", "actor", "--advantage-estimator", false);
    note(Note::Level::info, "--advantage-estimator",
         "the critic is made of the actor's flags and checkpoint, with a head of one column; one of both is on the GPUs at a "
         "time");
  }

  /// The FSDP backend: a reference is a model of its own, whose parameters come from the host unit by unit
  /// (slime/backends/fsdp_utils/actor.py: _create_ref_model).
  void by_fsdp_units() {
    text_.roles.push_back({RoleKind::actor, place("--actor-num-gpus-per-node")});
    own("actor.model", name_, "hf_checkpoint");
    append(fsdp_settings(t_, m_, "actor"));
    if (m_.colocated) put("actor.beside", "rollout", "--colocate");
    if (m_.serves && t_.own.whole("update_weight_buffer_size"))
      own("sync.bucket", fmt::format("{}B", t_.own.whole_or("update_weight_buffer_size", 0)), "update_weight_buffer_size");
    if (t_.own.text("train_env_vars").find("expandable_segments:True") != std::string::npos)
      own("expandable_segments", "true", "train_env_vars");
    batch("actor");
    tell("actor");
    if (!m_.reference) return;
    text_.roles.push_back({RoleKind::reference, place(t_.own.place("ref_load")), "ref"});
    put("ref.model", name_, "--hf-checkpoint", false);
    append(fsdp_settings(t_, m_, "ref"));
  }

  /// What its loop does besides the passes of training.
  void passes(const std::string& role, RoleKind kind) {
    if (const Bytes free = t_.family->emptied_below != nullptr ? t_.family->emptied_below(t_) : 0; free > 0)
      put(role + ".empty_cache_below", fmt::format("{}B", free), "--enable-cuda-memory-check", false);
    if (kind != RoleKind::critic && !m_.supervised &&
        (!m_.swaps || takes_log_probs_of_training() || takes_log_probs_of_servers()))
      put(role + ".log_prob_pass", "false", batch_flag(), false);
  }
  void learner(const std::string& role, RoleKind kind) {
    text_.roles.push_back({kind, place("--actor-num-gpus-per-node")});
    own(role + ".model", text_alone_ ? name_ + std::string(kTextAlone) : name_, "hf_checkpoint");
    of_megatron(t_.megatron, m_.run, role);
    bridged(role);
    if (m_.colocated && !m_.partial() && kind != RoleKind::critic) put(role + ".beside", "rollout", "--colocate");
    if (!m_.supervised || m_.serves) put(role + ".offload", m_.offload_train ? "[parameters, optimizer]" : "[]", "--colocate");
    host(role, kind);
    passes(role, kind);
    append(adapters_of(t_, role));
    if (t_.own.has("use_stateless_adam") && t_.own.on("use_stateless_adam"))
      own(role + ".stateless_adam", "true", "use_stateless_adam");
    if (t_.megatron.on("fp16"))
      note(Note::Level::info, "--fp16", "counted as bf16, which has its size; the factor of the loss is a few numbers");
    if (m_.serves && kind != RoleKind::critic) update();
    append(predicted_of(t_, role));
    append(frozen_of(t_, *catalog_.model(name_).architecture, role));
    loss(role);
    if (t_.family->learner != nullptr && kind != RoleKind::critic)
      for (const OwnSetting& setting : t_.family->learner(t_, m_)) own(role + "." + setting.knob, setting.value, setting.flag);
    batch(role);
    if (kind != RoleKind::critic) tell(role);
  }

  /// Megatron's settings of a role. Batches and the loss are the framework's.
  void of_megatron(const megatron::Arguments& arguments, const megatron::Run& run, const std::string& role) {
    megatron::RoleSettings said = megatron::settings_of(arguments, run, role, t_.told);
    std::erase_if(said.settings, [](const Setting& s) {
      return s.key.ends_with(".micro_batches") || s.key.ends_with(".sequences_per_micro_batch") ||
             s.key.ends_with(".sequence_tokens") || s.key.ends_with(".cross_entropy") || s.key.ends_with(".attention_mask");
    });
    text_.settings.insert(text_.settings.end(), said.settings.begin(), said.settings.end());
  }

  /// What Megatron-Bridge's provider says, and no argument of Megatron's. An older state hands fewer of them on
  /// (relax/backends/megatron/model_provider.py: bridge_keys; redai-infra/Relax dc58aeb4, redai-studio/Relax 0011f56b).
  void bridged(const std::string& role) {
    if (!is_made_by_bridge(t_)) return;
    own(role + ".models_by", "megatron-bridge", "megatron_to_hf_mode");
    const auto of_provider = [&](const Setting& s) {
      const bool older = !t_.release.since("2026.08");
      return s.key == role + ".activation_fusion" ||
             (older && (s.key == role + ".permute_fusion" || s.key == role + ".gradient_accumulation_fusion" ||
                        s.key == role + ".grouped_experts" || s.key == role + ".masked_softmax_fusion"));
    };
    std::erase_if(text_.settings, of_provider);
    in_16_bits(role);
    const Own& o = t_.own;
    if (o.on("freeze_vision_model") && !o.on("only_train_params_name_list") && !o.on("freeze_params_name_list"))
      own(role + ".vision.train", o.on("freeze_vision_projection") ? "none" : "projector", "freeze_vision_model");
  }

  /// redai-studio/Relax 0011f56b is the first that hands fp8 to the provider; 07d5d193 and those before do not. Parameters in 8
  /// bits would change more than the model.
  void in_16_bits(const std::string& role) {
    if (!t_.megatron.has("fp8") || t_.megatron.on("fp8_param_gather") || t_.release.since("2026.09")) return;
    constexpr std::array<std::string_view, 5> kNarrow{"fp8_recipe", "fp8_param_gather", "bf16_layers_at_start",
                                                      "bf16_layers_at_end", "router_padding"};
    std::erase_if(text_.settings, [&](const Setting& s) {
      return std::ranges::any_of(kNarrow, [&](std::string_view knob) { return s.key == fmt::format("{}.{}", role, knob); });
    });
    if (role == m_.learner())
      note(Note::Level::warning, t_.megatron.place("fp8"),
           "has no effect: Relax does not hand it to Megatron-Bridge, whose products stay in 16 bits");
  }

  /// Images of a micro-batch, which the text says nothing of but that there are some.
  void images(const std::string& role, std::int64_t tokens) {
    if (t_.family->image_size == nullptr || !is_made_by_bridge(t_)) return;
    const bool asked = t_.own.on("multimodal_keys");
    if (said_.none || (!asked && said_.width == 0)) return;
    const std::string flag = asked ? t_.own.place("multimodal_keys") : "--image-size";
    if (token_side_ == 0) {
      if (role == m_.learner())
        text_.problems.push_back({place(flag), name_, "a model with a vision tower", {}, "this one sees no images"});
      return;
    }
    const std::int64_t length = longest();
    const std::int64_t count = length > 0 ? std::max<std::int64_t>(1, tokens / length) : 1;
    if (asked && has_videos(t_)) return videos(role, count, tokens);
    put(role + ".vision.images", fmt::format("{}", count), flag);
    // redai-studio/Relax 0011f56b is the first that says it to the provider
    if (t_.own.on("vision_dp_when_tp") && role == m_.learner())
      note(Note::Level::warning, t_.own.place("vision_dp_when_tp"),
           "has no effect: Megatron-Bridge's models have no such setting, and every rank runs the tower on all images");
    if (said_.width == 0) return capped_images(role);
    put(role + ".vision.width", fmt::format("{}", said_.width), "--image-size");
    put(role + ".vision.height", fmt::format("{}", said_.height), "--image-size");
  }

  /// --image-max-token-num makes larger ones smaller (relax/utils/multimodal/image_utils.py: fetch_image).
  void capped_images(const std::string& role) {
    const std::int64_t most = t_.own.whole_or("image_max_token_num", 0), prompt = m_.supervised ? longest() : prompt_;
    if (most <= 0 || token_side_ == 0 || (prompt > 0 && most >= prompt)) return;
    std::int64_t side = 1;
    while ((side + 1) * (side + 1) <= most) ++side;
    for (const char* knob : {".vision.width", ".vision.height"})
      own(role + knob, fmt::format("{}", side * token_side_), "image_max_token_num");
  }

  /// Of every sample one, as long as a prompt allows: each two frames pass the tower as an image does.
  void videos(const std::string& role, std::int64_t samples, std::int64_t tokens) {
    const std::int64_t all = m_.supervised ? longest() : prompt_;
    const Frames video = frames_of(t_, said_, token_side_, all > 0 ? all : tokens);
    put(role + ".vision.images", fmt::format("{}", samples * video.pairs), t_.own.place("multimodal_keys"));
    put(role + ".vision.width", fmt::format("{}", video.width), video.flag);
    put(role + ".vision.height", fmt::format("{}", video.height), video.flag);
    if (role == m_.learner())
      note(Note::Level::info, t_.own.place("multimodal_keys"),
           fmt::format("a sample is taken to have a video of {} frames, {} x {} pixels: as long as a prompt of {} tokens allows. "
                       "--image-size says how large frames of yours are",
                       2 * video.pairs, video.width, video.height, all > 0 ? all : tokens));
  }

  /// Weights alone, on GPUs of its own: what its engine would do in training is not asked.
  void forward(const Forward& role) {
    text_.roles.push_back({RoleKind::reference, place("--resource"), role.name});
    own(role.name + ".model", name_, "hf_checkpoint");
    const std::size_t before = text_.settings.size();
    of_megatron(role.arguments, role.run, role.name);
    bridged(role.name);
    constexpr std::array<std::string_view, 10> kOfTraining{
        "optimizer", "distributed_optimizer", "gradient_", "defer_", "wgrad_", "precision", "exp_avg", "fp32_", "overlap_",
        "recompute"};
    const auto of_training = [&](const Setting& s) {
      const std::string_view knob = std::string_view(s.key).substr(role.name.size() + 1);
      return std::any_of(kOfTraining.begin(), kOfTraining.end(), [&](std::string_view k) { return knob.starts_with(k); });
    };
    const auto first = text_.settings.begin() + static_cast<std::ptrdiff_t>(before);
    text_.settings.erase(std::remove_if(first, text_.settings.end(), of_training), text_.settings.end());
    if (const std::int64_t rank = t_.own.whole_or("lora_rank", 0); rank > 0)
      text_.problems.push_back({place("--lora-rank"),
                                fmt::format("{} of {}", rank, role.name),
                                "0, or no role of its own for log-probs",
                                {},
                                "not supported yet: adapters of a role that is not trained",
                                ProblemKind::not_supported});
    // get_model(wrap_with_ddp=role in ["actor", "critic"]) (relax/backends/megatron/model.py: setup_model_and_optimizer)
    put(role.name + ".wrap_with_ddp", "false", "--resource", false);
    loss(role.name);
    const std::int64_t each = std::max<std::int64_t>(1, longest());
    const std::int64_t budget = role.tokens > 0 ? std::max(role.tokens * role.run.context, each) : each;
    put(role.name + ".tokens_per_micro_batch", fmt::format("{}", padded(budget, role.run)), "--ref-actor-config");
    images(role.name, budget);
  }

  /// Sets of weights that TensorBackuper has, and the margin of torch_memory_saver (slime/backends/megatron_utils/actor.py:
  /// init). A critic returns in front of it.
  void host(const std::string& role, RoleKind kind) {
    const Own& o = t_.own;
    std::int64_t sets = 1 + (m_.reference ? 1 : 0) + (m_.teacher ? 1 : 0);
    const char* why = m_.teacher ? "opd_type" : m_.reference ? (o.on("use_kl_loss") ? "use_kl_loss" : "kl_coef") : "colocate";
    if (o.on("keep_old_actor")) {
      sets += o.whole_or("update_weights_interval", 1) == 1 ? 2 : 1;
      why = "keep_old_actor";
    }
    const bool by_loss = o.text("loss_type") == "dpo" && !o.on("dpo_reference_free");
    if (by_loss || o.text("sft_objective") == "dpo") {  // its reference
      ++sets;
      why = by_loss ? "loss_type" : "sft_objective";
    }
    if (o.has("enable_weights_backuper") && !o.on("enable_weights_backuper")) {
      sets = 0;
      why = "enable_weights_backuper";
    }
    // without another use of them (relax/engine/sft/runtime.py: should_skip_mtp_only_weight_management, 07d5d193)
    if (m_.supervised && sets == 1 && o.on("mtp_only_training") && !m_.offload_train && !o.has("sft_predict_interval")) {
      sets = 0;
      why = "mtp_only_training";
    }
    if (kind == RoleKind::critic) sets = 0;
    put(role + ".weights_on_host", fmt::format("{}", sets), t_.own.place(why), o.given(why));
    const bool selective = m_.offload_train && o.on("selective_offload");
    if (selective) own(role + ".selective_offload", "true", "selective_offload");
    if (const auto margin = o.whole("train_memory_margin_bytes"); margin && *margin > 0 && m_.offload_train && !selective)
      own(role + ".memory_margin", fmt::format("{}B", *margin), "train_memory_margin_bytes");
  }
  void update() {
    if (m_.supervised) own("sync.by", m_.colocated ? "ipc" : "nccl", "sft_predict_interval");  // in front of predictions
    if (t_.own.text("megatron_to_hf_mode") == "bridge") own("sync.bridge", "true", "megatron_to_hf_mode");
    if (t_.family->update != nullptr)
      for (const UpdateSetting& setting : t_.family->update(t_)) own(setting.knob, setting.value, setting.flag);
    if (const auto bytes = t_.own.whole("update_weight_buffer_size"))
      own("sync.bucket", fmt::format("{}B", *bytes), "update_weight_buffer_size");
  }

  /// slime/backends/megatron_utils/loss.py: get_log_probs_and_entropy, of 0.2.4 sample by sample, of 0.3.0 of a copy.
  std::string loss_of(Release release) const {
    if (t_.family->loss != nullptr) return std::string(t_.family->loss(release));
    if (release.since("0.3.0")) return release.since("0.3.1") ? "slime" : "slime_whole";
    return release.since("0.2.2") ? "slime_samples" : "slime_divided";
  }
  void loss(const std::string& role) {
    const Own& o = t_.own;
    put(role + ".cross_entropy", loss_of(t_.release), "--loss-type", false);
    if (t_.int4_training && t_.megatron.has("num_experts") && t_.megatron.on("moe_grouped_gemm"))
      put(role + ".int4_experts", "true", "OPEN_TRAINING_INT4_FAKE_QAT_FLAG");
    put(role + ".attention_mask", "false", "--loss-type", false);  // packed sequences have none (model.py: forward_step)
    if (const std::int64_t chunk = o.whole_or("log_probs_chunk_size", -1); chunk > 0)
      own(role + ".log_probs_chunk_size", fmt::format("{}", chunk), "log_probs_chunk_size");
    if (m_.supervised && o.on("sft_chunked_logits")) {
      constexpr std::int64_t kRows = 1024;  // also in place of 0 and less (relax/backends/megatron/loss.py)
      const std::int64_t rows = o.whole_or("sft_logits_chunk_size", kRows);
      own(role + ".head_chunk_size", fmt::format("{}", rows > 0 ? rows : kRows), "sft_chunked_logits");
    }
    if (o.on("recompute_loss_function")) own(role + ".recompute_loss_function", "true", "recompute_loss_function");
    if (const double t = o.number("rollout_temperature", 1); t != 1)
      own(role + ".rollout_temperature", fmt::format("{}", t), "rollout_temperature");
    if (o.number("entropy_coef", 0) != 0 && !m_.supervised) own(role + ".entropy_loss", "true", "entropy_coef");
  }

  /// A micro-batch packs what fits; a longer sample goes alone. Then a rank's part is padded (slime/utils/dp_schedule.py,
  /// slime/backends/megatron_utils/data.py: get_batch).
  void batch(const std::string& role) {
    const Own& o = t_.own;
    const std::int64_t context = m_.run.context, ranks = std::max<std::int64_t>(1, m_.run.data);
    const bool dynamic = o.on("use_dynamic_batch_size");
    const std::int64_t each = std::max<std::int64_t>(1, longest());
    const std::int64_t sequences = t_.megatron.whole_or("micro_batch_size", 1);
    if (!dynamic && m_.supervised && longest() == 0) {
      text_.problems.push_back({place("--micro-batch-size"),
                                fmt::format("{}", sequences),
                                "--use-dynamic-batch-size",
                                {},
                                "not supported yet: supervised training by numbers of samples, whose lengths no flag says; "
                                "--sequence-tokens of oomplan does",
                                ProblemKind::not_supported});
      return;
    }
    if (o.text("qkv_format") == "bshd" && longest() > 0) return padded_batch(role, sequences, each);
    std::int64_t budget = dynamic ? dealt_out(o.whole_or("max_tokens_per_gpu", 1) * context) : sequences * each;
    const std::int64_t fit = longest() == 0 ? 1 : dynamic ? std::max<std::int64_t>(1, budget / each) : sequences;
    budget = std::max(budget, each);
    if (m_.global_batch > 0 && longest() > 0) budget = std::min(budget, m_.global_batch * each);
    const std::string tokens = fmt::format("{}", padded(budget, m_.run));
    images(role, budget);
    if (dynamic) {
      own(role + ".tokens_per_micro_batch", tokens, "max_tokens_per_gpu");
      log_prob_budget(role, budget);
    } else {
      put(role + ".tokens_per_micro_batch", tokens, t_.megatron.place("micro_batch_size"));
    }
    if (m_.global_batch == 0 && !m_.supervised) return;
    // of samples whose lengths no flag says each may go alone: the most that can be in flight
    const std::int64_t all = (m_.global_batch + fit - 1) / fit;
    const std::int64_t group = m_.run.chunks > 1 ? m_.run.pipeline : 1;  // build_dp_schedule: a multiple of it
    const std::int64_t each_rank = std::max<std::int64_t>(1, (all + ranks - 1) / ranks);
    put(role + ".micro_batches", fmt::format("{}", (each_rank + group - 1) / group * group), batch_flag(), false);
  }

  /// Samples of a micro-batch as long as the longest of the rollout (actor.py: max_seq_lens), and then in two chunks for every
  /// rank of a context (data.py: get_batch).
  void padded_batch(const std::string& role, std::int64_t sequences, std::int64_t each) {
    const auto up = [](std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; };
    const std::int64_t unit = m_.run.tensor * std::max<std::int64_t>(1, t_.own.whole_or("data_pad_size_multiplier", 128));
    const std::int64_t tokens = up(up(each, unit), m_.run.context > 1 ? 2 * m_.run.context : 1);
    put(role + ".sequences_per_micro_batch", fmt::format("{}", sequences), t_.megatron.place("micro_batch_size"));
    put(role + ".sequence_tokens", fmt::format("{}", tokens), t_.own.place("qkv_format"));
    if (m_.global_batch == 0 && !m_.supervised) return;
    const std::int64_t at_once = std::max<std::int64_t>(1, m_.run.data) * std::max<std::int64_t>(1, sequences);
    const std::int64_t group = m_.run.chunks > 1 ? m_.run.pipeline : 1;
    put(role + ".micro_batches",
        fmt::format("{}", up(std::max<std::int64_t>(1, (m_.global_batch + at_once - 1) / at_once), group)), batch_flag(), false);
  }
  /// dynamic_cp_split_data (relax/backends/megatron/cp_utils.py): samples that are no longer than a rank's budget M are dealt out
  /// among the c ranks of a context by their lengths. c + 1 of them that fill c M give one rank two, 2 c / (c + 1) M. Linear
  /// attention has most where one sample takes all ranks: each has all of its tokens.
  std::int64_t dealt_out(std::int64_t budget) {
    const std::int64_t ranks = m_.run.context;
    if (!t_.own.on("dynamic_context_parallel") || ranks < 2 || linear_) return budget;
    const std::int64_t most = budget * 2 * ranks / (ranks + 1);
    note(Note::Level::info, t_.own.place("dynamic_context_parallel"),
         fmt::format("short samples are dealt out among {} ranks by their lengths: one of them can have {} tokens in place of {}",
                     ranks, most / ranks, budget / ranks));
    return most;
  }

  std::int64_t padded(std::int64_t budget, const megatron::Run& run) const {
    if (by_fsdp(t_)) return budget;
    // Megatron-Bridge's models with a tower pack sequences themselves then (relax/backends/megatron/data.py: get_batch)
    const bool bridge = is_made_by_bridge(t_) && token_side_ > 0 && run.context > 1;
    const std::int64_t multiple = bridge ? 2 : std::max<std::int64_t>(1, t_.own.whole_or("data_pad_size_multiplier", 128));
    const std::int64_t unit = run.context * run.tensor * multiple;
    return (budget + unit - 1) / unit * unit;
  }
  /// Passes of weights that are swapped in have it (relax/backends/megatron/actor.py: train_actor).
  void log_prob_budget(const std::string& role, std::int64_t budget) {
    const auto tokens = t_.own.whole("log_probs_max_tokens_per_gpu");
    if (!t_.family->log_prob_budget || !tokens || !m_.swaps || !(m_.reference || m_.teacher)) return;
    std::int64_t own_budget = std::max(*tokens * m_.run.context, budget);
    if (m_.global_batch > 0) own_budget = std::min(own_budget, m_.global_batch * std::max<std::int64_t>(1, longest()));
    if (own_budget > budget)
      own(role + ".logprob_tokens_per_micro_batch", fmt::format("{}", padded(own_budget, m_.run)),
          "log_probs_max_tokens_per_gpu");
  }

  /// What the answer rests on, and what is not in it.
  void tell(const std::string& role) {
    if (!t_.family->timers.empty() && !m_.supervised) note(Note::Level::info, "", std::string(t_.family->timers));
    if (m_.reference && m_.swaps && !by_fsdp(t_))
      note(Note::Level::info, t_.own.on("use_kl_loss") ? "--use-kl-loss" : "--kl-coef",
           fmt::format("the reference's weights take the place of the actor's for their pass: {}.log_probs is both", role));
    if (m_.teacher && m_.swaps)
      note(Note::Level::info, "--opd-type",
           fmt::format("the teacher's weights take the place of the actor's for their pass: {}.log_probs is both", role));
    if (takes_log_probs_of_training())
      note(Note::Level::info, batch_flag(),
           fmt::format("{} takes the log-probs of the training pass, and runs no pass for them: {}.log_probs is not there",
                       name(), role));
    if (takes_log_probs_of_servers())
      note(Note::Level::info, t_.own.place("use_rollout_logprobs"),
           fmt::format("{} takes the log-probs of its servers, and runs no pass for them: {}.log_probs is not there", name(),
                       role));
    if (t_.own.has("log_probs_max_tokens_per_gpu") && !t_.family->log_prob_budget)
      note(Note::Level::warning, t_.own.place("log_probs_max_tokens_per_gpu"),
           fmt::format("{} reads it nowhere: log-probs have the budget of training", name()));
    if (t_.own.has("custom_config_path") && (!source_.open || !source_.open(t_.own.text("custom_config_path"))))
      note(Note::Level::warning, t_.own.place("custom_config_path"), "its values replace flags, and are not read");
  }
  /// can_reuse_log_probs_in_loss (slime/backends/megatron_utils/actor.py: train_actor, 0.3.0 on): one step a rollout, and nobody
  /// else asks for them.
  bool takes_log_probs_of_training() const {
    const Own& o = t_.own;
    const std::int64_t all = o.whole_or("rollout_batch_size", 0) * o.whole_or("n_samples_per_prompt", 1);
    const bool asked = m_.reference || m_.teacher || m_.critic || o.on("use_opd") || o.on("keep_old_actor") ||
                       o.on("use_rollout_logprobs") || o.on("get_mismatch_metrics");
    return t_.family->reuses_log_probs && t_.release.since("0.3.0") && !m_.supervised && m_.serves && m_.global_batch == all &&
           !asked && o.text("advantage_estimator") != "gspo";
  }

  /// slime/backends/megatron_utils/actor.py: train_actor, 0.2.0 on; relax/backends/megatron/actor.py: train_actor, train_hybrid.
  bool takes_log_probs_of_servers() const {
    return !by_fsdp(t_) && t_.own.on("use_rollout_logprobs") && !t_.own.on("get_mismatch_metrics") && !m_.supervised &&
           m_.trains && !m_.reference && !m_.teacher;
  }

  // ---- the reading

  Reading reading(const std::shared_ptr<const Architecture>& architecture) {
    const std::vector<Setting> settings = text_.settings;
    const auto rename = [&](Place& at) {
      for (const Setting& s : settings)
        if (s.key == at.path && !s.origin.place.path.empty()) at = s.origin.place;
    };
    try {
      Reading out = architecture != nullptr ? reading_of(std::move(text_), t_.told.file, catalog_, architecture)
                                            : reading_of(std::move(text_), t_.told.file, catalog_);
      for (Note& note : out.notes) rename(note.place);
      // where a model is named: what no tape describes of it is told there, behind the reading (estimate/role_run)
      for (const Role& role : out.job.roles)
        if (const auto at = out.job.origins.find(role.name + ".model"); at != out.job.origins.end()) rename(at->second.place);
      out.notes.insert(out.notes.begin(), t_.told.notes.begin(), t_.told.notes.end());
      return out;
    } catch (InputError& e) {
      std::vector<Problem> problems = e.problems;
      for (Problem& p : problems) rename(p.place);
      throw InputError(std::move(problems));
    }
  }

  const Source& source_;
  const Catalog& catalog_;
  const ImagesSaid said_;
  SlimeText t_;
  SlimeMeaning m_;
  NativeText text_;
  std::string name_;         ///< of the model
  bool stored_ = false;      ///< its checkpoint is quantised
  bool linear_ = false;      ///< it has linear attention
  bool text_alone_ = false;  ///< the trainer has its text alone
  std::int64_t prompt_ = 0, response_ = 0;
  std::int64_t token_side_ = 0;  ///< pixels of an image's token; 0: the model sees none
};

}  // namespace

Reading read_job(const Family& family, const Source& source, const Catalog& catalog) {
  return JobWriter(family, source, catalog).run();
}

}  // namespace oomplan::slime
