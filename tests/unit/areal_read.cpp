// AReaL's own files, from text to facts, to a Job, to an answer: what each release makes of the same keys.
#include <doctest/doctest.h>

#include "areal_files.hpp"
#include "frontends/areal/areal.hpp"
#include "frontends/areal/facts_json.hpp"
#include "frontends/areal/patch.hpp"
#include "frontends/areal/wording.hpp"
#include "layout/rules.hpp"

using namespace oomplan;
using namespace oomplan::areal_files;

namespace {

FactValue value(const areal::ArealText& t, std::string_view key) {
  const auto* fact = t.meaning.find(key);
  return fact == nullptr ? FactValue("not told") : fact->value;
}
std::vector<std::string> built(const areal::ArealText& t) {
  std::vector<std::string> out;
  for (const auto& r : t.meaning.roles) out.push_back(r.name + (r.beside.empty() ? "" : " beside " + r.beside));
  return out;
}

}  // namespace

TEST_CASE("areal: a file becomes a job, and every value knows its line") {
  const Reading r = read(source("grpo_7b.yaml", "1.0.4"));
  const Role &actor = *r.job.role("actor"), &rollout = *r.job.role("rollout");
  CHECK(r.job.role("ref") == nullptr);
  CHECK(actor.trainer.layout.data == 4);
  CHECK(actor.trainer.tokens_per_micro_batch == 16384);
  CHECK(actor.trainer.recompute == Recompute::full);
  CHECK(actor.trainer.storage == DType::bf16);
  CHECK(actor.trainer.head == LossHead::areal_compiled);
  CHECK(rollout.server.memory_fraction == 0.8);
  CHECK(rollout.server.concurrency == 64 * 8);
  CHECK(rollout.server.version == "0.5.10");
  CHECK(r.job.sequences_per_step == 128 * 8 / 4);
  CHECK(r.job.sync.by == SyncBy::nccl);
  CHECK(r.job.sync.bucket == kGiB);
  const Origin& budget = r.job.origins.at("actor.tokens_per_micro_batch");
  CHECK(budget.place.file == "grpo_7b.yaml");
  CHECK(budget.place.line == 34);
  // through ${actor.path}: the literal
  CHECK(r.job.origins.at("rollout.model").place.line == 30);
}

TEST_CASE("areal: what is stored changed with 2.0.0: 8 bytes a parameter became 16") {
  const auto bytes = [](const char* release) {
    const Job job = read(source("grpo_7b.yaml", release)).job;
    return std::pair(job.role("actor")->trainer.storage, need(estimate_quick(job), "actor.optimizer"));
  };
  const auto [before, small] = bytes("1.0.4");
  const auto [after, large] = bytes("2.0.0");
  CHECK(before == DType::bf16);
  CHECK(after == DType::fp32);
  // parameters, gradients and two states of 7.6 billion parameters on four GPUs
  const double parameters = 7'615'616'512.0 / 4;
  CHECK(static_cast<double>(large - small) == doctest::Approx(8 * parameters).epsilon(0.02));
}

TEST_CASE("areal: a file read again with other arguments is what it is when it is read alone") {
  const std::vector<std::vector<std::string>> calls{
      {},
      {"actor.kl_ctl=0.1"},
      {"actor.backend=fsdp:d2c2", "rollout.backend=sglang:t4"},
      {"+actor.fsdp.offload_params=true"},
      {"actor.path=null", "actor.nonsense=1", "rollout.max_concurrent_rollouts=few"},
      {}};
  for (const char* name : {"grpo_7b.yaml", "grpo_1.5b_ref.yaml"}) {
    areal::ReadingStore store;
    for (const char* release : {"1.0.4", "2.0.0"}) {
      for (const auto& overrides : calls) {
        const Source s = source(name, release, overrides);
        const auto again = areal::read_areal(s, store), alone = areal::read_areal(s);
        CHECK(areal::facts_json(again) == areal::facts_json(alone));
        CHECK(areal::same_values(again.root, alone.root));
        REQUIRE(again.native.problems.size() == alone.native.problems.size());
        for (std::size_t i = 0; i < alone.native.problems.size(); ++i)
          CHECK(to_text(again.native.problems[i]) == to_text(alone.native.problems[i]));
        REQUIRE(again.notes.size() == alone.notes.size());
        for (std::size_t i = 0; i < alone.notes.size(); ++i) CHECK(again.notes[i].text == alone.notes[i].text);
      }
    }
  }
  // another text under the same name is another file
  areal::ReadingStore store;
  Source s = source("grpo_7b.yaml", "1.0.4");
  const auto at = s.text.find("mem_fraction_static: 0.8");
  REQUIRE(at != std::string::npos);
  const auto before = areal::read_areal(s, store);
  s.text.replace(at, 24, "mem_fraction_static: 0.7");
  CHECK(!areal::same_values(before.root, areal::read_areal(s, store).root));
}

