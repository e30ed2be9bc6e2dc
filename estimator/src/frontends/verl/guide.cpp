#include "frontends/verl/guide.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/verl/meaning_parts.hpp"
#include "frontends/verl/spell.hpp"

namespace oomplan::verl {
namespace {

constexpr const char* kOn = "it is so already";

class GuideReader {
 public:
  GuideReader(const VerlText& text, const VerlMeaning& m) : text_(text), m_(m) {
    megatron_ = m.text("roles.actor.engine") == "megatron";
  }

  std::vector<GuidePoint> run() {
    rollout();
    padding();
    batches();
    dynamic_batches();
    ulysses();
    liger();
    prefetch();
    gradients();
    entropy();
    return std::move(out_);
  }

 private:
  static std::string arr(std::string_view key) { return fmt::format("{}.{}", kArr, key); }
  const compose::Node* at(const std::string& key) const { return text_.root.at(key); }
  bool is_true(const std::string& key) const {
    const auto* n = at(key);
    return n != nullptr && n->kind == compose::Node::Kind::boolean && n->boolean;
  }
  std::string set(const std::string& key, FactValue value) const {
    return override_text({key, std::move(value), at(key) == nullptr});
  }
  void point(std::string section, std::string text, std::vector<std::string> overrides, std::string why) {
    GuidePoint& p = out_.emplace_back();
    p.section = std::move(section);
    p.text = std::move(text);
    p.overrides = std::move(overrides);
    p.why = std::move(why);
  }
  /// A switch that is to be on; nothing to do where it is, or where the release or the engine has no such key.
  void turn_on(const std::string& section, const std::string& text, const std::string& key, const std::string& cost,
               const char* engine = nullptr) {
    if (engine != nullptr && megatron_) return point(section, text, {}, engine);
    if (at(key) == nullptr) return point(section, text, {}, fmt::format("verl {} has no {}", name_of(text_.release), key));
    if (is_true(key)) return point(section, text, {}, kOn);
    point(section, text, {set(key, true)}, cost);
  }
  std::string engine_block() const { return arr(megatron_ ? "actor.megatron" : "actor.fsdp_config"); }

