// One tiny model, every tensor written out: a step on one device and on two ranks of FSDP2.
//
// Legend: T = 4 tokens of one sequence, h = 8 hidden, A = 8 (two query heads of d = 4), K = 4 (one key/value head), F = 12, V =
// 1000.
#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "estimate/figures.hpp"
#include "layers/tape.hpp"
#include "training/ddp_buckets.hpp"
#include "training/engine.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes T = 4, h = 8, heads = 2, d = 4, A = heads * d, K = d, F = 12, V = 1000, layers = 2;
constexpr Bytes kLargeVocabulary = 131072;  // a table of 2 MiB

TrainingCase tiny() {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(read_config(
      R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2,
                      "num_key_value_heads": 1, "vocab_size": 1000, "max_position_embeddings": 64, "tie_word_embeddings": false})",
      "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_flash;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.optimizer = OptimizerKind::adamw;
  t.optimizer_form = OptimizerForm::foreach;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = T;
  t.wrap_embedding = t.wrap_head = false;
  t.root_reshard = false;
  c.engine = EngineKind::single;
  return c;
}

// ---- parameters, in elements
constexpr Bytes kLayer = A * h + 2 * K * h + h * A  // q, k, v, o
                         + 3 * F * h                // gate, up, down
                         + 2 * h;                   // two norms
constexpr Bytes kRoot = V * h + h + V * h;          // embedding, final norm, output layer
constexpr Bytes kAll = layers * kLayer + kRoot;
constexpr Bytes kBuffers = 2 * (d / 2) * 4;  // inv_freq and its original

// ---- what stands while the loss is computed, in bytes (bf16 model)
constexpr Bytes kInputs = 2 * 8 * T;  // input_ids, labels
constexpr Bytes kPositions = 8 * T;
constexpr Bytes kRotary = 2 * (2 * T * d);          // cos, sin: saved by the first layer, shared by all
constexpr Bytes kNorm = 4 * T * h                   // the input in fp32
                        + 4 * T                     // rsqrt
                        + 2 * T * h                 // normed, in bf16, for the gradient of the weight
                        + 2 * T * h;                // output, which the linears behind save
constexpr Bytes kAttention = 2 * T * A + 2 * T * K  // q, k behind the rotation
                             + 2 * T * K            // v
                             + 2 * T * A            // output, which o_proj saves
                             + 4 * T * heads        // log-sum-exp
                             + 16;                  // state of the generator
constexpr Bytes kMlp = 4 * (2 * T * F);             // gate, silu(gate), up, product
constexpr Bytes kSavedByLayer = 2 * kNorm + kAttention + kMlp;
constexpr Bytes kSaved = kRotary + layers * kSavedByLayer + kNorm;
constexpr Bytes kLogits = 2 * T * V, kLogits32 = 4 * T * V, kLogProbs = 4 * T * V;
constexpr Bytes kLabels = 8 * T;         // shifted
constexpr Bytes kLoss = 4, kWeight = 4;  // the loss and nll_loss's total weight
constexpr Bytes kAtLoss = kInputs + kPositions + kSaved + kLogits + kLogits32 + kLabels + kLogProbs + kLoss + kWeight;

// log_softmax's backward: its result, the dense gradient of nll_loss, its own output. The 16-bit and fp32 logits, the labels and
// the total weight are gone.
constexpr Bytes kAtLossBackward = kInputs + kSaved + kLogProbs + kLogits32 + kLogits32 + kLoss;

TEST_CASE("by hand: what one layer saves") {
  const TrainingCase c = tiny();
  const PassOptions options = train_pass(c.trainer, c.engine, *c.architecture, false, T, false);
  const PassCounts pass = pass_counts(c.trainer, T, c.trainer.head, *c.architecture);
  Bytes saved = 0;
  for (const auto& [site, times] : saved_of_layer(*c.architecture, options, 0)) saved += times * site.bytes.value(pass.counts);
  CHECK(saved == kSavedByLayer);
}

TEST_CASE("by hand: a step on one device") {
  const TrainingFigures f = training_figures(tiny());
  const Bytes parameters = 2 * kAll, states = 2 * parameters;
  const Bytes base = parameters + states + kBuffers;
  CHECK(f.parameters == parameters);
  CHECK(f.states == states);
  CHECK(f.forward == base + kAtLoss);
  CHECK(f.backward == base + kAtLossBackward);
  const Bytes gradients = parameters, square_roots = parameters;  // foreach: one list of sqrt(exp_avg_sq)
  CHECK(f.optimizer == base + gradients + square_roots + kInputs);
  CHECK(f.peak == f.optimizer);
}