TEST_CASE("areal: a reference is built only when its loss has a weight") {
  const auto without = areal::read_areal(source("grpo_7b.yaml", "1.0.4"));
  CHECK(built(without) == std::vector<std::string>{"actor", "rollout"});
  REQUIRE(without.meaning.absent.size() == 1);
  CHECK(without.meaning.absent[0].why == "configured but never built: actor.kl_ctl = 0.0");
  const auto with = areal::read_areal(source("grpo_7b.yaml", "1.0.4", {"actor.kl_ctl=0.1"}));
  CHECK(built(with) == std::vector<std::string>{"actor", "ref beside actor", "rollout"});
  CHECK((value(with, "roles.ref.own_process") == FactValue(true)));
  CHECK((value(with, "roles.ref.trainable") == FactValue(false)));
}

TEST_CASE("areal: a file with a defaults list") {
  const auto t = areal::read_areal(source("grpo_1.5b_ref.yaml", "1.0.4"));
  CHECK(t.native.problems.empty());
  CHECK(built(t) == std::vector<std::string>{"actor", "ref beside actor", "rollout"});
  CHECK((value(t, "roles.actor.model") == FactValue("Qwen/Qwen2.5-1.5B-Instruct")));
  CHECK((value(t, "roles.rollout.model") == FactValue("Qwen/Qwen2.5-1.5B-Instruct")));
  CHECK(t.meaning.find("roles.actor.model")->origin.place.file == "grpo_1.5b_ref.yaml");
  CHECK(t.meaning.find("roles.actor.gpus")->origin.place.file == "grpo_7b.yaml");
}

TEST_CASE("areal: one string for all engines, with roles in the actor's process or in their own") {
  const auto early = areal::read_areal(source("ppo_allocation_mode.yaml", "0.4.1"));
  CHECK(built(early) == std::vector<std::string>{"actor", "critic beside actor", "ref beside actor", "rollout"});
  CHECK((value(early, "roles.critic.placement") == FactValue("in_process:actor")));
  CHECK((value(early, "weight_update.mode") == FactValue("nccl")));
  CHECK(read(source("ppo_allocation_mode.yaml", "0.4.1")).job.role("critic")->in_process);
  // from 0.5.2 on there is a controller beside the launchers; it does not start without a type of scheduler
  const auto critic = [](const char* release, std::vector<std::string> overrides) {
    return areal::read_areal(source("ppo_allocation_mode.yaml", release, std::move(overrides)));
  };
  const std::vector<std::string> local{"+scheduler.type=local"};
  for (const auto& launched : {critic("0.5.1", local), critic("0.5.3", {}), critic("1.0.2", {})}) {
    CHECK((value(launched, "roles.critic.placement") == FactValue("in_process:actor")));
    CHECK((value(launched, "roles.ref.placement") == FactValue("in_process:actor")));
  }
  for (const char* release : {"0.5.2", "0.5.3", "1.0.2"}) {
    CHECK((value(critic(release, local), "roles.critic.placement") == FactValue("shares:actor")));
    CHECK_FALSE(read(source("ppo_allocation_mode.yaml", release, local)).job.role("critic")->in_process);
  }
  // without a version: the newest release that reads the string
  const auto unnamed = areal::read_areal(source("ppo_allocation_mode.yaml", ""));
  CHECK(areal::name_of(unnamed.release) == "1.0.2");
  CHECK(notes_say(unnamed.notes, "the newest release that reads this allocation_mode"));
  // from 1.0.3 on every engine has its own
  const std::string now = refusal(source("ppo_allocation_mode.yaml", "1.0.4"));
  CHECK(now.find("actor.backend: found nothing") != std::string::npos);
  CHECK(now.find("rollout.backend: found nothing") != std::string::npos);
}

TEST_CASE("areal: keys of other releases are named, with what became of them") {
  const std::string stale = refusal(source("grpo_7b.yaml", "1.0.4", {"+actor.fsdp.ulysses_sp_size=2"}));
  CHECK(stale.find("actor.fsdp.ulysses_sp_size: found an unknown key") != std::string::npos);
  CHECK(stale.find("the letter c") != std::string::npos);
  const std::string typing = refusal(source("grpo_7b.yaml", "1.0.4", {"+actor.mb_spec.max_token_per_mb=2"}));
  CHECK(typing.find("did you mean 'actor.mb_spec.max_tokens_per_mb'") != std::string::npos);
  CHECK(refusal(source("grpo_7b.yaml", "1.0.4", {"actor.mb_spec.max_tokens_per_mb=many"})).find("a whole number or null") !=
        std::string::npos);
}

