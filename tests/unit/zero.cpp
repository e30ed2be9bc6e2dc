// DeepSpeed's ZeRO: which parameters are gathered when, and what a rank holds, each computed by hand; fold equals trace.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "estimate/figures.hpp"
#include "sampled.hpp"
#include "training/engine.hpp"
#include "training/reference_run.hpp"
#include "training/zero_modules.hpp"

namespace {

using namespace oomplan;

std::string text(const std::vector<ZeroAction>& actions) {
  static const char* const kWords[] = {"gather", "together", "copy", "drop", "release", "drop_saved", "reduce"};
  std::string out;
  for (const ZeroAction& a : actions)
    out += (out.empty() ? "" : ", ") + std::string(kWords[static_cast<int>(a.kind)]) + " " + std::to_string(a.of) +
           (a.again ? " again" : "");
  return out;
}

/// Three modules of 10, 20 and 30 elements, forward and backward.
std::vector<ZeroCall> three_modules() {
  std::vector<ZeroCall> calls;
  for (const int module : {0, 1, 2, 2, 1, 0})
    for (const UseMoment moment : {UseMoment::begins, UseMoment::ends}) calls.push_back({moment, module, {module}});
  return calls;
}
const std::vector<ZeroParameter> kThree{{10}, {20}, {30}};

Zero without_looking_ahead() {
  Zero z;
  z.prefetch_bucket = z.max_reuse_distance = 0;
  return z;
}

TEST_CASE("ZeRO 3: what a checkpoint's recomputation saves stays beside what the node's module gathers") {
  std::vector<ZeroCall> calls;
  for (const int module : {0, 1}) {
    calls.push_back({UseMoment::begins, module, {module}, {module}});
    calls.push_back({UseMoment::ends, module, {module}});
  }
  for (const int module : {1, 0})
    for (const UseMoment moment : {UseMoment::begins, UseMoment::ran, UseMoment::ends})
      calls.push_back({moment, module, {module}});
  const ZeroTrace trace = trace_gathers(kThree, calls, without_looking_ahead(), false);
  std::string all;
  for (const auto& actions : trace.actions) all += "[" + text(actions) + "]";
  CHECK(all ==
        "[gather 0][][gather 1][]"  // released, but saved
        "[gather 1 again][drop_saved 1][release 1 again][gather 0 again][drop_saved 0][release 0 again]");
  CHECK(trace.at_end.empty());
}

TEST_CASE("ZeRO 3: frozen weights that a recomputation gathers go with the module whose backward pass began it") {
  std::vector<ZeroCall> calls{{UseMoment::begins, 2, {2}, {}, true}};
  for (const int module : {0, 1})
    for (const UseMoment moment : {UseMoment::begins, UseMoment::ends}) calls.push_back({moment, module, {module}, {}, false, 2});
  calls.push_back({UseMoment::ends, 2, {2}, {}, true});
  std::vector<ZeroParameter> first_is_frozen = kThree;
  first_is_frozen[0].frozen = true;
  const ZeroTrace trace = trace_gathers(first_is_frozen, calls, without_looking_ahead(), false);
  std::string all;
  for (const auto& actions : trace.actions) all += "[" + text(actions) + "]";
  CHECK(all == "[gather 2][gather 0][][gather 1][release 1][release 2, release 0]");
  CHECK(trace.at_end.empty());
}

TEST_CASE("ZeRO 3: views that a forward pass saves keep the gathered buffer, and gradients of a whole block wait for its end") {
  std::vector<ZeroCall> calls{{UseMoment::begins, 0, {0}, {0}}, {UseMoment::ends, 0, {0}}};
  calls.push_back({UseMoment::begins, 0, {0}, {}, true});
  calls.push_back({UseMoment::ran, -1, {0}});
  calls.push_back({UseMoment::ends, 0, {0}, {}, true, -1, true});
  const ZeroTrace trace = trace_gathers(kThree, calls, without_looking_ahead(), false);
  std::string all;
  for (const auto& actions : trace.actions) all += "[" + text(actions) + "]";
  CHECK(all == "[gather 0][][gather 0 again][drop_saved 0][reduce 0, release 0 again]");
}

TEST_CASE("ZeRO 3: how far away a whole block is used again is counted through what other modules contain") {
  Zero z = without_looking_ahead();
  z.max_reuse_distance = 15;
  const auto again_behind = [&](bool whole, std::vector<int> contained) {
    std::vector<ZeroCall> calls = three_modules();
    for (ZeroCall& call : calls) call.whole = whole && call.module == 0;
    calls[2].contained = std::move(contained);
    return text(trace_gathers(kThree, calls, z, false).actions[1]);
  };
  CHECK(again_behind(false, {0}) == "release 0");
  CHECK(again_behind(true, {}) == "release 0");
  CHECK(again_behind(true, {0}).empty());
}

TEST_CASE("ZeRO 3: without prefetch and reuse a module gathers its own and lets it go") {
  const ZeroTrace t = trace_gathers(kThree, three_modules(), without_looking_ahead(), false);
  std::vector<std::string> told;
  for (const auto& actions : t.actions) told.push_back(text(actions));
  CHECK(told == std::vector<std::string>{"gather 0", "release 0", "gather 1", "release 1", "gather 2", "release 2", "gather 2",
                                         "release 2", "gather 1", "release 1", "gather 0", "release 0"});
  CHECK(t.at_end.empty());
}

TEST_CASE("ZeRO 3: what is used again within the reuse distance stays") {
  Zero z = without_looking_ahead();
  z.max_reuse_distance = 31;  // behind module 2's forward comes its own backward (30), then module 1's begins
  const ZeroTrace t = trace_gathers(kThree, three_modules(), z, false);
  CHECK(text(t.actions[5]).empty());
  CHECK(text(t.actions[6]).empty());
  CHECK(text(t.actions[7]) == "release 2");
  CHECK(text(t.actions[3]) == "release 1");  // modules 2 and 2 again stand between: 60 elements
}

TEST_CASE("ZeRO 3: what is gathered ahead together is copied out, and its buffer stays until the last one is asked for") {
  Zero z = without_looking_ahead();
  z.prefetch_bucket = 45;
  const ZeroTrace t = trace_gathers(kThree, three_modules(), z, false);
  // behind module 0's fetch: 20 < 45, so module 2's too; 50 is enough
  CHECK(text(t.actions[0]) == "gather 0, together 0");
  REQUIRE(t.groups.size() == 1);
  CHECK(t.groups[0] == std::vector<int>{1, 2});
  CHECK(text(t.actions[2]) == "copy 1, copy 2, gather 0");  // both have buffers of their own; 0 is needed at the end again
  CHECK(text(t.actions[4]) == "drop 0");
  const ZeroTrace alone = trace_gathers(kThree, three_modules(), z, true);
  CHECK(text(alone.actions[0]) == "gather 0, gather 1, gather 2");
}

TEST_CASE("ZeRO 3: nothing is gathered ahead above max_live, and small parameters are there already") {
  Zero z = without_looking_ahead();
  z.prefetch_bucket = 1000;
  z.max_live = 10;
  const ZeroTrace t = trace_gathers(kThree, three_modules(), z, false);
  CHECK(text(t.actions[0]) == "gather 0");
  const ZeroTrace small = trace_gathers({{10, true}, {20, false}, {30, false}}, three_modules(), without_looking_ahead(), false);
  CHECK(text(small.actions[0]).empty());
  CHECK(text(small.actions[1]).empty());
}

// ---- one tiny model: h = 8, A = 8, K = 4, F = 12, V = 1000, two layers, T = 4
constexpr Bytes kLayer = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 12 * 8 + 2 * 8, kTable = 1000 * 8;
constexpr Bytes kAll = 2 * kLayer + 2 * kTable + 8;

TrainingCase tiny(std::int64_t stage, std::int64_t ranks) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(read_config(
      R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2,
                      "num_key_value_heads": 1, "vocab_size": 1000, "max_position_embeddings": 64, "tie_word_embeddings": false})",
      "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.optimizer_form = OptimizerForm::fused;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = 4;
  t.layout.data = ranks;
  t.zero.stage = stage;
  c.engine = EngineKind::deepspeed;
  return c;
}
TrainPlan plan_of(const TrainingCase& c, TrainTapes& tapes) {
  tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, 4, false));
  if (c.trainer.reference != ReferencePass::none)
    tapes.reference = make_tape(*c.architecture, reference_pass(c.trainer, c.engine, *c.architecture, false));
  return make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, c.micro_batches);
}

