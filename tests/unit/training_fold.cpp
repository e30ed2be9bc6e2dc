// Training programs: what is folded equals what is written and expanded, and nothing is left but what stays resident.
#include <doctest/doctest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "job/names.hpp"
#include "layout/letters.hpp"
#include "sampled.hpp"
#include "training/engine.hpp"

namespace {

using namespace oomplan;

std::shared_ptr<const Architecture> dense(bool tied) {
  return std::make_shared<const Architecture>(read_config(
      R"({"model_type": "qwen3", "num_hidden_layers": 5, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000, "max_position_embeddings": 4096, "tie_word_embeddings": )" +
          std::string(tied ? "true}" : "false}"),
      "tiny dense"));
}

std::shared_ptr<const Architecture> experts() {
  return std::make_shared<const Architecture>(read_config(
      R"({"model_type": "qwen2_moe", "num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "num_experts": 8,
                      "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "norm_topk_prob": true,
                      "decoder_sparse_step": 1, "mlp_only_layers": [0, 5], "tie_word_embeddings": false})",
      "tiny experts"));
}

/// The small models of tests/data/executed_rows.jsonl: a family each.
std::vector<std::shared_ptr<const Architecture>> families() {
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

Setting usual() {
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

void check(const Setting& s) {
  static std::size_t asked = 0;
  if (asked++ % kEveryCase != 0) return;
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

const char* text(Recompute r, bool reentrant) { return r == Recompute::none ? "none" : reentrant ? "reentrant" : "full"; }

TEST_CASE("training: fold equals trace for every way to recompute, to wrap, to synchronise and to reshard") {
  int programs = 0;
  for (const auto engine : {EngineKind::single, EngineKind::fsdp2})
    for (const std::int64_t ranks : {1, 4, 6})
      for (const auto recompute : {Recompute::none, Recompute::full})
        for (const bool reentrant : {false, true})
          for (const std::int64_t micro_batches : {1, 2, 3})
            for (const bool sync : {true, false})
              for (const int wrap : {0, 1, 2, 3})
                for (const int reshard : {0, 1, 2, 3}) {
                  if (reentrant && recompute == Recompute::none) continue;
                  if (engine == EngineKind::single && (ranks > 1 || wrap > 0 || reshard > 0 || !sync)) continue;
                  if (ranks == 6 && (wrap == 1 || reshard == 1)) continue;
                  Setting s = usual();
                  s.engine = engine;
                  s.trainer.layout.data = ranks;
                  s.trainer.recompute = recompute;
                  s.trainer.reentrant = reentrant;
                  s.micro_batches = micro_batches;
                  s.trainer.gradient_sync_every_micro_batch = sync;
                  s.trainer.wrap_embedding = (wrap & 1) != 0;
                  s.trainer.wrap_head = (wrap & 2) != 0;
                  s.trainer.reshard_after_forward = (reshard & 1) != 0;
                  s.trainer.root_reshard = (reshard & 2) != 0;
                  CAPTURE(static_cast<int>(engine));
                  CAPTURE(ranks);
                  CAPTURE(text(recompute, reentrant));
                  CAPTURE(micro_batches);
                  CAPTURE(sync);
                  CAPTURE(wrap);
                  CAPTURE(reshard);
                  check(s);
                  ++programs;
                }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace under tensor parallelism and for torchtitan's models") {
  int programs = 0;
  for (const bool titan : {false, true})
    for (const std::int64_t tensor : {1, 2})
      for (const auto recompute : {Recompute::none, Recompute::full, Recompute::selective})
        for (const std::int64_t sequences : {1, 2})
          for (const int wrap : {0, 1, 2})  // root alone; embedding and output layer; the final norm with the latter
            for (const bool last : {false, true})
              for (const std::int64_t layers : {1, 2, 5}) {
                if (!titan && (tensor == 1 || recompute == Recompute::selective || sequences == 1)) continue;
                Setting s = usual();
                Architecture a = *s.architecture;
                a.runs[0].count = layers;
                s.architecture = std::make_shared<const Architecture>(a);
                s.trainer.layout.tensor = tensor;
                s.trainer.kernels = titan ? Kernels::torchtitan : Kernels::hf_flash;
                s.trainer.head = titan ? LossHead::cross_entropy : LossHead::areal_compiled;
                if (titan && tensor == 1 && last) s.trainer.head = LossHead::cross_entropy_chunked;
                s.trainer.recompute = recompute;
                s.trainer.sequences_per_micro_batch = sequences;
                s.trainer.wrap_embedding = s.trainer.wrap_head = wrap > 0;
                s.trainer.wrap_norm = wrap > 1;
                s.trainer.reshard_last = last;
                s.trainer.rms_norm = last ? RmsNorm::by_hand : RmsNorm::fused;
                s.trainer.repeat_kv = last;
                s.micro_batches = 2;
                CAPTURE(titan);
                CAPTURE(tensor);
                CAPTURE(static_cast<int>(recompute));
                CAPTURE(sequences);
                CAPTURE(wrap);
                CAPTURE(last);
                CAPTURE(layers);
                check(s);
                ++programs;
              }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for LitGPT's models") {
  int programs = 0;
  for (const auto kernels : {Kernels::litgpt, Kernels::litgpt_0_4_5})
    for (const std::int64_t rank : {0, 8})
      for (const auto engine : {EngineKind::single, EngineKind::fsdp1})
        for (const auto recompute : {Recompute::none, Recompute::full})
          for (const std::int64_t sequences : {1, 2})
            for (const std::int64_t layers : {1, 2, 5}) {
              if (rank > 0 && engine == EngineKind::fsdp1) continue;
              Setting s = usual();
              Architecture a = *s.architecture;
              a.runs[0].count = layers;
              a.tied = layers == 5;
              a.family = "llama";
              a.runs[0].layer.mixer.qk_norm = QkNorm::none;
              s.architecture = std::make_shared<const Architecture>(a);
              s.engine = engine;
              s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
              s.trainer.wrap_embedding = s.trainer.wrap_head = false;
              s.trainer.kernels = kernels;
              s.trainer.head = LossHead::litgpt;
              s.trainer.lora.rank = rank;
              s.trainer.lora.format = AdapterFormat::storage;
              if (layers == 5) s.trainer.lora.targets = {"q_proj", "down_proj", "lm_head"};
              s.trainer.recompute = recompute;
              s.trainer.sequences_per_micro_batch = sequences;
              s.micro_batches = 2;
              CAPTURE(static_cast<int>(kernels));
              CAPTURE(rank);
              CAPTURE(static_cast<int>(engine));
              CAPTURE(sequences);
              CAPTURE(layers);
              check(s);
              ++programs;
            }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for every way of DDP to hold gradients") {
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const bool views : {false, true})
      for (const bool sync : {false, true})
        for (const std::int64_t micro_batches : {1, 2, 4})
          for (const std::int64_t rank : {0, 8})
            for (const auto recompute : {Recompute::none, Recompute::full}) {
              Setting s = usual();
              if (rank > 0 && architecture->tied) continue;
              s.architecture = architecture;
              s.engine = EngineKind::ddp;
              s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
              s.trainer.lora.rank = rank;
              s.trainer.recompute = recompute;
              s.trainer.gradient_as_bucket_view = views;
              s.trainer.gradient_sync_every_micro_batch = sync;
              s.micro_batches = micro_batches;
              CAPTURE(architecture->name);
              CAPTURE(views);
              CAPTURE(sync);
              CAPTURE(micro_batches);
              CAPTURE(rank);
              CAPTURE(text(recompute, false));
              check(s);
              ++programs;
            }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for checkpoints of every n-th layer, on the device and on the host") {
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const auto engine : {EngineKind::single, EngineKind::ddp, EngineKind::fsdp1, EngineKind::fsdp2})
      for (const std::int64_t every : {1, 2, 3, 9})
        for (const bool host : {false, true})
          for (const bool reentrant : {false, true}) {
            Setting s = usual();
            s.architecture = architecture;
            s.engine = engine;
            s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
            s.trainer.recompute = Recompute::full;
            s.trainer.recompute_every = every;
            s.trainer.offload_checkpoints = host;
            s.trainer.reentrant = reentrant;
            s.trainer.find_unused_parameters = reentrant;
            s.micro_batches = 2;
            CAPTURE(architecture->name);
            CAPTURE(static_cast<int>(engine));
            CAPTURE(every);
            CAPTURE(host);
            CAPTURE(reentrant);
            check(s);
            ++programs;
          }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for activations on the host") {
  using enum OffloadActivations;
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const auto engine : {EngineKind::single, EngineKind::ddp, EngineKind::fsdp1, EngineKind::fsdp2})
      for (const auto how : {verl, save_on_cpu, save_on_cpu_pinned, offload_wrapper, trl})
        for (const auto recompute : {Recompute::none, Recompute::full}) {
          const bool units = engine == EngineKind::fsdp1 || engine == EngineKind::fsdp2;
          if (how == verl ? !units : engine == EngineKind::fsdp2) continue;
          if (how == trl && units) continue;
          if (recompute == Recompute::full && how == offload_wrapper) continue;
          Setting s = usual();
          s.architecture = architecture;
          s.engine = engine;
          s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
          s.trainer.kernels = Kernels::hf_flash;
          s.trainer.recompute = recompute;
          s.trainer.reentrant = how == verl;
          s.trainer.offload_activations = how;
          s.micro_batches = 2;
          CAPTURE(architecture->name);
          CAPTURE(static_cast<int>(engine));
          CAPTURE(static_cast<int>(how));
          CAPTURE(static_cast<int>(recompute));
          check(s);
          ++programs;
        }
  CHECK(programs == 3 * (2 * 2 + 3 * 5 + 2 * 2));
}