TEST_CASE("by hand: the same without the copy of a fused optimizer and with recomputation") {
  TrainingCase c = tiny();
  c.trainer.optimizer_form = OptimizerForm::fused;
  const Bytes parameters = 2 * kAll, tensors = layers * 9 + 3;
  const Bytes base = parameters + 2 * parameters + 4 * tensors + kBuffers;  // a step counter per tensor
  const Bytes norms = 2 * (2 * tensors + 1);  // for clipping: one a gradient, the same side by side, theirs
  CHECK(training_figures(c).optimizer == base + parameters + norms + kInputs);
  c.trainer.clip = false;
  CHECK(training_figures(c).optimizer == base + parameters + kInputs);
  c.trainer.recompute = Recompute::full;
  // every layer keeps its input; cos and sin are arguments that the frames hold; the final norm is not checkpointed
  const Bytes kept = kRotary + layers * (2 * T * h) + kNorm;
  CHECK(training_figures(c).forward == base + kAtLoss - kSaved + kept);
}

TEST_CASE("by hand: a step of two ranks of FSDP2") {
  TrainingCase c = tiny();
  c.engine = EngineKind::fsdp2;
  c.trainer.layout.data = 2;
  c.trainer.storage = c.trainer.reduce = DType::fp32;
  const TrainingFigures f = training_figures(c);
  const Bytes parameters = 4 * kAll / 2, states = 2 * parameters;
  const Bytes base = parameters + states + kBuffers;
  CHECK(f.parameters == parameters);
  CHECK(f.states == states);
  // forward: the root's parameters in bf16 stay; the last layer's all-gather output is held until the root's forward is over
  const Bytes root = 2 * kRoot, gathered = 2 * kLayer;
  CHECK(f.forward == base + kAtLoss + root + gathered);
  // backward: the peak is the reduction of the root behind all layers, when the parameters are resharded: its input in fp32, its
  // output, the gradient of the output layer, which a loop variable holds, and the layers' gradient shards
  const Bytes reduce_input = 4 * kRoot, reduce_output = 4 * kRoot / 2, held = 2 * V * h, shards = layers * 4 * kLayer / 2;
  const Bytes at_root = base + kInputs + kLoss + shards + reduce_input + reduce_output + held;
  const Bytes at_loss = base + kAtLossBackward + root + gathered;  // the last layer's parameters are being gathered
  CHECK(at_root > at_loss);
  CHECK(f.backward == at_root);
  CHECK(f.optimizer == base + parameters + parameters + kInputs);
}

TrainingCase two_ranks_of_fsdp1() {
  TrainingCase c = tiny();
  c.engine = EngineKind::fsdp1;
  c.trainer.layout.data = 2;
  c.trainer.storage = c.trainer.reduce = DType::fp32;
  return c;
}

TEST_CASE("by hand: a step of two ranks of FSDP1") {
  TrainingCase c = two_ranks_of_fsdp1();
  const TrainingFigures f = training_figures(c);
  const Bytes parameters = 4 * kAll / 2, states = 2 * parameters, base = parameters + states + kBuffers;
  CHECK(f.parameters == parameters);
  CHECK(f.states == states);
  // forward: nothing but the root's flat parameter stays; the gather needs no copy
  const Bytes root = 2 * kRoot, layer = 2 * kLayer;
  CHECK(f.forward == base + kAtLoss + root);
  // backward: the reduction of the root behind all layers: its flat gradient, the same in fp32 and the new shard; its parameters
  // have been freed
  const Bytes shards = layers * 4 * kLayer / 2;
  const Bytes at_root = base + kInputs + kLoss + shards + 2 * kRoot + 4 * kRoot + 4 * kRoot / 2;
  CHECK(at_root > base + kAtLossBackward + root + layer);
  CHECK(f.backward == at_root);
  CHECK(f.optimizer == base + parameters + parameters + kInputs);
}