TEST_CASE("by hand: what ZeRO keeps in each stage") {
  static_assert(kAll % 4 == 0, "two ranks pad nothing");
  TrainTapes tapes;
  for (const std::int64_t stage : {1, 2, 3}) {
    CAPTURE(stage);
    const TrainPlan plan = plan_of(tiny(stage, 2), tapes);
    const ZeroPlan& z = *plan.zero;
    CHECK(z.parameters == (stage == 3 ? 2 * kAll / 2 : 2 * kAll));
    CHECK(z.master == 4 * kAll / 2);
    CHECK(z.states == 8 * kAll / 2);
    CHECK(z.gradients == (stage == 3 ? 2 * kAll / 2 : 0));
    CHECK(z.bucket == 2 * 500'000'000LL);
    CHECK(z.persistent == (stage == 3 ? 2 * kAll : 0));  // everything is below 100,000 elements
  }
}

TEST_CASE("by hand: ZeRO 2 reduces into the piece that a rank updates") {
  TrainingCase c = tiny(2, 2);
  c.trainer.zero.reduce_bucket = 8100;  // the output layer; then the norm and both layers; the embedding overflows it again
  TrainTapes tapes;
  const TrainPlan plan = plan_of(c, tapes);
  const ZeroPlan& z = *plan.zero;
  // rank 0 updates the embedding, a layer, and what of the second one the middle leaves: parameters count whole
  const Bytes piece = kAll / 2;
  CHECK(z.sub_groups == std::vector<std::int64_t>{piece});
  CHECK(z.in_partition >= 2 * piece);
  CHECK(z.in_partition < 2 * (piece + kTable));
  CHECK(z.norm == 8 * kTable);
  const TrainingFigures f = training_figures(c), g = training_figures(tiny(1, 2));
  const Bytes base = 2 * kAll + 4 * piece + 8 * piece + 2 * 2 * 4;  // parameters, master, states, inv_freq twice
  const Bytes inputs = 2 * 8 * 4;
  // the norm of the embedding's gradient as double, or the fp32 gradients beside their flat copy
  CHECK(f.optimizer == base + inputs + z.in_partition + std::max(z.norm, (2 + 4) * piece));
  // stage 1 keeps all gradients until its reduction, whose bucket is a gigabyte
  const Bytes loss = 4, on_its_way = 2 * 4 * 8;  // the gradient of the embedding's output
  CHECK(g.backward == base + inputs + loss + on_its_way + 2 * kAll + 2 * 500'000'000LL);
}