TEST_CASE("training: fold equals trace for every way of FSDP1 to gather, to keep and to reduce") {
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const std::int64_t ranks : {1, 4, 6})
      for (const bool reshard : {true, false})
        for (const auto backward : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
          for (const int form : {0, 1, 2, 3, 4, 5})
            for (const bool sync : {false, true})
              for (const std::int64_t micro_batches : {1, 2, 4})
                for (const auto storage : {DType::fp32, DType::bf16}) {
                  Setting s = usual();
                  s.architecture = architecture;
                  s.engine = EngineKind::fsdp1;
                  s.trainer.framework = ranks == 6 ? Framework::verl : Framework::torch;
                  s.trainer.layout.data = ranks;
                  s.trainer.storage = storage;
                  s.trainer.reduce = form == 2 ? DType::bf16 : DType::fp32;
                  s.trainer.reshard_after_forward = reshard;
                  s.trainer.backward_prefetch = backward;
                  s.trainer.forward_prefetch = form == 1 || form == 5;
                  s.trainer.recompute = form == 5 ? Recompute::full : Recompute::none;
                  s.trainer.reentrant = form == 5;
                  s.trainer.use_orig_params = form == 2;
                  s.trainer.cpu_offload_policy = form == 3;
                  if (form == 4 && architecture->tied) continue;
                  s.trainer.lora.rank = form == 4 ? 8 : 0;
                  s.trainer.gradient_sync_every_micro_batch = sync;
                  s.micro_batches = micro_batches;
                  if (form == 3 && sync && micro_batches > 1) continue;  // refused
                  CAPTURE(architecture->name);
                  CAPTURE(ranks);
                  CAPTURE(reshard);
                  CAPTURE(static_cast<int>(backward));
                  CAPTURE(form);
                  CAPTURE(sync);
                  CAPTURE(micro_batches);
                  CAPTURE(static_cast<int>(storage));
                  check(s);
                  ++programs;
                }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for every head, kernel set and architecture") {
  const std::vector<LossHead> heads{LossHead::hf_loss,
                                    LossHead::logprob_fp32,
                                    LossHead::logprob_bf16,
                                    LossHead::logprob_lse,
                                    LossHead::logprob_rows,
                                    LossHead::logprob_chunked,
                                    LossHead::logprob_entropy_fp32,
                                    LossHead::logprob_entropy_nograd,
                                    LossHead::logprob_temperature,
                                    LossHead::verl_flash_ce,
                                    LossHead::verl_entropy_compiled,
                                    LossHead::verl_entropy_eager,
                                    LossHead::verl_entropy_checkpoint,
                                    LossHead::verl_entropy_chunked,
                                    LossHead::verl_entropy_chunked_checkpoint,
                                    LossHead::verl_flash_ce_div_in_place,
                                    LossHead::verl_entropy_eager_div_in_place,
                                    LossHead::verl_fp32_flash_ce,
                                    LossHead::verl_fp32_entropy_eager,
                                    LossHead::areal_compiled,
                                    LossHead::areal_eager,
                                    LossHead::liger_ce,
                                    LossHead::liger_fused_ce,
                                    LossHead::foak_ce};
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const auto head : heads)
      for (const auto kernels : {Kernels::hf_flash, Kernels::hf_sdpa, Kernels::hf_eager})
        for (const auto engine : {EngineKind::single, EngineKind::fsdp2})
          for (const std::int64_t micro_batches : {1, 3}) {
            Setting s = usual();
            s.architecture = architecture;
            s.trainer.head = head;
            s.trainer.kernels = kernels;
            s.engine = engine;
            s.micro_batches = micro_batches;
            s.trainer.recompute = head == LossHead::hf_loss ? Recompute::none : Recompute::full;
            CAPTURE(architecture->name);
            CAPTURE(architecture->tied);
            CAPTURE(static_cast<int>(head));
            CAPTURE(static_cast<int>(kernels));
            CAPTURE(static_cast<int>(engine));
            CAPTURE(micro_batches);
            check(s);
            ++programs;
          }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for Liger's operators and for optimizers of other shapes") {
  int programs = 0;
  for (const auto kernels : {Kernels::hf_flash, Kernels::hf_sdpa, Kernels::hf_eager})
    for (const auto engine : {EngineKind::single, EngineKind::fsdp2, EngineKind::fsdp1})
      for (const auto optimizer :
           {OptimizerKind::adamw, OptimizerKind::adafactor, OptimizerKind::muon, OptimizerKind::paged_adamw_8bit})
        for (const bool tied : {false, true}) {
          Setting s = usual();
          if (engine != EngineKind::single && optimizer != OptimizerKind::adamw) continue;
          s.architecture = dense(tied);
          s.trainer.kernels = kernels;
          s.trainer.liger = {true, true, true, "0.5.10"};
          s.trainer.head = LossHead::liger_fused_ce;
          s.trainer.optimizer = optimizer;
          s.engine = engine;
          s.micro_batches = 2;
          CAPTURE(static_cast<int>(kernels));
          CAPTURE(static_cast<int>(engine));
          CAPTURE(static_cast<int>(optimizer));
          CAPTURE(tied);
          check(s);
          ++programs;
        }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for every family that was executed") {
  int programs = 0;
  for (const auto& architecture : families())
    for (const auto kernels : {Kernels::hf_flash, Kernels::hf_eager})
      for (const auto engine : {EngineKind::single, EngineKind::fsdp2})
        for (const auto recompute : {Recompute::none, Recompute::full}) {
          Setting s = usual();
          s.architecture = architecture;
          s.trainer.kernels = kernels;
          s.trainer.recompute = recompute;
          s.engine = engine;
          s.micro_batches = 2;
          CAPTURE(architecture->name);
          CAPTURE(static_cast<int>(kernels));
          CAPTURE(static_cast<int>(engine));
          CAPTURE(static_cast<int>(recompute));
          check(s);
          ++programs;
        }
  CHECK(programs >= 100);
  MESSAGE(programs << " programs");
}