TEST_CASE("areal: what cannot be estimated yet is refused by name") {
  const auto says = [](std::vector<std::string> overrides, const std::string& words) {
    const std::string all = refusal(source("grpo_7b.yaml", "2.0.0", std::move(overrides)));
    CHECK_MESSAGE(all.find("not supported yet: " + words) != std::string::npos, all);
  };
  says({"actor.backend=archon:d2p2"}, "pipelines of Archon");
  says({"actor.backend=archon:d2t2", "+actor.archon.enable_compile=true"},
       "torch.compile of Archon's blocks under tensor parallelism");
  says({"actor.backend=archon:d2c2", "+actor.archon.enable_compile=true"},
       "torch.compile of Archon's blocks whose ranks share a sequence");
  says({"actor.backend=archon:d4", "+actor.archon.enable_compile=true", "+actor.enable_tree_training=true"},
       "torch.compile of Archon's blocks with packed trees");
  says({"actor.backend=archon:d4", "+actor.archon.offload_params=true"}, "Archon with its parameters on the host");
  says({"actor.backend=archon:d4", "+actor.archon.attn_type=sdpa"}, "another attention of Archon than varlen");
  says({"actor.backend=archon:d4", "+actor.archon.ac_mode=memory_budget"}, "a memory budget of compiled blocks");
  says({"+actor.enable_tree_training=true"}, "tree training outside of Archon");
  says({"+actor.enable_tree_training=true", "actor.backend=archon:d2t2"}, "tree training under tensor parallelism");
  says({"actor.optimizer.type=adam_bf16"}, "AnyPrecisionAdamW");
  says({"+sglang.dp_size=2"}, "data parallelism inside SGLang");
  const std::string awex = refusal(source("grpo_7b.yaml", "main", {"+actor.weight_update_mode=awex"}));
  CHECK(awex.find("not supported yet: the weight update by awex") != std::string::npos);
}

TEST_CASE("areal: an actor on Megatron has the settings of mbridge's models") {
  const auto actor = [](std::string version, std::vector<std::string> overrides) {
    return *read(source("grpo_7b.yaml", std::move(version), std::move(overrides))).job.role("actor");
  };
  const Role plain = actor("1.0.4", {"actor.backend=megatron:d4", "actor.gradient_checkpointing=false"});
  CHECK(plain.engine == EngineKind::megatron);
  CHECK(plain.trainer.kernels == Kernels::transformer_engine);
  CHECK(plain.trainer.recompute == Recompute::none);
  CHECK(plain.trainer.storage == DType::bf16);  // also from 2.0.0 on, where FSDP stores fp32
  CHECK(actor("2.0.0", {"actor.backend=megatron:d4"}).trainer.storage == DType::bf16);
  CHECK(plain.trainer.reduce == DType::fp32);
  const Megatron& m = plain.trainer.megatron;
  CHECK_FALSE(m.sequence_parallel);
  CHECK_FALSE(m.gradient_accumulation_fusion);
  CHECK_FALSE(m.deallocate_outputs);
  CHECK_FALSE(m.rotary_fusion);
  CHECK_FALSE(m.activation_fusion);
  CHECK(m.distributed_optimizer);
  const Role split = actor("1.0.4", {"actor.backend=megatron:d2t2", "+actor.megatron.ddp.grad_reduce_in_fp32=false",
                                     "+actor.megatron.ddp.use_distributed_optimizer=false", "actor.gradient_checkpointing=true",
                                     "+actor.megatron.recompute_num_layers=2"});
  CHECK(split.trainer.megatron.sequence_parallel);
  CHECK(split.trainer.reduce == DType::bf16);
  CHECK_FALSE(split.trainer.megatron.distributed_optimizer);
  CHECK(split.trainer.recompute == Recompute::full);
  CHECK(split.trainer.megatron.recompute_layers == 2);
  // adam_bf16 becomes Megatron's precision-aware optimizer, which keeps its masters as AReaL sets it too late
  const Megatron narrow = actor("2.0.0", {"actor.backend=megatron:d4", "actor.optimizer.type=adam_bf16"}).trainer.megatron;
  CHECK(narrow.precision_aware);
  CHECK(narrow.exp_avg == DType::bf16);
  CHECK(narrow.exp_avg_sq == DType::bf16);
  CHECK(narrow.fp32_masters);
}

TEST_CASE("areal: what Megatron's engine does otherwise is refused by name") {
  const auto says = [](const std::string& version, std::vector<std::string> overrides, const std::string& words) {
    const std::string all = refusal(source("grpo_7b.yaml", version, std::move(overrides)));
    CHECK_MESSAGE(all.find("not supported yet: " + words) != std::string::npos, all);
  };
  const std::string on = "actor.backend=megatron:d4";
  says("1.0.3", {"actor.backend=megatron:d2c2"}, "context parallelism of Megatron before AReaL 1.0.4");
  says("1.0.3", {on, "+actor.megatron.bridge_type=megatron-bridge"}, "Megatron-Bridge before AReaL 1.0.4");
  says("main", {on, "+actor.megatron.moe_router_fusion=true"}, "fused routers");
  says("main", {on, "+actor.megatron.enable_fp32_lm_head=true"}, "an output layer in fp32");
  says("2.0.0", {on, "+actor.megatron.fp8_config.mode=e4m3"}, "products in 8 bits under AReaL");
}

