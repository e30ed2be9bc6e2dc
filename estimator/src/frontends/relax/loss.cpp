#include "frontends/relax/loss.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

namespace oomplan::relax {

using slime::SlimeMeaning;
using slime::SlimeText;

bool takes_most_likely(const SlimeText& t) {
  return t.release.since("2026.07") && t.own.on("use_opd") && t.own.text("opd_type") == "sglang" &&
         t.own.whole_or("opd_log_prob_top_k", 0) > 0 && t.own.text("opd_token_selection") != "student_sampled";
}

bool gates_by_entropy(const SlimeText& t) { return t.own.on("opd_fkl_entropy_gate"); }

bool in_advantages(const SlimeText& t) { return t.own.number("opd_loss_coef", 0) == 0; }

bool classifies(const SlimeText& t) { return t.own.text("task_type") == "seq_cls"; }

std::vector<slime::OwnSetting> learner(const SlimeText& t, const SlimeMeaning& m) {
  std::vector<slime::OwnSetting> out;
  const auto add = [&](const char* knob, std::int64_t n, const char* flag) { out.push_back({knob, fmt::format("{}", n), flag}); };
  if (m.supervised) {
    if (classifies(t)) add("labels", t.own.whole_or("num_labels", 0), "num_labels");
    return out;
  }
  if (!takes_most_likely(t)) return out;
  // a union's rows are padded to the longest of them (TopkWorker._merge_union, relax/utils/opd/opd_main_worker.py)
  const std::int64_t each = t.own.whole_or("opd_log_prob_top_k", 0);
  add("teacher_topk", t.own.text("opd_token_selection") == "union" ? 2 * each : each, "opd_log_prob_top_k");
  if (in_advantages(t)) out.push_back({"teacher_in_advantages", "true", "opd_kl_coef"});
  const std::int64_t samples = t.own.whole_or("rollout_batch_size", 0) * t.own.whole_or("n_samples_per_prompt", 1);
  const std::int64_t ranks = std::max<std::int64_t>(1, m.run.data), context = std::max<std::int64_t>(1, m.run.context);
  const std::int64_t response = t.own.whole_or("rollout_max_response_len", 0);
  add("teacher_rows", (samples + ranks - 1) / ranks * ((response + context - 1) / context), "opd_log_prob_top_k");
  return out;
}

}  // namespace oomplan::relax