std::vector<std::shared_ptr<const Architecture>> with_towers() {
  std::vector<std::shared_ptr<const Architecture>> out;
  for (const char* config : {
           R"({"model_type": "qwen2_5_vl",
          "text_config": {"model_type": "qwen2_5_vl_text", "num_hidden_layers": 5, "hidden_size": 64, "intermediate_size": 96,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
                          "max_position_embeddings": 4096},
          "vision_config": {"depth": 7, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
                            "patch_size": 14, "fullatt_block_indexes": [5], "window_size": 56}})",
           R"({"model_type": "qwen3_vl",
          "text_config": {"model_type": "qwen3_vl_text", "num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 96,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
                          "max_position_embeddings": 4096},
          "vision_config": {"depth": 7, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64,
                            "patch_size": 16, "num_position_embeddings": 16, "deepstack_visual_indexes": [1, 4]}})",
           R"({"model_type": "gemma3", "mm_tokens_per_image": 4,
          "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 5, "hidden_size": 64, "intermediate_size": 96,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
                          "sliding_window": 16, "sliding_window_pattern": 3, "max_position_embeddings": 4096},
          "vision_config": {"num_hidden_layers": 5, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48,
                            "patch_size": 14, "image_size": 56}})"})
    out.push_back(std::make_shared<const Architecture>(read_config(config, "tiny tower")));
  return out;
}

