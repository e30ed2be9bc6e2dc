#include "job/generator_rules.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "job/kernel_sets.hpp"
#include "job/names.hpp"
#include "layout/letters.hpp"

namespace oomplan {
namespace {

class GeneratorProblems {
 public:
  GeneratorProblems(const Job& job, const Role& role) : job_(job), role_(role), t_(role.trainer) {}

  std::vector<KnobProblem> run() {
    const bool own = t_.head == LossHead::next_token || t_.head == LossHead::lm_eval;
    if (role_.kind != RoleKind::generator) {
      if (own) add("head", std::string(spelling(t_.head)), "another head", "it is a generator's");
      return std::move(out_);
    }
    if (!own) add("head", std::string(spelling(t_.head)), "next_token or lm_eval", "a generator has no loss");
    process();
    model();
    lengths();
    if (t_.kv_cache) cache();
    if (t_.layout.pipeline > 1) spread();
    return std::move(out_);
  }

 private:
  void add(std::string knob, std::string found, std::string expected, std::string why) {
    out_.push_back({std::move(knob), std::move(found), std::move(expected), std::move(why)});
  }
  void process() {
    const Layout& l = t_.layout;
    if (role_.engine != EngineKind::single)
      add("engine", std::string(spelling(role_.engine)), "single", "a generator's processes share nothing");
    if (t_.loop.of_framework)
      add("kernels", std::string(t_.loop.name), "framework: torch", "a generator is transformers' model by itself");
    if (!of_transformers(t_.kernels))
      add("kernels", std::string(spelling(t_.kernels)), "hf_flash, hf_sdpa or hf_eager", "a generator is transformers' model");
    if (l.world() != l.data * l.pipeline)
      add("layout", letters(l), "p with the GPUs over which the layers lie, and d with copies",
          "not supported yet: generators whose layers are split");
    if (t_.autocast) add("autocast", "true", "false", "not supported yet: generators under autocast");
    if (t_.lora.base.format != BaseFormat::full)
      add("lora.base", std::string(spelling(t_.lora.base.format)), "full", "not supported yet: generators of a packed model");
  }
  void model() {
    if (role_.architecture == nullptr || role_.architecture->quantization.method.empty()) return;
    add("model", fmt::format("'{}'", role_.model), "a model in 16 or 32 bits",
        fmt::format("not supported yet: generators of a checkpoint that is stored quantised ({})",
                    role_.architecture->quantization.method));
  }
  void lengths() {
    if (t_.sequences_per_micro_batch < 1)
      add("sequences_per_micro_batch", "auto", "a number of sequences", "a generator's batches are padded");
    if (t_.kv_cache && t_.head == LossHead::next_token && (job_.prompt_tokens < 1 || job_.prompt_tokens + 2 > t_.sequence_tokens))
      add("sequence_tokens", fmt::format("{} tokens, {} of them a prompt's", t_.sequence_tokens, job_.prompt_tokens),
          "prompt_tokens, and at least two more than those", "with kv_cache a prompt has a pass of its own");
  }
  void cache() {
    if (role_.architecture == nullptr) return;
    const Architecture& a = *role_.architecture;
    const auto refuse = [&](const std::string& what) { add("kv_cache", "true", "false", "not supported yet: " + what); };
    const auto cuts = [&](const LayerRun& run) {
      return run.layer.mixer.span != AttentionSpan::full && run.layer.mixer.window <= t_.sequence_tokens;
    };
    if (t_.head == LossHead::next_token && std::any_of(a.runs.begin(), a.runs.end(), cuts))
      refuse("one token's pass beside keys and values that a window has cut");
    if (t_.padding_mask && t_.kernels == Kernels::hf_flash) refuse("flash-attention's copies of padded keys and values");
  }
  void spread() {
    if (role_.architecture == nullptr) return;
    const Architecture& a = *role_.architecture;
    const bool inputs = a.per_layer_vocab > 0 || a.runs.front().layer.altup_inputs > 0;
    const bool chosen =
        std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& run) { return run.layer.mixer.index_heads > 0; });
    if (inputs || chosen)
      add("layout", letters(t_.layout), "d alone",
          fmt::format("not supported yet: the layers of '{}' on several GPUs, to which other tensors go than hidden states",
                      a.family));
  }

  const Job& job_;
  const Role& role_;
  const Trainer& t_;
  std::vector<KnobProblem> out_;
};

}  // namespace

std::vector<KnobProblem> generator_problems(const Job& job, const Role& role) { return GeneratorProblems(job, role).run(); }

}  // namespace oomplan