TEST_CASE("areal: Megatron-Bridge makes other models than mbridge, and takes other keys") {
  const std::string on = "actor.backend=megatron:d4", bridge = "+actor.megatron.bridge_type=megatron-bridge";
  const auto actor = [](const std::string& version, std::vector<std::string> overrides) {
    return *read(source("grpo_7b.yaml", version, std::move(overrides))).job.role("actor");
  };
  const Role by_mbridge = actor("2.0.0", {on}), by_bridge = actor("2.0.0", {on, bridge, "actor.gradient_checkpointing=false"});
  CHECK(by_bridge.trainer.megatron.maker == ModelMaker::megatron_bridge);
  CHECK(by_bridge.trainer.megatron.gradient_accumulation_fusion);
  CHECK(by_bridge.trainer.megatron.deallocate_outputs);
  CHECK_FALSE(by_bridge.trainer.megatron.activation_fusion);
  CHECK_FALSE(by_mbridge.trainer.megatron.gradient_accumulation_fusion);
  CHECK(by_bridge.trainer.recompute == Recompute::full);  // whatever gradient_checkpointing says
  // its loss: keys that change nothing are no reason to refuse
  const Megatron plain =
      actor("main", {on, "+actor.megatron.entropy_requires_grad=true", "+actor.megatron.lm_head_loss_chunk_size=64",
                     "+actor.megatron.cross_entropy_loss_fusion=true"})
          .trainer.megatron;
  CHECK_FALSE(plain.fp32_logits);
  CHECK_FALSE(plain.entropy_loss);
  const Megatron chunked =
      actor("main", {on, "+actor.megatron.enable_chunked_logits=true", "+actor.logprobs_chunk_size=512"}).trainer.megatron;
  CHECK(chunked.fp32_logits);
  CHECK(chunked.head_chunk == 0);
  CHECK(actor("main", {on, "+actor.megatron.enable_chunked_logits=true", "+actor.megatron.lm_head_loss_chunk_size=128"})
            .trainer.megatron.head_chunk == 128);
  CHECK(chunked.log_probs_chunk == 512);
  CHECK(actor("main", {on, "+actor.megatron.enable_chunked_logits=true", "+actor.megatron.entropy_requires_grad=true"})
            .trainer.megatron.entropy_loss);
  // keys of experts reach mbridge's models from 2.0.0 on
  CHECK(by_mbridge.trainer.megatron.router == DType::fp32);
  CHECK(actor("1.0.4", {on}).trainer.megatron.router == DType::bf16);
  CHECK(actor("2.0.0", {on, "+actor.megatron.moe_permute_fusion=true"}).trainer.megatron.permute_fusion);
  CHECK_FALSE(actor("1.0.4", {on, "+actor.megatron.moe_permute_fusion=true"}).trainer.megatron.permute_fusion);
}

TEST_CASE("areal: adapters under Megatron are Megatron-Bridge's alone") {
  const std::string on = "actor.backend=megatron:d4", bridge = "+actor.megatron.bridge_type=megatron-bridge";
  const std::string without = refusal(source("grpo_7b.yaml", "2.0.0", {on, "+actor.use_lora=true"}));
  CHECK_MESSAGE(without.find("AReaL itself has adapters under Megatron only with megatron.bridge_type") != std::string::npos,
                without);
  const Job job = read(source("grpo_7b.yaml", "2.0.0",
                              {on, bridge, "+actor.use_lora=true", "+actor.lora_rank=16", "rollout.backend=vllm:d4",
                               "+actor.target_modules=[linear_qkv,linear_proj]"}))
                      .job;
  const Trainer& t = job.role("actor")->trainer;
  CHECK(t.lora.rank == 16);
  CHECK(t.lora.targets == std::vector<std::string>{"linear_qkv", "linear_proj"});
  CHECK_FALSE(t.megatron.distributed_optimizer);
  CHECK_FALSE(t.megatron.gradient_accumulation_fusion);
  CHECK(t.recompute == Recompute::full);
}

