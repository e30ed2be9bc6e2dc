// Training programs: what is folded equals what is written and expanded, for every kind of model, kernel set, head and adapter.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "job/names.hpp"
#include "layout/letters.hpp"
#include "training_fold.hpp"

namespace {

using namespace oomplan;
using namespace oomplan::fold_cases;

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
                                    LossHead::verl_fused,
                                    LossHead::verl_fused_entropy,
                                    LossHead::verl_fused_log_softmax,
                                    LossHead::verl_fused_log_softmax_entropy,
                                    LossHead::verl_fused_triton,
                                    LossHead::verl_fused_triton_entropy,
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

TEST_CASE("training: fold equals trace for Liger's operators beside adapters") {
  int programs = 0;
  for (const auto& targets : {std::vector<std::string>{"q_proj"}, {"gate_proj", "down_proj"}, {}})
    for (const auto recompute : {Recompute::none, Recompute::full})
      for (const auto engine : {EngineKind::single, EngineKind::ddp, EngineKind::fsdp1, EngineKind::fsdp2})
        for (const bool older : {false, true})
          for (const bool several : {false, true}) {
            Setting s = usual();
            s.engine = engine;
            s.trainer.layout.data = engine == EngineKind::single ? 1 : 4;
            if (engine == EngineKind::single || engine == EngineKind::ddp)
              s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
            s.trainer.recompute = recompute;
            s.trainer.liger = {true, true, true, older ? "0.5.10" : ""};
            s.trainer.lora.rank = 8;
            s.trainer.lora.targets = targets;
            s.trainer.sequences_per_micro_batch = several ? 3 : 1;
            s.micro_batches = several ? 2 : 1;
            CAPTURE(targets.size());
            CAPTURE(text(recompute, false));
            CAPTURE(static_cast<int>(engine));
            CAPTURE(older);
            CAPTURE(several);
            check(s);
            ++programs;
          }
  CHECK(programs == 96);
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
                s.trainer.vision = {.images = 2, .height = 84, .width = 112, .train = train};
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
          const bool experts = architecture->runs.back().layer.feed_forward.kind == FeedForwardKind::moe;
          if (form == 2 && experts) continue;  // peft itself has no DoRA beside fused experts
          if (experts) s.trainer.lora.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
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
        if (!all) s.trainer.lora.targets = {"o_proj", "out_proj", "dense", "c_proj", "wo"};  // what families call one module
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

}  // namespace