TEST_CASE("by hand: what FSDP1's strategies and options keep gathered") {
  TrainingCase c = two_ranks_of_fsdp1();
  const Bytes parameters = 4 * kAll / 2, base = 3 * parameters + kBuffers, root = 2 * kRoot, layer = 2 * kLayer;
  c.trainer.reshard_after_forward = false;  // SHARD_GRAD_OP
  CHECK(training_figures(c).forward == base + kAtLoss + root + layers * layer);
  c.trainer.reshard_after_forward = true;
  c.trainer.replicas = 2;  // NO_SHARD: all parameters in fp32, and the cast of the unit that computes
  CHECK(training_figures(c).parameters == 4 * kAll);
  CHECK(training_figures(c).forward == 3 * 4 * kAll + kBuffers + kAtLoss + root);
  c.trainer.replicas = 1;
  c.trainer.cpu_offload_policy = true;
  CHECK(training_figures(c).forward == kBuffers + kAtLoss + root);
  c.trainer.cpu_offload_policy = false;
  c.micro_batches = 2;  // the second forward pass stands beside the first one's gradients: shards in fp32, or no_sync's flat ones
  CHECK(training_figures(c).forward == base + parameters + kAtLoss + root);
  c.trainer.gradient_sync_every_micro_batch = false;
  CHECK(training_figures(c).forward == base + 2 * kAll + kAtLoss + root);
}

TEST_CASE("by hand: FSDP1 pads a flat parameter to equal shards, and with use_orig_params every parameter to 16 bytes") {
  TrainingCase c = two_ranks_of_fsdp1();
  const auto units = [&] {
    TrainTapes tapes;
    tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
    const TrainPlan plan = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
    return plan.flat;
  };
  c.trainer.layout.data = 7;
  static_assert(kRoot % 7 != 0);
  const Bytes shard = (kRoot + 6) / 7;
  CHECK(units().root.unsharded == 2 * 7 * shard);
  CHECK(units().root.fresh == 2 * kRoot);
  CHECK(units().root.padded == 4 * 7 * shard);
  c.trainer.use_orig_params = true;  // the padding is part of the parameter, so its gradient needs no padded copy
  CHECK(units().root.fresh == 2 * 7 * shard);
  CHECK(units().root.padded == 0);
}

TEST_CASE("by hand: a step of DDP has the buckets of the reduction above one device") {
  const TrainingFigures alone = training_figures(tiny());
  TrainingCase c = tiny();
  c.engine = EngineKind::ddp;
  c.trainer.layout.data = 8;
  const TrainingFigures f = training_figures(c);
  const Bytes parameters = 2 * kAll, buckets = parameters;
  CHECK(f.parameters == alone.parameters);
  CHECK(f.states == alone.states);
  CHECK(f.forward == alone.forward + buckets);
  CHECK(f.backward == alone.backward + buckets);
  CHECK(f.optimizer == alone.optimizer + buckets);
}

TEST_CASE("by hand: views in the buckets leave no gradients beside them but those that were not reduced") {
  TrainingCase c = tiny();
  c.engine = EngineKind::ddp;
  c.trainer.gradient_as_bucket_view = true;
  const Bytes parameters = 2 * kAll, buckets = parameters, gradients = parameters;
  const Bytes base = parameters + 2 * parameters + buckets + kBuffers;
  const TrainingFigures once = training_figures(c);
  CHECK(once.forward == base + kAtLoss);
  CHECK(once.backward == base + kAtLossBackward);
  CHECK(once.optimizer == base + parameters + kInputs);  // the copy of the foreach step
  c.micro_batches = 2;
  const TrainingFigures reduced = training_figures(c);
  CHECK(reduced.forward == once.forward);
  CHECK(reduced.backward == once.backward);
  CHECK(reduced.optimizer == once.optimizer);
  // no_sync: the first micro-batch's gradients are tensors of their own, until the second one's backward pass has copied them
  c.trainer.gradient_sync_every_micro_batch = false;
  const TrainingFigures deferred = training_figures(c);
  CHECK(deferred.forward == base + gradients + kAtLoss);
  CHECK(deferred.backward == base + gradients + kAtLossBackward);
  CHECK(deferred.optimizer == once.optimizer);
}