TEST_CASE("areal: Archon is FSDP2 around models of its own") {
  const auto actor = [&](std::vector<std::string> more, const char* release = "2.0.0") {
    std::vector<std::string> keys{"actor.backend=archon:d4"};
    keys.insert(keys.end(), more.begin(), more.end());
    const Reading reading = read(source("grpo_7b.yaml", release, std::move(keys)));
    return *reading.job.role("actor");
  };
  const Role plain = actor({});
  CHECK(plain.engine == EngineKind::archon);
  CHECK(plain.trainer.kernels == Kernels::archon);
  CHECK(plain.trainer.storage == DType::bf16);  // optimizer_dtype is FSDP's
  CHECK(plain.trainer.reduce == DType::fp32);
  CHECK((plain.trainer.wrap_embedding && plain.trainer.wrap_head && plain.trainer.wrap_norm));
  CHECK_FALSE(plain.trainer.reshard_last);
  CHECK(plain.trainer.recompute == Recompute::selective);
  // 2 MiB / 3584 / 2 bytes are 292 tokens
  CHECK(plain.trainer.tokens_per_micro_batch % 292 == 0);
  const auto tokens = [&](std::vector<std::string> more) { return actor(std::move(more)).trainer.tokens_per_micro_batch; };
  CHECK(tokens({"actor.mb_spec.max_tokens_per_mb=16384"}) == 57 * 292);
  CHECK(tokens({"actor.mb_spec.max_tokens_per_mb=16384", "+actor.pad_to_maximum=true"}) == 16384);
  CHECK(tokens({"actor.mb_spec.max_tokens_per_mb=16384", "actor.backend=archon:d1c4"}) == 29 * 584);  // lcm(292, 8)
  CHECK(actor({"+actor.archon.ac_mode=full"}).trainer.recompute == Recompute::full);
  CHECK(actor({"actor.gradient_checkpointing=false"}).trainer.recompute == Recompute::none);
  const Trainer spaced = actor({"+actor.archon.selective_ac_option='2'"}).trainer;
  CHECK(spaced.recompute == Recompute::full);
  CHECK(spaced.recompute_every == 2);
  CHECK(actor({"+actor.archon.reshard_after_forward_policy=always"}).trainer.reshard_last);
  CHECK_FALSE(actor({"+actor.archon.reshard_after_forward_policy=never"}).trainer.reshard_after_forward);
  // archon/fp8.py
  const std::vector<std::string> narrow8{"+actor.archon.fp8_config.mode=blockwise", "+actor.pad_to_maximum=true"};
  CHECK(actor(narrow8).trainer.float8 == Float8::blockwise);
  const auto refused8 = [&](const char* more) {
    const std::vector<std::string> keys{"actor.backend=archon:d4", "+actor.archon.fp8_config.mode=blockwise", more};
    return refusal(source("grpo_7b.yaml", "2.0.0", keys));
  };
  CHECK(refused8("+actor.archon.fp8_config.include_experts=true").find("experts of Archon in 8 bits") != std::string::npos);
  CHECK(refused8("+actor.archon.fp8_config.exclude_modules=[output]").find("a choice of Archon's") != std::string::npos);
  CHECK(refused8("actor.backend=archon:d2t2").find("8 bits under tensor parallelism") != std::string::npos);
  // models/tree_attn: full trees, no pages; AReaL itself refuses what is cut into no blocks of 128, and ranks of a sequence
  const Role trees = actor({"+actor.enable_tree_training=true", "actor.mb_spec.max_tokens_per_mb=16384"});
  CHECK(trees.trainer.tree_training);
  CHECK(trees.trainer.tokens_per_micro_batch == 16384);
  const std::vector<std::string> narrow{"actor.backend=archon:d4", "+actor.enable_tree_training=true",
                                        "actor.mb_spec.max_tokens_per_mb=16400"};
  CHECK(refusal(source("grpo_7b.yaml", "2.0.0", narrow)).find("blocks of 128") != std::string::npos);
  const std::vector<std::string> shared{"actor.backend=archon:d2c2", "+actor.enable_tree_training=true"};
  const std::string refused = refusal(source("grpo_7b.yaml", "2.0.0", shared));
  CHECK(refused.find("ranks that share a sequence") != std::string::npos);
  CHECK(refused.find("not supported yet") == std::string::npos);
  // compiled by default up to 1.0.3, and padded to the budget then; 8 bits turn it off
  const Role graphs = actor({"actor.mb_spec.max_tokens_per_mb=16400"}, "1.0.3");
  CHECK(graphs.trainer.compile);
  CHECK(graphs.trainer.tokens_per_micro_batch == 16400);
  CHECK_FALSE(actor({"+actor.archon.enable_compile=false"}, "1.0.3").trainer.compile);
  CHECK_FALSE(actor({}).trainer.compile);
  CHECK_FALSE(actor({"+actor.archon.enable_compile=true", "+actor.archon.fp8_config.mode=blockwise", "+actor.pad_to_maximum=true",
                     "actor.mb_spec.max_tokens_per_mb=16384"})
                  .trainer.compile);
  CHECK(refusal(source("grpo_7b.yaml", "2.0.0", {"actor.backend=archon:d4", "actor.path=meta-llama/Llama-3.1-8B-Instruct"}))
            .empty());  // what has no model is told where a tape is made
}