void check_tower(const std::shared_ptr<const Architecture>& model) {
  for (const auto engine : {EngineKind::single, EngineKind::ddp, EngineKind::fsdp2})
    for (const auto train : {TowerTraining::all, TowerTraining::projector, TowerTraining::none})
      for (const auto recompute : {Recompute::none, Recompute::full})
        for (const std::int64_t micro_batches : {1, 2})
          for (const bool sync : {true, false})
            for (const bool wrap : {true, false})
              for (const int reshard : {0, 1, 2}) {
                if (engine == EngineKind::single && (!sync || !wrap || reshard > 0)) continue;
                if (engine == EngineKind::ddp && (!wrap || reshard > 0)) continue;
                Setting s = usual();
                s.architecture = model;
                s.engine = engine;
                s.trainer.layout.data = engine == EngineKind::single ? 1 : 4;
                if (engine != EngineKind::fsdp2) s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
                s.trainer.kernels = reshard == 1 ? Kernels::hf_eager : Kernels::hf_sdpa;
                s.trainer.vision = {2, 84, 112, train};
                s.trainer.recompute = recompute;
                s.trainer.gradient_sync_every_micro_batch = sync;
                s.trainer.wrap_embedding = wrap;
                s.trainer.reshard_after_forward = reshard != 2;
                s.trainer.root_reshard = reshard == 0;
                s.micro_batches = micro_batches;
                CAPTURE(static_cast<int>(engine));
                CAPTURE(spelling(train));
                CAPTURE(text(recompute, false));
                CAPTURE(micro_batches);
                CAPTURE(reshard);
                check(s);
              }
}