TEST_CASE("by hand: the optimizer of ZeRO 3 goes through sub-groups") {
  TrainingCase c = tiny(3, 2);
  c.trainer.zero.sub_group = 4000;  // the embedding's half fills one
  TrainTapes tapes;
  const TrainPlan plan = plan_of(c, tapes);
  const ZeroPlan& z = *plan.zero;
  REQUIRE(!z.sub_groups.empty());
  CHECK(z.sub_groups.front() == kTable / 2);
  std::int64_t all = 0;
  for (const auto n : z.sub_groups) all += n;
  CHECK(all == kAll / 2);
}

TEST_CASE("ZeRO offload keeps masters, states and gradients on the host") {
  TrainingCase c = tiny(3, 2);
  c.trainer.zero.offload_optimizer = c.trainer.zero.offload_parameters = true;
  TrainTapes tapes;
  const TrainPlan plan = plan_of(c, tapes);
  const ZeroPlan& z = *plan.zero;
  CHECK(z.parameters == 0);
  CHECK(z.master == 0);
  CHECK(z.states == 0);
  CHECK(z.host_parameters == 2 * kAll / 2);
  CHECK(z.host_master == 4 * kAll / 2);
  CHECK(z.host_states == 8 * kAll / 2);
  CHECK(z.host_gradients == 2 * kAll / 2 + 4 * kAll / 2);
}

// ---- fold == trace

template <class R>
void record(R& r, const TrainPlan& plan, std::int64_t micro_batches) {
  TrainEngine<R> engine(r, plan, "");
  Player<R> train(r, *plan.train, plan.train_counts.counts, plan.train_counts.chunks, "");
  ReferenceRun<R> reference(r, plan, "", engine);
  r.mark("load");
  engine.load();
  reference.load();
  for (int step = 0; step < 2; ++step) {
    r.mark("train");
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      engine.before_forward();
      engine.forward(train, Index(m));
      reference.forward();
      train.leave_step(Index(m));
      engine.backward(train, Index(m), m == 0, m == micro_batches - 1);
    }
    if (step == 0) engine.make_states();
    engine.optimizer_step();
    engine.drop_gradients(train);
  }
}