TEST_CASE("areal: a server of SGLang shares experts and attention as its keys say") {
  const std::string moe = "Qwen/Qwen3-30B-A3B";
  const auto rollout = [&](std::vector<std::string> more) {
    std::vector<std::string> keys{"rollout.backend=sglang:d1t4", "actor.path=" + moe, "cluster.n_gpus_per_node=8"};
    keys.insert(keys.end(), more.begin(), more.end());
    return read(source("grpo_7b.yaml", "1.0.4", std::move(keys))).job.role("rollout")->server;
  };
  const Server plain = rollout({});
  CHECK(plain.layout.tensor == 4);
  CHECK(plain.layout.expert == 1);
  CHECK(plain.attention_data == 1);
  CHECK(rollout({"+sglang.ep_size=4"}).layout.expert == 4);
  CHECK(rollout({"+sglang.ep_size=2"}).layout.expert == 2);
  const Server groups = rollout({"+sglang.ep_size=4", "+sglang.dp_size=2", "+sglang.enable_dp_attention=true"});
  CHECK(groups.layout.tensor == 4);
  CHECK(groups.layout.expert == 4);
  CHECK(groups.attention_data == 2);
  const auto words = areal::wording_of("rollout.layout", "d1t8e8",
                                       areal::read_areal(source("grpo_7b.yaml", "1.0.4", {"rollout.backend=sglang:d1t4"})));
  REQUIRE_MESSAGE(words.edits.size() == 2, words.refusal);
  CHECK((words.edits[0].value == FactValue("sglang:t8")));
  CHECK(words.edits[1].path == "sglang.ep_size");
  CHECK((words.edits[1].value == FactValue(8)));
  // SGLang switches it off where there is one group
  CHECK(rollout({"+sglang.enable_dp_attention=true"}).attention_data == 1);
  const std::string uneven = refusal(source("grpo_7b.yaml", "1.0.4",
                                            {"rollout.backend=sglang:d1t4", "actor.path=" + moe, "+sglang.dp_size=3",
                                             "+sglang.enable_dp_attention=true", "cluster.n_gpus_per_node=8"}));
  CHECK_MESSAGE(uneven.find("attention_data") != std::string::npos, uneven);
}

TEST_CASE("areal: tensor parallelism of FSDP splits the trainer from 0.5.0 on") {
  const auto highest = [](const std::string& backend) {
    const Job job = read(source("grpo_7b.yaml", "1.0.4", {"actor.backend=" + backend})).job;
    Bytes allocated = 0;
    for (const auto& gpu : estimate_quick(job).gpus)
      for (const auto& phase : gpu.phases)
        if (phase.phase == "actor.backward") allocated = std::max(allocated, phase.usage.allocated);
    return allocated;
  };
  const Bytes whole = highest("fsdp:d2"), split = highest("fsdp:d2t2");
  CHECK(split > 0);
  CHECK(split < whole);
  CHECK(split > whole / 3);  // gathered inputs, norms and the embedding's gradient are not divided
  CHECK(refusal(source("ppo_allocation_mode.yaml", "0.4.1", {"allocation_mode=sglang:d4+fsdp:d2t2"}))
            .find("not supported yet: tensor parallelism of FSDP before AReaL 0.5.0") != std::string::npos);
}

TEST_CASE("areal: a vision tower is not left out: its training is refused where the model is named, serving is answered") {
  const std::string tower = "Qwen/Qwen2.5-VL-3B-Instruct";
  try {
    estimate_quick(read(source("grpo_7b.yaml", "1.0.4", {"actor.path=" + tower})).job);
    FAIL("training of a vision tower was answered");
  } catch (const InputError& e) {
    CHECK(to_text(e.problems.at(0))
              .find("text alone beside a vision tower ('qwen2_5_vl') is not supported yet in this framework") !=
          std::string::npos);
    CHECK(e.problems.at(0).place.file == "command line");
  }
  CHECK(estimate_quick(read(source("grpo_7b.yaml", "1.0.4", {"sglang.model_path=" + tower})).job).servers.at(0).weights > 0);
}

TEST_CASE("areal: the local scheduler hands the same GPUs out again") {
  const std::vector<std::string> one{"cluster.n_gpus_per_node=1",      "actor.backend=fsdp:d1",
                                     "rollout.backend=sglang:d1",      "+scheduler.type=local",
                                     "+actor.weight_update_mode=disk", "sglang.mem_fraction_static=0.3"};
  auto t = areal::read_areal(source("grpo_7b.yaml", "1.0.4", one));
  CHECK(notes_say(t.notes, "the local scheduler starts again at the first GPU"));
  const Job job = read(source("grpo_7b.yaml", "1.0.4", one)).job;
  CHECK(job.role("rollout")->beside == "actor");
  CHECK(job.role("rollout")->server.sleep_level == 0);
}

