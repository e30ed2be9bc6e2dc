#include "frontends/slime/spell.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/megatron/flag_table.hpp"
#include "frontends/servers/serve_known_flags.hpp"
#include "frontends/slime/fsdp.hpp"
#include "layout/letters.hpp"
#include "units/sizes.hpp"

namespace oomplan::slime {
namespace {

/// Knobs of the trainer whose value is one flag's. A switch is appended, or taken out ("~--flag").
struct Row {
  std::string_view knob, flag;
  bool is_switch = false;
};
constexpr std::array<Row, 15> kTrainer{{{"tokens_per_micro_batch", "--max-tokens-per-gpu"},
                                        {"layout", "--tensor-model-parallel-size"},
                                        {"recompute", "--recompute-granularity"},
                                        {"recompute_method", "--recompute-method"},
                                        {"recompute_layers", "--recompute-num-layers"},
                                        {"sequence_parallel", "--sequence-parallel", true},
                                        {"optimizer_cpu_offload", "--optimizer-cpu-offload", true},
                                        {"optimizer_offload_fraction", "--optimizer-offload-fraction"},
                                        {"precision_aware_optimizer", "--use-precision-aware-optimizer", true},
                                        {"log_probs_chunk_size", "--log-probs-chunk-size"},
                                        {"recompute_loss_function", "--recompute-loss-function", true},
                                        {"virtual_stages", "--num-virtual-stages-per-pipeline-rank"},
                                        {"recompute_modules", "--recompute-modules"},
                                        {"first_stage_layers", "--decoder-first-pipeline-num-layers"},
                                        {"last_stage_layers", "--decoder-last-pipeline-num-layers"}}};

const Row* row_of_trainer(std::string_view knob) {
  const auto row = std::find_if(kTrainer.begin(), kTrainer.end(), [&](const Row& r) { return r.knob == knob; });
  return row == kTrainer.end() ? nullptr : &*row;
}

/// The flag of SGLang that says a knob of a server.
const FlagRow* row_of_server(std::string_view knob) {
  for (const FlagRow& row : serve_flags(EngineKind::sglang)) {
    const bool plain = row.means == FlagMeans::text || row.means == FlagMeans::tokens || row.means == FlagMeans::on;
    if (plain && row.key == knob) return &row;
  }
  return nullptr;
}

class Speller {
 public:
  Speller(const SlimeText& text, const SlimeMeaning& m, std::string_view knob, const std::string& value, const Settings& asked)
      : t_(text), m_(m), value_(value), asked_(asked) {
    const auto dot = knob.find('.');
    role_ = knob.substr(0, dot == std::string_view::npos ? 0 : dot);
    knob_ = dot == std::string_view::npos ? knob : knob.substr(dot + 1);
  }

  Spelt run() const {
    if (role_ == m_.servers()) return server();
    if (role_ == "sync" && knob_ == "bucket") return bucket();
    if (const auto teachers = std::count_if(m_.beside.begin(), m_.beside.end(), is_teacher); role_ == "teacher" && teachers == 1)
      return teacher(*std::find_if(m_.beside.begin(), m_.beside.end(), is_teacher));
    if (role_ != m_.learner()) return no_word();
    if (knob_ == "tokens_per_micro_batch") return budget();
    if (by_fsdp(t_)) return of_fsdp();
    if (knob_ == "layout") return layout();
    if (knob_ == "recompute") return recompute();
    const Row* row = row_of_trainer(knob_);
    if (row == nullptr) return no_word();
    if (knob_ == "virtual_stages") return virtual_stages();
    if (knob_ == "recompute_modules") return modules();
    if (knob_.ends_with("_stage_layers") && value_ == "0") return without({row->flag});
    if (!row->is_switch) return one(row->flag, value_);
    if (value_ != "true") return gone(row->flag);
    Spelt out = one(row->flag, "");
    if (knob_ == "optimizer_cpu_offload" && !t_.megatron.on("use_precision_aware_optimizer"))
      out.edits.push_back({"--use-precision-aware-optimizer", ""});  // Megatron asks for it
    return out;
  }