void check(const TrainingCase& c) {
  static std::size_t asked = 0;
  if (asked++ % kEveryCase != 0) return;
  TrainTapes tapes;
  const TrainPlan plan = plan_of(c, tapes);
  PeakRecorder fold;
  record(fold, plan, c.micro_batches);
  ProgramWriter writer;
  record(writer, plan, c.micro_batches);
  const Trace traced = trace(writer.take());
  CHECK(traced.span.peak == fold.span().peak);
  CHECK(traced.span.net == fold.span().net);
  CHECK(traced.span.host_peak == fold.span().host_peak);
  const ZeroPlan& z = *plan.zero;
  const bool apart = plan.reference != nullptr && plan.reference->apart;
  const Bytes second = apart ? plan.reference->plan.resident + plan.reference->plan.buffers : 0;
  CHECK(traced.span.net == second + z.parameters + z.persistent + z.master + z.states + z.gradients + plan.buffers +
                               z.gpu_staging + (z.stage == 3 ? z.bucket : 0));
}

TEST_CASE("training: fold equals trace for every stage of ZeRO") {
  int programs = 0;
  for (const std::int64_t stage : {1, 2, 3})
    for (const std::int64_t ranks : {1, 2, 6})
      for (const int form : {0, 1, 2, 3, 4, 5, 6})
        for (const std::int64_t micro_batches : {1, 2, 3}) {
          TrainingCase c = tiny(stage, ranks);
          Trainer& t = c.trainer;
          c.micro_batches = micro_batches;
          t.zero.reduce_bucket = form == 1 ? 500 : 9000;
          t.zero.persistence_threshold = form == 2 ? 100 : 0;
          t.zero.prefetch_bucket = form == 3 ? 0 : 300;
          t.zero.max_live = form == 1 ? 600 : 3000;
          t.zero.max_reuse_distance = form == 3 ? 0 : 1000;
          t.zero.overlap_comm = form == 2;
          t.zero.offload_optimizer = form == 4;
          t.zero.offload_parameters = form == 4 && stage == 3;
          t.recompute = form == 0 ? Recompute::none : Recompute::full;
          t.reentrant = form == 5 || form == 6;
          t.offload_checkpoints = t.tiled_mlp = form == 6;
          t.sequence_tokens = form == 6 ? 4096 : 4;
          t.head = form == 6 ? LossHead::liger_fused_ce : LossHead::hf_loss;
          CAPTURE(stage);
          CAPTURE(ranks);
          CAPTURE(form);
          CAPTURE(micro_batches);
          check(c);
          ++programs;
        }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for TRL's losses under every stage of ZeRO, with and without a reference's pass") {
  for (const std::int64_t stage : {1, 2, 3})
    for (const LossHead head : {LossHead::trl_dpo, LossHead::trl_kto, LossHead::trl_simpo})
      for (const ReferencePass reference : {ReferencePass::none, ReferencePass::model, ReferencePass::adapters_off})
        for (const std::int64_t micro_batches : {1, 2, 3}) {
          if (head == LossHead::trl_simpo && reference != ReferencePass::none) continue;
          TrainingCase c = tiny(stage, 2);
          Trainer& t = c.trainer;
          c.micro_batches = micro_batches;
          t.zero.reduce_bucket = 9000;
          t.zero.persistence_threshold = 10;
          t.zero.prefetch_bucket = 300;
          t.zero.max_live = 3000;
          t.zero.max_reuse_distance = 1000;
          t.head = head;
          t.reference = reference;
          t.sequences_per_micro_batch = 2;
          t.sequence_tokens = 128;
          t.tokens_per_micro_batch = 256;
          if (reference == ReferencePass::adapters_off) {
            t.lora.rank = 2;
            t.lora.format = AdapterFormat::storage;
          }
          CAPTURE(stage);
          CAPTURE(micro_batches);
          check(c);
        }
}

TEST_CASE("the feed-forward block tile by tile, checkpoints on the host") {
  TrainingCase whole = tiny(3, 1);
  whole.trainer.recompute = Recompute::full;
  whole.trainer.reentrant = true;
  whole.trainer.sequence_tokens = 4096;
  whole.trainer.head = LossHead::liger_fused_ce;
  TrainingCase kept = whole;
  kept.trainer.offload_checkpoints = true;
  // the first layer's input is the embedding's output, which the model holds until its forward pass is over
  const Bytes input = 2 * 4096 * 8;
  CHECK(training_figures(whole).forward - training_figures(kept).forward >= input);
  TrainTapes tapes;
  CHECK(plan_of(kept, tapes).zero->checkpoint == input);
  TrainingCase tiled = kept;
  tiled.trainer.tiled_mlp = true;
  CHECK(training_figures(tiled).backward < training_figures(kept).backward);
  CHECK(plan_of(tiled, tapes).train_counts.counts.m == 8);  // as many tokens as the model is wide
}

}  // namespace