TEST_CASE("areal: Ulysses divides the ranks and the heads") {
  // 40 heads, 8 of keys and values, on d32
  CHECK(ulysses_degrees(32, {40, 8, 0, 48}) == std::vector<std::int64_t>{1, 2, 4, 8});
}

TEST_CASE("areal: the batch does not change the peak of a step with several micro-batches") {
  const auto peak = [](int batch) {
    const auto job = read(source("grpo_7b.yaml", "1.0.4", {fmt::format("train_dataset.batch_size={}", batch)})).job;
    const Estimate e = estimate_quick(job);
    return std::pair(need(e, "actor.backward"), need(e, "actor.forward"));
  };
  CHECK(peak(128) == peak(256));
  CHECK(peak(128) == peak(1024));
}

TEST_CASE("areal: a budget below the longest sequence is told with the least one that does") {
  const Reading r = read(source("grpo_7b.yaml", "1.0.4", {"actor.mb_spec.max_tokens_per_mb=8192"}));
  CHECK(notes_say(r.notes, "found 8192 tokens, but the longest sequence needs at least 9216"));
}

TEST_CASE("areal: a 7B job that is known to run fits, and its extremes break where they should") {
  const auto judged = [](std::vector<std::string> overrides) {
    return estimate_quick(read(source("grpo_7b.yaml", "1.0.4", std::move(overrides))).job);
  };
  CHECK(judged({}).fits());
  // the least budget of the dataset, and ten times the guide's
  CHECK(judged({"actor.mb_spec.max_tokens_per_mb=9216"}).fits());
  const Estimate wide = judged({"actor.mb_spec.max_tokens_per_mb=163840"});
  CHECK_FALSE(wide.fits());
  CHECK(worst_phase(wide) == "actor.backward");
  // a whole sequence of 131,072 tokens is one micro-batch: its logits alone are 152,064 * 131,072 * 2 bytes
  const Estimate whole = judged({"actor.mb_spec.max_tokens_per_mb=131072", "gconfig.max_new_tokens=130048",
                                 "gconfig.max_tokens=131072", "sglang.context_length=131072"});
  CHECK_FALSE(whole.fits());
  CHECK(worst_phase(whole) == "actor.backward");
  CHECK(need(whole, "actor.backward") > Bytes{3} * 2 * 152'064 * 131'072);
  // Ulysses divides it
  const Estimate divided = judged({"actor.mb_spec.max_tokens_per_mb=131072", "gconfig.max_new_tokens=130048",
                                   "gconfig.max_tokens=131072", "sglang.context_length=131072", "actor.backend=fsdp:c4"});
  CHECK(need(divided, "actor.backward") < need(whole, "actor.backward") / 2);
}

TEST_CASE("areal: a release in between is read as the last one before it, and said so; one behind the newest is refused") {
  CHECK(notes_say(read(source("grpo_7b.yaml", "1.0.99")).notes, "read as 1.0.4"));
  for (const char* known : {"1.0.4", "v1.0.4", "2.0", "main"})
    CHECK_FALSE(notes_say(read(source("grpo_7b.yaml", known)).notes, "no release of AReaL"));
  for (const char* later : {"9.9", "2.0.1", "v2.1"}) {
    const std::string all = refusal(source("grpo_7b.yaml", later));
    CHECK_MESSAGE(all.find("2.0.0 is the newest release known, and 2.0.0+ the development behind it") != std::string::npos, all);
  }
}

TEST_CASE("areal: a batch that the data-parallel ranks do not share evenly is refused where the loaders refuse it") {
  const auto says = [](const char* release, std::vector<std::string> overrides) {
    overrides.push_back("train_dataset.batch_size=256");
    return refusal(source("ppo_allocation_mode.yaml", release, std::move(overrides)))
               .find("256 prompts for 3 data-parallel ranks") != std::string::npos;
  };
  const std::string three = "allocation_mode=sglang:d4+d3";
  CHECK_FALSE(says("0.3.4", {three}));  // the scripts rounded down
  CHECK(says("0.4.0", {three}));
  CHECK(says("0.4.1", {"allocation_mode=sglang:d2+d3c2"}));
  CHECK(says("0.5.1", {three, "+scheduler.type=local"}));
  CHECK(says("0.5.3", {three}));
  CHECK_FALSE(says("0.5.3", {three, "+scheduler.type=local"}));  // the controller's loader is the only one
  CHECK_FALSE(says("0.4.1", {"allocation_mode=sglang:d4+d4"}));
  // an entry script that divides the batch itself
  Source own = source("ppo_allocation_mode.yaml", "0.4.1", {three, "train_dataset.batch_size=256"});
  own.name = "examples/countdown/" + own.name;
  CHECK(refusal(own).find("data-parallel ranks") == std::string::npos);
}

