// A training program recorded twice: folded, and written out to be traced event by event. Both must say the same, and leave
// behind what stays resident and nothing else.
#pragma once
#include <doctest/doctest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "sampled.hpp"
#include "training/engine.hpp"

namespace oomplan::fold_cases {

inline std::shared_ptr<const Architecture> dense(bool tied) {
  return std::make_shared<const Architecture>(read_config(
      R"({"model_type": "qwen3", "num_hidden_layers": 5, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": )" +
          std::string(tied ? "true}" : "false}"),
      "tiny dense"));
}

inline std::shared_ptr<const Architecture> experts() {
  return std::make_shared<const Architecture>(read_config(
      R"({"model_type": "qwen2_moe", "num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "num_experts": 8,
                      "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "norm_topk_prob": true,
                      "decoder_sparse_step": 1, "mlp_only_layers": [0, 5], "tie_word_embeddings": false})",
      "tiny experts"));
}

/// The small models of tests/data/executed_rows.jsonl: a family each.
inline std::vector<std::shared_ptr<const Architecture>> families() {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_rows.jsonl");
  REQUIRE(in.good());
  std::vector<std::shared_ptr<const Architecture>> out;
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains("fields"))
      out.push_back(std::make_shared<const Architecture>(read_config(row["fields"].dump(), row["config"].get<std::string>())));
  }
  return out;
}

struct Setting {
  std::shared_ptr<const Architecture> architecture = dense(false);
  Trainer trainer;
  EngineKind engine = EngineKind::fsdp2;
  std::int64_t micro_batches = 1;
  bool critic = false;
};

inline Setting usual() {
  Setting s;
  s.trainer.framework = Framework::torch;
  s.trainer.head = LossHead::hf_loss;
  s.trainer.layout.data = 4;
  s.trainer.recompute = Recompute::none;
  s.trainer.sequences_per_micro_batch = 1;
  s.trainer.sequence_tokens = 4096;
  return s;
}

/// Load, one log-prob pass, two steps of several micro-batches. The gradients of a step are dropped at its end.
template <class R>
void record(R& r, const Setting& s, const TrainPlan& plan) {
  TrainEngine<R> engine(r, plan, "");
  Player<R> train(r, *plan.train, plan.train_counts.counts, plan.train_counts.chunks, "");
  Player<R> scores(r, *plan.log_probs, plan.log_prob_counts.counts, plan.log_prob_counts.chunks, "scores.");
  r.mark("load");
  engine.load();
  bool rebuilt = false;
  for (std::int64_t step = 0; step < 2; ++step) {
    r.mark("scores");
    engine.before_forward();
    engine.forward(scores, Index(0));
    r.mark("train");
    for (std::int64_t m = 0; m < s.micro_batches; ++m) {
      const bool reduced = step > 0 || (m > 0 && plan.sync_every);
      if (reduced && !rebuilt) engine.rebuild_buckets(m > 0);
      rebuilt = rebuilt || reduced;
      engine.forward(train, Index(m));
      engine.backward(train, Index(m), m == 0, m == s.micro_batches - 1);
    }
    if (step == 0) engine.make_states();
    engine.optimizer_step();
    engine.drop_gradients(train);
  }
  engine.before_forward();
  r.mark("state");
  engine.read_state(true);
  engine.drop_state();
  engine.read_state(false);
}

inline void check(const Setting& s) {
  static Sample settings(5);
  if (!settings.takes()) return;
  const auto& a = *s.architecture;
  const auto& t = s.trainer;
  TrainTapes tapes;
  tapes.train = make_tape(a, train_pass(t, s.engine, a, s.critic, t.tokens_per_micro_batch));
  tapes.log_probs = make_tape(a, log_prob_pass(t, s.engine, a, s.critic, t.tokens_per_micro_batch));
  const TrainPlan plan = make_plan(a, t, s.engine, s.critic, true, tapes, s.micro_batches);
  PeakRecorder fold;
  record(fold, s, plan);
  ProgramWriter writer;
  record(writer, s, plan);
  const Program program = writer.take();
  const Trace traced = trace(program);
  const Span span = fold.span();
  CHECK(traced.span.peak == span.peak);
  CHECK(traced.span.net == span.net);
  CHECK(traced.span.host_peak == span.host_peak);
  CHECK(traced.span.host_net == span.host_net);
  const Bytes resident =
      t.cpu_offload_policy ? plan.buffers : plan.resident + plan.optimizer + plan.optimizer_steps + plan.buffers + plan.buckets;
  CHECK(span.net == resident);
}

inline const char* text(Recompute r, bool reentrant) { return r == Recompute::none ? "none" : reentrant ? "reentrant" : "full"; }

}  // namespace oomplan::fold_cases