 private:
  Spelt of_fsdp() const {
    if (knob_ == "recompute" && value_ != "full" && value_ != "none") return {{}, "its flag is for all layers or none"};
    if (knob_ == "recompute")
      return value_ == "full" ? one("--gradient-checkpointing", "") : without({"--gradient-checkpointing"});
    if (knob_ == "cpu_offload_policy") return value_ == "true" ? one("--fsdp-cpu-offload", "") : without({"--fsdp-cpu-offload"});
    if (knob_ == "offload" && stays_on_host(t_) && value_ == "[]") return {};  // said by the flag
    return {{}, fmt::format("slime's FSDP backend has no flag for {}", knob_)};
  }
  static bool is_teacher(const Served& server) { return server.kind == RoleKind::teacher; }
  static Spelt one(std::string_view flag, std::string value) { return {{{std::string(flag), std::move(value)}}, {}}; }
  static Spelt gone(std::string_view flag) { return one("~" + std::string(flag), ""); }
  /// Takes out those that the command has.
  Spelt without(std::initializer_list<std::string_view> flags) const {
    Spelt out;
    for (const std::string_view flag : flags)
      if (!said(t_, std::string(flag)).empty()) out.edits.push_back({"~" + std::string(flag), ""});
    return out;
  }
  Spelt no_word() const { return {{}, fmt::format("{} has no flag for {}", t_.family->name, knob_)}; }

  Spelt bucket() const {
    const auto bytes = read_bytes(value_);
    return bytes ? one("--update-weight-buffer-size", fmt::format("{}", *bytes.value)) : no_word();
  }
  Spelt budget() const {
    const auto tokens = read_count(value_);
    if (!tokens || !t_.own.on("use_dynamic_batch_size")) return {{}, "the micro-batches of this job count samples"};
    const std::int64_t context = context_asked();
    if (*tokens.value % context != 0) return {{}, "a budget counts the tokens of one GPU"};
    return one("--max-tokens-per-gpu", fmt::format("{}", *tokens.value / context));
  }
  /// Of the layout that is asked for beside it.
  std::int64_t context_asked() const {
    for (const auto& [key, value] : asked_)
      if (key == fmt::format("{}.layout", role_))
        if (const std::optional<Layout> to = layout_of(value)) return to->context;
    return m_.run.context;
  }
  Spelt virtual_stages() const {
    Spelt out = without({"--num-layers-per-virtual-pipeline-stage"});
    if (value_ != "1") out.edits.push_back({"--num-virtual-stages-per-pipeline-rank", value_});
    if (value_ == "1" && !said(t_, "--num-virtual-stages-per-pipeline-rank").empty())
      out.edits.push_back({"~--num-virtual-stages-per-pipeline-rank", ""});
    return out;
  }
  /// An override is one word.
  Spelt modules() const {
    std::string words = value_;
    std::erase_if(words, [](char c) { return c == '[' || c == ']' || c == ' '; });
    if (words.empty()) return without({"--recompute-modules"});
    if (words.find(',') != std::string::npos) return {{}, "several modules are not one word"};
    return one("--recompute-modules", words);
  }

  Spelt recompute() const {
    if (value_ == "none") return without({"--recompute-granularity", "--recompute-method", "--recompute-num-layers"});
    Spelt out = value_ == "full" ? Spelt() : without({"--recompute-method", "--recompute-num-layers"});
    out.edits.push_back({"--recompute-granularity", value_});
    if (value_ == "full") out.edits.insert(out.edits.end(), {{"--recompute-method", "uniform"}, {"--recompute-num-layers", "1"}});
    return out;
  }

  static std::optional<Layout> layout_of(const std::string& text) {
    if (text.find(':') != std::string::npos) return std::nullopt;
    return read_letters(text).layout;
  }
  Spelt layout() const {
    const std::optional<Layout> to = layout_of(value_);
    if (!to || to->world() != m_.actor_gpus) return {{}, fmt::format("{}'s trainer takes all of its GPUs", t_.family->name)};
    Spelt out;
    const auto set = [&](const char* flag, std::int64_t now, std::int64_t then) {
      if (now != then) out.edits.push_back({flag, fmt::format("{}", then)});
    };
    set("--tensor-model-parallel-size", m_.run.tensor, to->tensor);
    set("--pipeline-model-parallel-size", m_.run.pipeline, to->pipeline);
    set("--context-parallel-size", m_.run.context, to->context);
    set("--expert-model-parallel-size", m_.run.expert, to->expert);
    const std::int64_t split = t_.megatron.given("expert_tensor_parallel_size") ? m_.run.expert_tensor : to->tensor;
    if (t_.megatron.has("num_experts")) set("--expert-tensor-parallel-size", split, to->expert_tensor);
    return out;
  }

