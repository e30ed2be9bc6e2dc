#include "frontends/megatron/words.hpp"

#include <fmt/format.h>

#include "frontends/megatron/flag_table.hpp"

namespace oomplan::megatron {
namespace {

class Words {
 public:
  Words(const Trainer& from, const Trainer& to) : from_(from), to_(to) {}

  std::vector<std::string> run() {
    ranks();
    stages();
    recompute();
    return std::move(out_);
  }

 private:
  void say(std::string_view argument, const std::string& value = {}) {
    out_.push_back(spelling_of(argument));
    if (!value.empty()) out_.push_back(value);
  }
  void without(std::string_view argument) { out_.push_back(fmt::format("(without {})", spelling_of(argument))); }
  void count(std::string_view argument, std::int64_t before, std::int64_t after) {
    if (before != after) say(argument, fmt::format("{}", after));
  }

  void ranks() {
    const Layout &a = from_.layout, &b = to_.layout;
    count("tensor_model_parallel_size", a.tensor, b.tensor);
    count("pipeline_model_parallel_size", a.pipeline, b.pipeline);
    count("context_parallel_size", a.context, b.context);
    count("expert_model_parallel_size", a.expert, b.expert);
    // what is not said is as large as the tensor degree
    if (a.expert_tensor != b.expert_tensor || (b.expert > 1 && a.tensor != b.tensor))
      say("expert_tensor_parallel_size", fmt::format("{}", b.expert_tensor));
    if (from_.megatron.sequence_parallel == to_.megatron.sequence_parallel) return;
    to_.megatron.sequence_parallel ? say("sequence_parallel") : without("sequence_parallel");
  }
  void stages() {
    const Megatron &a = from_.megatron, &b = to_.megatron;
    count("num_virtual_stages_per_pipeline_rank", a.virtual_stages, b.virtual_stages);
    const auto end = [&](std::string_view argument, std::int64_t before, std::int64_t after) {
      if (before != after && after == 0)
        without(argument);
      else
        count(argument, before, after);
    };
    end("decoder_first_pipeline_num_layers", a.first_stage_layers, b.first_stage_layers);
    end("decoder_last_pipeline_num_layers", a.last_stage_layers, b.last_stage_layers);
  }
  void recompute() {
    const Megatron &a = from_.megatron, &b = to_.megatron;
    const bool full = to_.recompute == Recompute::full, was_full = from_.recompute == Recompute::full;
    if (from_.recompute != to_.recompute) {
      if (to_.recompute == Recompute::none) return without("recompute_granularity");
      say("recompute_granularity", full ? "full" : "selective");
      if (was_full) without("recompute_method"), without("recompute_num_layers");
    }
    if (full) {
      if (!was_full || a.recompute_method != b.recompute_method)
        say("recompute_method", b.recompute_method == RecomputeMethod::uniform ? "uniform" : "block");
      if (!was_full || a.recompute_layers != b.recompute_layers)
        say("recompute_num_layers", fmt::format("{}", b.recompute_layers));
    } else if (to_.recompute == Recompute::selective &&
               (from_.recompute != to_.recompute || a.recompute_modules != b.recompute_modules)) {
      say("recompute_modules");
      out_.insert(out_.end(), b.recompute_modules.begin(), b.recompute_modules.end());
    }
  }

  const Trainer &from_, &to_;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> words_of_change(const Job& from, const Job& to) {
  return Words(from.roles.at(0).trainer, to.roles.at(0).trainer).run();
}

}  // namespace oomplan::megatron