  void rollout() {
    const std::string section = "1. rollout";
    const ToldFact* f = m_.find("roles.rollout.memory_fraction");
    const double fraction = f == nullptr            ? 0.5
                            : f->value.is_integer() ? static_cast<double>(f->value.integer())
                                                    : f->value.real();
    const std::string key = arr("rollout.gpu_memory_utilization");
    if (fraction > 0.5)
      point(section, "gpu_memory_utilization of 0.5 to 0.7 where states stay on the GPU", {set(key, 0.5)},
            "a smaller KV cache: fewer requests at once");
    else
      point(section, "gpu_memory_utilization of 0.5 to 0.7 where states stay on the GPU", {}, kOn);
    const bool offloads = is_true(engine_block() + ".param_offload") && is_true(engine_block() + ".optimizer_offload");
    if (offloads && fraction < 0.8)
      point(section, "... of 0.8 to 0.9 where they are offloaded", {set(key, 0.8)},
            "a larger KV cache: it needs more, and is faster");
    halve_of_server(section, "smaller max_num_seqs", "roles.rollout.max_running_requests", "max_num_seqs", 128,
                    "fewer requests at once");
    halve_of_server(section, "smaller max_num_batched_tokens, above 2,048", "roles.rollout.max_batched_tokens",
                    "max_num_batched_tokens", 4096, "longer prefills");
    const std::int64_t tensor = m_.whole("roles.rollout.layout.tp", 1), gpus = m_.whole("roles.rollout.gpus", 1);
    if (2 * tensor <= std::min<std::int64_t>(8, gpus) && gpus % (2 * tensor) == 0)
      point(section, "a larger tensor_model_parallel_size", {set(arr("rollout.tensor_model_parallel_size"), 2 * tensor)},
            "fewer replicas, and an exchange in every layer");
    turn_on(section, "no CUDA graphs, which stay on the GPU", arr("rollout.enforce_eager"), "slower decoding");
  }
  /// `least`: where it is no larger, the guide says nothing.
  void halve_of_server(const std::string& section, const std::string& text, const std::string& fact, const char* key,
                       std::int64_t least, const std::string& cost) {
    const std::int64_t now = m_.whole(fact, 0);
    if (now == 0) return point(section, text, {}, fmt::format("verl leaves {} to the server's own default", key));
    if (now <= least) return point(section, text, {}, kOn);
    point(section, text, {set(arr(fmt::format("rollout.{}", key)), now / 2)}, cost);
  }
  void padding() { turn_on("2. remove padding", "pack sequences", arr("model.use_remove_padding"), "nothing"); }
  /// Halves what a micro-batch of the role holds.
  void halve(const std::string& section, const std::string& text, const std::string& batch, const std::string& tokens,
             const std::string& sequences) {
    const bool dynamic = m_.flag(batch + ".dynamic");
    const std::string key = dynamic ? tokens : sequences;
    const std::int64_t now = m_.whole(batch + (dynamic ? ".tokens_per_gpu" : ".sequences_per_data_parallel_rank"));
    const std::int64_t longest = m_.whole("job.max_prompt_length") + m_.whole("job.max_response_length");
    if (now < 2 || (dynamic && now / 2 < longest))
      return point(section, text, {}, dynamic ? "the budget holds the longest sequence only" : "it is one sequence already");
    point(section, text, {set(key, now / 2)}, "more micro-batches: a longer step");
  }
  void batches() {
    const std::string section = "3. batch sizes", fsdp = "it acts on FSDP alone";
    halve(section, "smaller micro-batches of the actor", "roles.actor.micro_batch", arr("actor.ppo_max_token_len_per_gpu"),
          arr("actor.ppo_micro_batch_size_per_gpu"));
    if (m_.flag("job.old_logprob_pass"))
      halve(section, "smaller micro-batches of log-probs", "job.old_logprob_micro_batch",
            arr("rollout.log_prob_max_token_len_per_gpu"), arr("rollout.log_prob_micro_batch_size_per_gpu"));
    if (m_.has_role("ref"))
      halve(section, "smaller micro-batches of the reference", "roles.ref.micro_batch", arr("ref.log_prob_max_token_len_per_gpu"),
            arr("ref.log_prob_micro_batch_size_per_gpu"));
    turn_on(section, "gradient checkpointing", arr("model.enable_gradient_checkpointing"), "every layer is computed again",
            fsdp.c_str());
    turn_on(section, "activation offloading", arr("model.enable_activation_offload"), "activations cross the bus twice",
            fsdp.c_str());
    turn_on(section, "param_offload", engine_block() + ".param_offload", "parameters cross the bus for every phase");
    turn_on(section, "optimizer_offload", engine_block() + ".optimizer_offload", "states cross the bus for every step");
    // verl/workers/engine/megatron/transformer_impl.py and megatron_workers.py, 0.5 to 0.10.0, keep it and ask for it nowhere
    if (megatron_ && at(engine_block() + ".grad_offload") != nullptr)
      point(section, "grad_offload", {}, "verl parses it and does not read it: gradients follow param_offload");
  }
  void dynamic_batches() {
    const std::string section = "4. dynamic batches",
                      text = "use_dynamic_bsz with ppo_max_token_len_per_gpu of 2 x (prompt + response)";
    if (m_.flag("roles.actor.micro_batch.dynamic")) return point(section, text, {}, kOn);
    const std::int64_t longest = m_.whole("job.max_prompt_length") + m_.whole("job.max_response_length");
    point(section, text,
          {set(arr("actor.use_dynamic_bsz"), true), set(arr("rollout.log_prob_use_dynamic_bsz"), true),
           set(arr("ref.log_prob_use_dynamic_bsz"), true), set(arr("actor.ppo_max_token_len_per_gpu"), 2 * longest)},
          "nothing");
  }
  void ulysses() {
    const std::string section = "5. Ulysses", text = "a larger ulysses_sequence_parallel_size";
    if (megatron_) return point(section, text, {}, "it acts on FSDP alone; Megatron has context_parallel_size");
    const std::int64_t now = m_.whole("roles.actor.layout.cp", 1), data = m_.whole("roles.actor.layout.dp", 1);
    if (data < 2) return point(section, text, {}, "no GPU is left to share sequences with");
    point(section, text, {set(arr("actor.ulysses_sequence_parallel_size"), 2 * now)}, "an exchange of heads in every layer");
  }
  /// verl passes fused_linear_cross_entropy=False (verl/workers/engine/fsdp/transformer_impl.py, 0.10.0).
  void liger() {
    turn_on("6. Liger", "use_liger", arr("model.use_liger"),
            "nothing; its fused loss is off under verl, so logits stay as they are", "it acts on FSDP alone");
  }
  void prefetch() {
    const std::string section = "7. forward prefetch", key = engine_block() + ".forward_prefetch";
    if (megatron_) return point(section, "no forward_prefetch", {}, "it acts on FSDP alone");
    if (!is_true(key)) return point(section, "no forward_prefetch", {}, kOn);
    point(section, "no forward_prefetch", {set(key, false)}, "gathers no longer overlap");
  }
  void gradients() {
    const std::string section = "8. gradients of micro-batches",
                      key = arr("actor.fsdp_config.use_no_sync_for_gradient_accumulation");
    if (at(key) == nullptr)
      return point(section, "reduce gradients in every micro-batch", {},
                   fmt::format("verl {} has no use_no_sync_for_gradient_accumulation", name_of(text_.release)));
    if (!is_true(key)) return point(section, "reduce gradients in every micro-batch", {}, kOn);
    point(section, "reduce gradients in every micro-batch", {set(key, false)}, "one reduction for each");
  }
  void entropy() {
    const std::string section = "9. entropy", none = "the loss of this job has no entropy (entropy_coeff is 0)";
    if (!m_.flag("roles.actor.entropy_in_training")) return point(section, "chunks and a checkpoint of the entropy", {}, none);
    turn_on(section, "entropy_from_logits_with_chunking", arr("actor.entropy_from_logits_with_chunking"), "2,048 rows at a time",
            "not supported yet under Megatron");
    turn_on(section, "entropy_checkpointing", arr("actor.entropy_checkpointing"), "the entropy is computed twice",
            "it acts on FSDP alone");
  }

  const VerlText& text_;
  const VerlMeaning& m_;
  bool megatron_ = false;
  std::vector<GuidePoint> out_;
};

}  // namespace

std::vector<GuidePoint> guide_points(const VerlText& text, const VerlMeaning& m) {
  if (m.kind != "rl") return {};
  return GuideReader(text, m).run();
}

}  // namespace oomplan::verl