  Spelt server() const {
    if (knob_ == "layout") {
      const std::optional<Layout> to = layout_of(value_);
      if (!to || to->world() != m_.rollout_gpus || to->pipeline != m_.server_stages || to->expert != m_.server_experts)
        return {{}, fmt::format("{}'s servers take all of their GPUs", t_.family->name)};
      return one("--rollout-num-gpus-per-engine", fmt::format("{}", to->tensor * to->pipeline));
    }
    return of_server("--sglang-");
  }
  Spelt teacher(const Served& server) const {
    if (knob_ != "layout") return of_server(t_.family->second_servers);
    const std::optional<Layout> to = layout_of(value_);
    if (!to || to->world() != server.gpus || to->pipeline != server.stages || to->expert != server.experts) return no_word();
    return one(server.engine_flag, fmt::format("{}", to->tensor * to->pipeline));
  }
  Spelt of_server(std::string_view prefix) const {
    const FlagRow* row = row_of_server(knob_);
    if (row == nullptr || value_ == "auto") return no_word();
    const std::string flag = fmt::format("{}{}", prefix, usual_of(*row));
    if (!is_switch(row->means)) return one(flag, value_);
    return value_ == "true" ? one(flag, "") : gone(flag);
  }

  const SlimeText& t_;
  const SlimeMeaning& m_;
  const std::string& value_;
  const Settings& asked_;
  std::string_view role_, knob_;
};

}  // namespace

Spelt spell(const SlimeText& text, const SlimeMeaning& m, std::string_view knob, const std::string& value,
            const Settings& asked) {
  return Speller(text, m, knob, value, asked).run();
}

std::string flag_of(const SlimeText& text, std::string_view knob) {
  const auto dot = knob.find('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view role = knob.substr(0, dot), name = knob.substr(dot + 1);
  if (role == "rollout" || role == "server") {
    if (name == "layout") return text.own.place("rollout_num_gpus_per_engine");
    const FlagRow* row = row_of_server(name);
    return row == nullptr ? std::string() : fmt::format("--sglang-{}", usual_of(*row));
  }
  if (role == "teacher" && !text.family->second_servers.empty()) {
    const FlagRow* row = row_of_server(name);
    return row == nullptr ? std::string() : fmt::format("{}{}", text.family->second_servers, usual_of(*row));
  }
  if (by_fsdp(text)) return std::string(fsdp_flag_of(name));
  const Row* row = row_of_trainer(name);
  return row == nullptr ? std::string() : std::string(row->flag);
}

std::string said(const SlimeText& text, const std::string& flag) {
  const auto word = [](const nlohmann::json& v) { return v.is_string() ? v.get<std::string>() : v.is_null() ? "" : v.dump(); };
  if (const FsdpFlag* more = by_fsdp(text) ? fsdp_flag(flag) : nullptr)
    return !text.own.given(more->name) ? "" : more->is_switch ? "true" : text.own.text(more->name);
  if (const megatron::Flag* of_megatron = megatron::find_flag(flag))
    return text.megatron.given(of_megatron->name) ? word(text.megatron.value(of_megatron->name)) : "";
  if (const Flag* own = find_flag(text.release, flag)) return text.own.given(own->name) ? word(text.own.value(own->name)) : "";
  for (const auto& [prefix, flags] :
       {std::pair{std::string("--sglang-"), &text.server}, std::pair{std::string(text.family->second_servers), &text.second}})
    for (const ServerFlag& one : *flags)
      if (prefix + one.name == flag) return one.values.empty() ? "true" : one.values.front();
  return {};
}

}  // namespace oomplan::slime
