#include "frontends/slime/guide.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

namespace oomplan::slime {
namespace {

constexpr const char* kOn = "it is so already";
constexpr const char* kNoTrainer = "there is no trainer";
constexpr std::int64_t kLeastTokens = 512, kChunk = 1024;  // rows of logits

}  // namespace

void GuideWriter::point(std::string section, std::string text, std::vector<std::string> flags, std::string why) {
  GuidePoint& p = out_.emplace_back();
  p.section = std::move(section);
  p.text = std::move(text);
  p.overrides = std::move(flags);
  p.why = std::move(why);
}

bool GuideWriter::has(const std::string& section, const std::string& text, const char* name) {
  if (flag_named(t_.release, name) != nullptr) return true;
  std::string flag = name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  point(section, text, {}, fmt::format("{} {} has no --{}", t_.family->name, name_of(t_.release), flag));
  return false;
}

/// Tokens of the longest sample, as far as flags say them.
std::int64_t GuideWriter::longest() const {
  const auto context = t_.own.whole("rollout_max_context_len");
  if (context) return *context;
  return t_.own.whole_or("rollout_max_response_len", 0) + t_.own.whole_or("rollout_max_prompt_len", 0);
}

void GuideWriter::recompute(std::string section) {
  const std::string text = "full recomputation, layer by layer";
  const megatron::Arguments& a = t_.megatron;
  const bool on = a.text("recompute_granularity") == "full" && a.text("recompute_method") == "uniform" &&
                  a.whole_or("recompute_num_layers", 0) == 1;
  if (!m_.trains) return point(std::move(section), text, {}, kNoTrainer);
  if (on) return point(std::move(section), text, {}, kOn);
  point(std::move(section), text, {"--recompute-granularity=full", "--recompute-method=uniform", "--recompute-num-layers=1"},
        "every layer is computed again");
}

void GuideWriter::tokens(std::string section) {
  const std::string text = "a smaller --max-tokens-per-gpu";
  const auto now = t_.own.whole("max_tokens_per_gpu");
  if (!t_.own.on("use_dynamic_batch_size") || !now)
    return point(std::move(section), text, {}, "it acts with --use-dynamic-batch-size alone");
  const std::int64_t alone = (longest() + m_.run.context - 1) / m_.run.context;
  if (alone > *now)
    return point(std::move(section), text, {},
                 fmt::format("a sample of {} tokens is longer than the budget, and goes alone", longest()));
  const std::int64_t half = std::max({*now / 2, alone, kLeastTokens});
  if (half >= *now) return point(std::move(section), text, {}, "the budget holds the longest sample only");
  point(std::move(section), text, {fmt::format("--max-tokens-per-gpu={}", half)}, "more micro-batches: a longer step");
}

void GuideWriter::tokens_of_log_probs(std::string section) {
  const std::string text = "a budget of log-probs of its own, --log-probs-max-tokens-per-gpu";
  if (!has(section, text, "log_probs_max_tokens_per_gpu")) return;
  if (!t_.family->log_prob_budget)
    return point(std::move(section), text, {},
                 fmt::format("{} reads it nowhere: log-probs have the budget of training", t_.family->name));
  const std::int64_t now = t_.own.whole_or("log_probs_max_tokens_per_gpu", t_.own.whole_or("max_tokens_per_gpu", 0));
  const std::int64_t half = std::max(now / 2, (longest() + m_.run.context - 1) / m_.run.context);
  if (now == 0 || half >= now) return point(std::move(section), text, {}, "the budget holds the longest sample only");
  point(std::move(section), text, {fmt::format("--log-probs-max-tokens-per-gpu={}", half)},
        "more passes of log-probs: a longer step");
}

void GuideWriter::dynamic_batches(std::string section) {
  const std::string text = "--use-dynamic-batch-size with --max-tokens-per-gpu";
  if (t_.own.on("use_dynamic_batch_size")) return point(std::move(section), text, {}, kOn);
  const std::int64_t tokens = std::max(kLeastTokens, (longest() + m_.run.context - 1) / m_.run.context);
  point(std::move(section), text, {"--use-dynamic-batch-size", fmt::format("--max-tokens-per-gpu={}", tokens)},
        "samples are packed up to the budget");
}

void GuideWriter::fixed_batches(std::string section) {
  const std::string text = "--micro-batch-size 1 in place of a budget";
  if (!t_.own.on("use_dynamic_batch_size"))
    return point(std::move(section), text,
                 t_.megatron.whole_or("micro_batch_size", 1) == 1 ? std::vector<std::string>{}
                                                                  : std::vector<std::string>{"--micro-batch-size=1"},
                 t_.megatron.whole_or("micro_batch_size", 1) == 1 ? kOn : "more micro-batches: a longer step");
  point(std::move(section), text, {"~--use-dynamic-batch-size", "--micro-batch-size=1"},
        "one sample a micro-batch, short ones too: a longer step");
}

void GuideWriter::optimizer_on_host(std::string section) {
  const std::string text = "--optimizer-cpu-offload";
  if (!m_.trains) return point(std::move(section), text, {}, kNoTrainer);
  if (t_.megatron.on("optimizer_cpu_offload")) return point(std::move(section), text, {}, kOn);
  std::vector<std::string> flags{"--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d"};
  if (!t_.megatron.on("use_precision_aware_optimizer")) flags.emplace_back("--use-precision-aware-optimizer");
  point(std::move(section), text, std::move(flags), "masters and states are on the host: a slower optimizer step");
}

void GuideWriter::loss(std::string section) {
  const std::string text = "--recompute-loss-function";
  if (!m_.trains) return point(std::move(section), text, {}, kNoTrainer);
  if (!has(section, text, "recompute_loss_function")) return;
  if (t_.own.on("recompute_loss_function")) return point(std::move(section), text, {}, kOn);
  point(std::move(section), text, {"--recompute-loss-function"}, "the loss is computed twice");
}

void GuideWriter::chunks_of_log_probs(std::string section) {
  const std::string text = "--log-probs-chunk-size, which counts rows of the logits";
  if (!has(section, text, "log_probs_chunk_size")) return;
  const std::int64_t now = t_.own.whole_or("log_probs_chunk_size", -1);
  if (now > 0 && now <= kChunk) return point(std::move(section), text, {}, kOn);
  point(std::move(section), text, {fmt::format("--log-probs-chunk-size={}", kChunk)},
        t_.own.on("recompute_loss_function")
            ? "more kernels"
            : "more kernels; a training step keeps every chunk unless its loss is computed again");
}

void GuideWriter::update_buffer(std::string section) {
  const std::string text = "a smaller --update-weight-buffer-size";
  if (!m_.serves || !m_.trains) return point(std::move(section), text, {}, "no weights are sent");
  if (!has(section, text, "update_weight_buffer_size")) return;
  const std::int64_t now = t_.own.whole_or("update_weight_buffer_size", 0);
  if (now < 2) return point(std::move(section), text, {}, kOn);
  point(std::move(section), text, {fmt::format("--update-weight-buffer-size={}", now / 2)}, "more buckets: a longer update");
}

void GuideWriter::weights_on_host(std::string section) {
  const std::string text = "--disable-weights-backuper";
  if (!has(section, text, "enable_weights_backuper")) return;
  if (!t_.own.on("enable_weights_backuper")) return point(std::move(section), text, {}, kOn);
  point(std::move(section), text, {}, "it frees memory of the host alone: 2 bytes a parameter of every set of weights");
}

void GuideWriter::margin(std::string section) {
  const std::string text = "a smaller --train-memory-margin-bytes";
  if (!has(section, text, "train_memory_margin_bytes")) return;
  if (!m_.offload_train) return point(std::move(section), text, {}, "the trainer does not sleep: no margin is kept");
  const std::int64_t now = t_.own.whole_or("train_memory_margin_bytes", 0);
  if (now < 2) return point(std::move(section), text, {}, kOn);
  point(std::move(section), text, {fmt::format("--train-memory-margin-bytes={}", now / 2)}, "fragments have less room");
}

void GuideWriter::server_fraction(std::string section) {
  const std::string text = "a smaller --sglang-mem-fraction-static";
  if (!m_.serves) return point(std::move(section), text, {}, "there are no servers");
  const ServerFlag* flag = t_.server_flag({"mem-fraction-static"});
  double now = 0;
  if (flag == nullptr || flag->values.empty() ||
      std::from_chars(flag->values[0].data(), flag->values[0].data() + flag->values[0].size(), now).ec != std::errc{})
    return point(std::move(section), text, {"--sglang-mem-fraction-static=0.7"}, "a smaller KV cache: fewer requests at once");
  if (now <= 0.45) return point(std::move(section), text, {}, "it is small already");
  point(std::move(section), text, {fmt::format("--sglang-mem-fraction-static={:.2f}", now - 0.1)},
        "a smaller KV cache: fewer requests at once");
}

void GuideWriter::stages(std::string section) {
  const std::string text = "a layer from the last pipeline stage to the first (--decoder-first-pipeline-num-layers)";
  const std::int64_t layers = t_.megatron.whole_or("num_layers", 0), stages = m_.run.pipeline;
  if (!m_.trains || stages < 2) return point(std::move(section), text, {}, "there is one stage");
  if (stages > 2 || layers < 4)
    return point(std::move(section), text, {}, "the stages between them must share the others evenly");
  const std::int64_t now = t_.megatron.whole_or("decoder_first_pipeline_num_layers", layers / 2);
  if (now + 1 >= layers) return point(std::move(section), text, {}, kOn);
  std::vector<std::string> flags{fmt::format("--decoder-first-pipeline-num-layers={}", now + 1)};
  if (t_.megatron.given("decoder_last_pipeline_num_layers"))
    flags.push_back(fmt::format("--decoder-last-pipeline-num-layers={}", layers - now - 1));
  point(std::move(section), text, std::move(flags), "stages that take unequal time");
}

void GuideWriter::context(std::string section) {
  const std::string text = "a larger --context-parallel-size";
  if (!m_.trains) return point(std::move(section), text, {}, kNoTrainer);
  if (m_.run.data < 2) return point(std::move(section), text, {}, "no rank is left to share sequences with");
  point(std::move(section), text, {fmt::format("--context-parallel-size={}", 2 * m_.run.context)},
        "an exchange of keys and values in every layer");
}

std::vector<GuidePoint> guide_points(const SlimeText& text, const SlimeMeaning& m) {
  GuideWriter out(text, m);
  out.tokens("1. out of memory in training");
  out.context("1. out of memory in training");
  out.recompute("2. arguments of Megatron");
  out.server_fraction("3. servers on the trainer's GPUs");
  return out.take();
}

}  // namespace oomplan::slime