TEST_CASE("by hand: DDP that looks for unused parameters hands out copies of the loss and of the logits") {
  TrainingCase c = tiny();
  c.engine = EngineKind::ddp;
  c.trainer.storage = c.trainer.compute = c.trainer.reduce = DType::fp32;
  const TrainingFigures plain = training_figures(c);
  c.trainer.find_unused_parameters = true;
  const TrainingFigures copies = training_figures(c);
  // the copies stand beside the logits and their log-probs, when the positions have gone with the model's own names
  CHECK(copies.forward == plain.forward + kLogits32 + kLoss - kPositions);
  CHECK(copies.backward == plain.backward);
  c.trainer.keep_outputs = true;  // the copies, no longer the originals
  CHECK(training_figures(c).forward == copies.forward);
  c.trainer.static_graph = true;
  CHECK(training_figures(c).forward == plain.forward);
}

TEST_CASE("by hand: buckets are filled in the order in which gradients come, the first one to 1 MiB, then to 25") {
  TrainingCase c = tiny();
  c.engine = EngineKind::ddp;
  Architecture wide = *c.architecture;
  wide.vocab = kLargeVocabulary;
  c.architecture = std::make_shared<const Architecture>(wide);
  const auto buckets = [&](std::int64_t mib) {
    c.trainer.bucket_cap_mb = mib;
    TrainTapes tapes;
    tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
    return rebuilt_buckets(make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1));
  };
  // the output layer's gradient (2 MiB) comes first, the embedding's (2 MiB) last
  const Bytes table = 2 * kLargeVocabulary * h, between = 2 * (layers * kLayer + h);
  CHECK(buckets(0) == std::vector<Bytes>{table, between + table});
  CHECK(buckets(1) == std::vector<Bytes>{table, between + table});
  CHECK(buckets(2) == std::vector<Bytes>{table, between + table});
  CHECK(buckets(3) == std::vector<Bytes>{table + between + table});
}

TEST_CASE("by hand: buckets that are never cut anew follow the order of the parameters, the last ones first") {
  TrainingCase c = tiny();
  c.engine = EngineKind::ddp;
  Architecture wide = *c.architecture;
  wide.vocab = kLargeVocabulary;
  c.architecture = std::make_shared<const Architecture>(wide);
  const auto plan = [&](bool finds, bool fixed) {
    c.trainer.find_unused_parameters = finds;
    c.trainer.static_graph = fixed;
    TrainTapes tapes;
    tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
    const TrainPlan p = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
    return std::pair(p.rebuilds_buckets, constructed_buckets(p));
  };
  const Bytes table = 2 * kLargeVocabulary * h, between = 2 * (layers * kLayer + h);
  CHECK(plan(true, false) == std::pair(false, std::vector<Bytes>{between + table, table}));
  CHECK(plan(false, false).first);
  CHECK(plan(true, true).first);
}

TEST_CASE("by hand: a checkpoint on the host is a layer's input") {
  TrainingCase c = tiny();
  c.trainer.recompute = Recompute::full;
  c.trainer.offload_checkpoints = true;
  TrainTapes tapes;
  tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, T, false));
  const TrainPlan p = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
  CHECK(p.host_checkpoint == 2 * T * h);
  PeakRecorder r;
  TrainEngine<PeakRecorder> engine(r, p, "");
  Player<PeakRecorder> player(r, *p.train, p.train_counts.counts, p.train_counts.chunks, "");
  engine.forward(player, Index(0));
  CHECK(r.span().host_net == layers * 2 * T * h);
  engine.backward(player, Index(0), true, true);
  CHECK(r.span().host_net == 0);
}

TEST_CASE("by hand: on FSDP1's flat shards bitsandbytes has blocks of shards, and nothing is factored") {
  TrainingCase c = tiny();
  c.engine = EngineKind::fsdp1;
  c.trainer.layout.data = 2;
  const Bytes root = kRoot / 2, layer = kLayer / 2;  // 8004 and 248 numbers: the layers' are too few to be quantised
  c.trainer.optimizer = OptimizerKind::adamw_8bit;
  CHECK(training_figures(c).states == 2 * (root + 4 * 32 + 4 * 256) + layers * 2 * 4 * layer);
  c.trainer.optimizer = OptimizerKind::adafactor;
  CHECK(training_figures(c).states == 4 * (root + 1) + layers * 4 * (layer + 1));
  c.trainer.optimizer = OptimizerKind::torch_adafactor;
  CHECK(training_figures(c).states == 2 * root + 4 + layers * (2 * layer + 4));
}

}  // namespace