TEST_CASE("areal: a search proposes no layout that a release's loaders refuse") {
  Space space;
  space.gpus = 8;
  const auto layouts = [&](const char* release) {
    const Source s = source("ppo_allocation_mode.yaml", release, {"train_dataset.batch_size=256"});
    std::vector<std::int64_t> out;
    for (const auto& c : search(s, space, 20).best) out.push_back(c.job.role("actor")->trainer.layout.data);
    return out;
  };
  const auto found = layouts("0.4.1");
  CHECK(!found.empty());
  for (const std::int64_t ranks : found) CHECK(256 % ranks == 0);
}

TEST_CASE("areal: expandable segments of the launchers' trainers") {
  const auto expands = [](const char* words) {
    return read(source("ppo_allocation_mode.yaml", "0.4.1", {std::string("+launcher.trainer_env_vars='") + words + "'"}))
        .job.expandable_segments;
  };
  CHECK(expands("A=B,PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"));
  CHECK_FALSE(expands("A=B"));
}

TEST_CASE("areal: Megatron before 0.5.0 has a loss of its own, and no critic") {
  const std::string on = "allocation_mode=sglang:d4+megatron:d2t2";
  const Role actor = *read(source("ppo_allocation_mode.yaml", "0.4.1", {on, "~critic"})).job.role("actor");
  CHECK(actor.engine == EngineKind::megatron);
  CHECK(actor.trainer.megatron.loss == MegatronLoss::areal_whole);
  const Role later = *read(source("ppo_allocation_mode.yaml", "0.5.0", {on, "~critic"})).job.role("actor");
  CHECK(later.trainer.megatron.loss == MegatronLoss::unfused);
  CHECK(refusal(source("ppo_allocation_mode.yaml", "0.4.1", {on})).find("AReaL 0.4.1 has none (areal/engine/ppo/critic.py)") !=
        std::string::npos);
  CHECK(refusal(source("ppo_allocation_mode.yaml", "0.3.4", {on, "~critic"})).find("experimental Megatron engine") !=
        std::string::npos);
}

TEST_CASE("areal: a recipe's file is of the recipe's own class") {
  Source s = source("ppo_allocation_mode.yaml", "0.4.1", {"+actor.aent.entropy_clamp=0.4", "~critic"});
  s.name = "recipe/AEnt/configs/" + s.name;
  CHECK(areal::read_areal(s).root_class == "recipe/AEnt/aent_args.py:AEntGRPOConfig");
  CHECK(read(s).job.role("actor")->trainer.head == LossHead::areal_clamped);
  s.overrides = {"+actor.aent.entropy_clamp=0.0", "~critic"};  // AReaL's own log-probs and entropy
  CHECK(read(s).job.role("actor")->trainer.head == LossHead::areal_compiled);
}

TEST_CASE("areal: a file of the realhf trainer is read as that trainer's in every release that ships it") {
  const auto of = [](const char* release) {
    Source s;
    s.name = "ppo.yaml";
    s.framework_version = release;
    s.text =
        "mode: ray\nallocation_mode: sglang.d4p1m1+d2p2m1\nn_nodes: 1\nn_gpus_per_node: 8\nexp_ctrl: {total_train_epochs: 5}\n"
        "torch_cache_mysophobia: true\nactor: {type: {_class: qwen2}, path: Qwen/Qwen2.5-1.5B-Instruct}\n"
        "actor_train: {mb_spec: {max_tokens_per_mb: 30720}}\ndataset: {path: x, max_prompt_len: 1024, train_bs_n_seqs: 512}\n"
        "ppo: {gen: {max_new_tokens: 27648}, kl_ctl: 0.0, disable_value: true}\ngroup_size: 16\n";
    return s;
  };
  for (const char* release : {"0.2.0", "0.3.0", "0.3.1", "0.4.1", "0.5.1"}) {
    CAPTURE(release);
    const auto t = areal::read_areal(of(release));
    CHECK(t.root_class.ends_with("PPOMATHConfig"));
    CHECK((value(t, "roles.actor.layout.pp") == FactValue(std::int64_t{2})));
    CHECK((value(t, "roles.actor.micro_batch.tokens_per_micro_batch") == FactValue(std::int64_t{30720})));
    CHECK((value(t, "roles.rollout.layout.replicas") == FactValue(std::int64_t{4})));
  }
  CHECK(refusal(of("0.5.2")).find("AReaL 0.5.2 has no mode: known in 0.2.0 to 0.3.0") != std::string::npos);
  CHECK(refusal(of("0.1.2")).find("a job is the command line of realhf.apps.quickstart") != std::string::npos);
}