TEST_CASE("training: fold equals trace for a vision tower, trained and frozen") {
  for (const auto& model : with_towers()) {
    CAPTURE(model->tower.kind);
    check_tower(model);
  }
}

TEST_CASE("training: fold equals trace for packed bases, DoRA and losses of older transformers") {
  int programs = 0;
  for (const auto& architecture : families())
    for (const auto engine : {EngineKind::single, EngineKind::fsdp1})
      for (const char* release : {"", "0.43.0"})
        for (const int form : {0, 1, 2}) {
          Setting s = usual();
          s.architecture = architecture;
          s.trainer.kernels = Kernels::hf_eager;
          s.trainer.reentrant = form == 1;
          s.engine = engine;
          s.trainer.lora.rank = 4;
          s.trainer.storage = s.trainer.compute = DType::bf16;
          s.trainer.lora.dora = form == 2;
          s.trainer.lora.base.format = form == 2 ? BaseFormat::full : BaseFormat::nf4;
          s.trainer.lora.base.double_quant = form == 1;
          s.trainer.lora.base.compute = DType::bf16;
          s.trainer.lora.base.version = release;
          if (*release != 0) s.trainer.transformers_version = "4.45.2";
          if (form == 2 && engine != EngineKind::single) continue;
          if (!unsupported(*architecture, train_pass(s.trainer, engine, *architecture, false, 4096).kernels).empty()) continue;
          CAPTURE(architecture->name);
          CAPTURE(static_cast<int>(engine));
          CAPTURE(release);
          CAPTURE(form);
          check(s);
          ++programs;
        }
  CHECK(programs >= 48);
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for fms-acceleration's operators and GPTQ bases") {
  int programs = 0;
  const auto all = families();
  const auto llama = std::find_if(all.begin(), all.end(), [](const auto& a) { return a->family == "llama"; });
  REQUIRE(llama != all.end());
  for (const auto kernels : {Kernels::hf_flash, Kernels::hf_eager})
    for (const auto engine : {EngineKind::single, EngineKind::fsdp1})
      for (const auto format : {BaseFormat::full, BaseFormat::nf4, BaseFormat::gptq})
        for (const bool fused : {false, true})
          for (const bool reentrant : {false, true}) {
            Setting s = usual();
            s.architecture = *llama;
            s.engine = engine;
            Trainer& t = s.trainer;
            t.kernels = kernels;
            t.reentrant = reentrant;
            t.head = LossHead::foak_ce;
            t.storage = t.compute = format == BaseFormat::gptq ? DType::fp16 : DType::bf16;
            t.foak = {fused, fused, fused && format != BaseFormat::full};
            if (format != BaseFormat::full) {
              t.autocast = true;
              t.lora.rank = 4;
              t.lora.dropout = 0.1;
              t.lora.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
              t.lora.base.format = format;
              t.lora.base.double_quant = format == BaseFormat::nf4;
              t.lora.base.compute = DType::bf16;
            }
            CAPTURE(static_cast<int>(kernels));
            CAPTURE(static_cast<int>(engine));
            CAPTURE(static_cast<int>(format));
            CAPTURE(fused);
            CAPTURE(reentrant);
            check(s);
            ++programs;
          }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for adapters beside every family that can have them") {
  int programs = 0;
  for (const auto& architecture : families())
    for (const auto engine : {EngineKind::single, EngineKind::fsdp2})
      for (const bool all : {true, false}) {
        Setting s = usual();
        s.architecture = architecture;
        s.trainer.kernels = Kernels::hf_eager;
        s.trainer.recompute = all ? Recompute::none : Recompute::full;
        s.engine = engine;
        s.trainer.lora.rank = 4;
        if (!all) s.trainer.lora.targets = {"o_proj"};
        if (!unsupported(*architecture, train_pass(s.trainer, engine, *architecture, false, 4096).kernels).empty()) continue;
        CAPTURE(architecture->name);
        CAPTURE(static_cast<int>(engine));
        CAPTURE(all);
        check(s);
        ++programs;
      }
  CHECK(programs >= 48);
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for Archon") {
  int programs = 0;
  for (const char* model : {"Qwen/Qwen3-1.7B", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B"})
    for (const auto recompute : {Recompute::none, Recompute::full, Recompute::selective})
      for (const char* layout : {"d4", "d2c4", "d2t2"})
        for (const int reshard : {0, 1, 2})
          for (const std::int64_t micro_batches : {1, 2}) {
            Setting s = usual();
            s.architecture = Catalog::builtin().model(model).architecture;
            s.engine = EngineKind::archon;
            s.micro_batches = micro_batches;
            Trainer& t = s.trainer;
            t.framework = Framework::areal;
            t.kernels = Kernels::archon;
            t.storage = t.compute = DType::bf16;
            t.reduce = DType::fp32;
            t.head = LossHead::areal_compiled;
            t.layout = *read_letters(layout).layout;
            t.sequences_per_micro_batch = 0;
            t.tokens_per_micro_batch = 4096;
            t.recompute = recompute;
            t.wrap_embedding = t.wrap_head = t.wrap_norm = true;
            t.reshard_after_forward = reshard != 2;
            t.reshard_last = reshard == 1;
            if (!unsupported(*s.architecture, train_pass(t, s.engine, *s.architecture, false, 4096).kernels).empty()) continue;
            CAPTURE(model);
            CAPTURE(text(recompute, false));
            CAPTURE(layout);
            CAPTURE(reshard);
            check(s);
            ++programs;
          }
  CHECK(programs == 144);
}

TEST_CASE("training: fold equals trace for precisions, Ulysses, replicas, offload, padding and short runs of layers") {
  std::vector<std::pair<std::string, Setting>> settings;
  const auto add = [&](const std::string& name, auto&& change) {
    for (const std::int64_t micro_batches : {1, 2}) {
      Setting s = usual();
      s.micro_batches = micro_batches;
      change(s);
      settings.emplace_back(name + " x" + std::to_string(micro_batches), std::move(s));
    }
  };
  for (const auto storage : {DType::fp32, DType::bf16})
    for (const auto compute : {DType::fp32, DType::bf16})
      for (const auto reduce : {DType::fp32, DType::bf16})
        add("precision", [&](Setting& s) {
          s.trainer.storage = storage;
          s.trainer.compute = compute;
          s.trainer.reduce = reduce;
          s.trainer.kernels = compute == DType::fp32 ? Kernels::hf_eager : Kernels::hf_flash;
        });
  add("autocast", [](Setting& s) { s.trainer.autocast = true; });
  add("autocast of fp32 parameters", [](Setting& s) {
    s.engine = EngineKind::single;
    s.trainer.layout.data = 1;
    s.trainer.autocast = true;
    s.trainer.compute = DType::fp32;
  });
  for (const auto framework : {Framework::verl, Framework::areal})
    for (const std::int64_t context : {2, 4})
      add("ulysses", [&](Setting& s) {
        s.trainer.framework = framework;
        s.trainer.layout.context = context;
        s.trainer.sequences_per_micro_batch = 0;
        s.trainer.tokens_per_micro_batch = 5000;
        s.trainer.head = framework == Framework::verl ? LossHead::verl_flash_ce : LossHead::areal_compiled;
      });
  for (const auto format : {AdapterFormat::fp32, AdapterFormat::storage})
    for (const auto engine : {EngineKind::single, EngineKind::fsdp2})
      for (const auto recompute : {Recompute::none, Recompute::full})
        for (const bool wrap : {false, true})
          add("adapters", [&](Setting& s) {
            s.engine = engine;
            if (engine == EngineKind::single) s.trainer.layout.data = 1;
            s.trainer.storage = DType::bf16;
            s.trainer.recompute = recompute;
            s.trainer.wrap_embedding = s.trainer.wrap_head = wrap;
            s.trainer.lora.rank = 8;
            s.trainer.lora.dropout = wrap ? 0.1 : 0;
            s.trainer.lora.format = format;
            s.trainer.gradient_sync_every_micro_batch = wrap;
          });
  for (const std::int64_t over : {0, 2})
    for (const bool prefetch : {false, true})
      for (const bool wrap : {false, true})
        for (const bool root : {false, true})
          for (const int layers : {1, 2, 5})
            add("resharded over fewer ranks, prefetched", [&](Setting& s) {
              s.trainer.reshard_ranks = over;
              s.trainer.forward_prefetch = prefetch;
              s.trainer.wrap_embedding = s.trainer.wrap_head = wrap;
              s.trainer.root_reshard = root;
              s.micro_batches = 2;
              Architecture a = layers == 1 ? *experts() : *s.architecture;
              if (layers > 1) a.runs[0].count = layers;
              s.architecture = std::make_shared<const Architecture>(a);
            });
  add("replicas", [](Setting& s) { s.trainer.replicas = 2; });
  add("parameters on the host", [](Setting& s) { s.trainer.cpu_offload_policy = true; });
  add("padding", [](Setting& s) {
    s.trainer.padding_mask = true;
    s.trainer.kernels = Kernels::hf_sdpa;
    s.trainer.sequences_per_micro_batch = 2;
  });
  add("math kernel", [](Setting& s) {
    s.trainer.sdpa_math = true;
    s.trainer.kernels = Kernels::hf_sdpa;
  });
  add("outputs kept", [](Setting& s) { s.trainer.keep_outputs = true; });
  add("logits of the last tokens", [](Setting& s) { s.trainer.logits_to_keep = 100; });
  add("value head", [](Setting& s) { s.critic = true; });
  for (const auto form : {OptimizerForm::foreach, OptimizerForm::fused, OptimizerForm::loop})
    add("optimizer", [&](Setting& s) { s.trainer.optimizer_form = form; });
  for (const std::int64_t tokens : {512, 1024, 1025, 3000})
    add("chunks", [&](Setting& s) {
      s.trainer.head = LossHead::areal_compiled;
      s.trainer.sequence_tokens = tokens;
    });
  for (const auto head : {LossHead::verl_entropy_chunked, LossHead::verl_entropy_chunked_checkpoint})
    for (const std::int64_t tokens : {1000, 4096, 6144, 8192, 12288})
      add("chunks of verl's entropy", [&](Setting& s) {
        s.trainer.head = head;
        s.trainer.sequence_tokens = tokens;
        s.trainer.autocast = true;
      });
  for (const std::int64_t tokens : {1, 2, 3, 4, 100})
    add("rows", [&](Setting& s) {
      s.trainer.head = LossHead::verl_rows;
      s.trainer.sequence_tokens = tokens;
      s.trainer.autocast = true;
    });
  for (const int layers : {1, 2, 3, 4})
    add("layers", [&](Setting& s) {
      Architecture a = *s.architecture;
      a.runs[0].count = layers;
      s.architecture = std::make_shared<const Architecture>(a);
    });
  for (const bool last : {false, true})
    add("matrices gathered in 8 bits", [&](Setting& s) {
      s.trainer.float8_all_gather = true;
      s.trainer.storage = s.trainer.reduce = DType::fp32;
      s.trainer.reshard_last = last;
    });
  for (const auto& [name, setting] : settings) {
    CAPTURE(name);
    check(setting);
  }
  MESSAGE(settings.size() << " programs");
}

}  // namespace
