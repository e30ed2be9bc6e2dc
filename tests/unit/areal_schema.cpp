// The schema of AReaL's releases. Values are those that areal/api/cli_args.py of the tag has (read there, not here).
#include <doctest/doctest.h>

#include <set>
#include <string>

#include "frontends/areal/schema.hpp"

using namespace oomplan;
using namespace oomplan::areal;

namespace {

Schema in(const char* release) { return *Schema::of(release_named(release)); }

/// The default as text: "required", or JSON.
std::string at(const char* release, const char* path, const char* root = "GRPOConfig") {
  const PathRead read = in(release).find(root, path);
  if (!read) return "unknown";
  return read.field->required ? "required" : read.field->default_json;
}

std::string type(const char* release, const char* path, const char* root = "GRPOConfig") {
  const PathRead read = in(release).find(root, path);
  return read ? read.field->type.text : "unknown";
}

std::string unknown(const char* release, const char* path, const char* root = "GRPOConfig") {
  const PathRead read = in(release).find(root, path);
  REQUIRE(!read);
  return unknown_text(read, release_named(release), path);
}

}  // namespace

TEST_CASE("defaults of AReaL 1.0.4 and of what follows 2.0.0") {
  struct Row {
    const char* path;
    const char* old;
    const char* now;
  };
  const Row rows[] = {
      {"allocation_mode", "\"\"", "\"\""},
      {"enable_offload", "false", "false"},
      {"cluster.n_nodes", "32", "32"},
      {"cluster.n_gpus_per_node", "8", "8"},
      {"train_dataset.batch_size", "1", "1"},
      {"train_dataset.max_length", "null", "null"},
      {"gconfig.n_samples", "1", "1"},
      {"gconfig.max_new_tokens", "16384", "16384"},
      {"gconfig.max_tokens", "32768", "32768"},
      {"actor.backend", "required", "required"},
      {"actor.path", "\"\"", "\"\""},
      {"actor.is_critic", "false", "false"},
      {"actor.attn_impl", "\"flash_attention_2\"", "\"flash_attention_2\""},
      {"actor.dtype", "\"bfloat16\"", "\"bfloat16\""},
      {"actor.optimizer_dtype", "unknown", "\"float32\""},
      {"actor.grad_reduce_dtype", "\"float32\"", "\"float32\""},
      {"actor.gradient_checkpointing", "false", "false"},
      {"actor.mb_spec.n_mbs", "1", "1"},
      {"actor.mb_spec.max_tokens_per_mb", "null", "null"},
      {"actor.mb_spec.packing_algorithm", "\"ffd\"", "\"ffd\""},
      {"actor.pad_to_maximum", "false", "false"},
      {"actor.logprobs_chunk_size", "unknown", "1024"},
      {"actor.optimizer", "null", "null"},
      {"actor.optimizer.type", "\"adam\"", "\"adam\""},
      {"actor.optimizer.lr", "0.001", "0.001"},
      {"actor.optimizer.gradient_clipping", "1.0", "1.0"},
      {"actor.offload", "false", "false"},
      {"actor.weight_update_mode", "\"xccl\"", "\"xccl\""},
      {"actor.use_lora", "false", "false"},
      {"actor.lora_rank", "32", "32"},
      {"actor.target_modules", "[]", "[]"},
      {"actor.fsdp.offload_params", "false", "false"},
      {"actor.fsdp.memory_efficient_load", "false", "false"},
      {"actor.fsdp.per_layer_optim_step", "false", "false"},
      {"actor.fsdp.ulysses_sp_size", "unknown", "unknown"},
      {"actor.megatron.wrap_with_ddp", "true", "true"},
      {"actor.megatron.ddp.grad_reduce_in_fp32", "true", "true"},
      {"actor.megatron.ddp.use_distributed_optimizer", "true", "true"},
      {"actor.megatron.virtual_pipeline_parallel_size", "1", "1"},
      {"actor.megatron.recompute_granularity", "\"full\"", "\"full\""},
      {"actor.megatron.lm_head_loss_chunk_size", "unknown", "0"},
      {"actor.archon.ac_mode", "\"selective\"", "\"selective\""},
      {"actor.ppo_n_minibatches", "4", "4"},
      {"actor.kl_ctl", "0.1", "0.1"},
      {"actor.recompute_logprob", "false", "false"},
      {"ref", "null", "null"},
      {"critic", "null", "null"},
      {"rollout.backend", "required", "required"},
      {"rollout.max_concurrent_rollouts", "null", "null"},
      {"rollout.max_head_offpolicyness", "0", "0"},
      {"sglang.mem_fraction_static", "0.9", "0.9"},
      {"sglang.context_length", "32768", "32768"},
      {"sglang.chunked_prefill_size", "-1", "-1"},
      {"sglang.disable_radix_cache", "true", "true"},
      {"sglang.enable_memory_saver", "false", "false"},
      {"sglang.max_loaded_loras", "8", "8"},
      {"vllm.gpu_memory_utilization", "0.9", "0.9"},
      {"vllm.max_num_seqs", "256", "256"},
      {"vllm.enforce_eager", "false", "false"},
      {"teacher.train", "unknown", "null"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.path);
    CHECK(at("1.0.4", row.path) == row.old);
    CHECK(at("2.0.0+", row.path) == row.now);
  }
}

TEST_CASE("defaults that changed on the way") {
  CHECK(at("0.3.4", "actor.gradient_checkpointing") == "true");
  CHECK(at("0.4.0", "actor.gradient_checkpointing") == "false");
  CHECK(at("0.4.1", "actor.weight_update_mode") == "\"disk\"");
  CHECK(at("0.5.0", "actor.weight_update_mode") == "\"xccl\"");
  CHECK(at("0.3.3", "sglang.disable_radix_cache") == "false");
  CHECK(at("0.3.4", "sglang.disable_radix_cache") == "true");
  CHECK(at("0.4.0", "vllm.enforce_eager") == "true");
  CHECK(at("0.4.1", "vllm.enforce_eager") == "false");
  CHECK(at("0.5.1", "gconfig.max_tokens") == "65536");
  CHECK(at("0.3.3", "gconfig.max_tokens") == "unknown");
  CHECK(at("0.5.3", "sglang.max_loaded_loras") == "1");
  CHECK(at("2.0.0", "actor.optimizer_dtype") == "\"float32\"");
  CHECK(at("1.0.2", "actor.backend") == "unknown");
  CHECK(at("0.3.1", "actor.fsdp.ulysses_sp_size") == "1");
  CHECK(at("0.3.1", "actor.mb_spec.max_tokens_per_gpu") == "null");
  CHECK(at("2.0.0", "actor.optimizer.warmup_steps_proportion") == at("2.0.0+", "actor.optimizer.warmup_steps_proportion"));
  CHECK(!Schema::of(release_named("0.2.0")));
}

TEST_CASE("0.3.0 has the configuration of realhf") {
  CHECK(at("0.3.0", "actor.sglang.mem_fraction_static", "AsyncPPOMATHConfig") == "0.9");
  CHECK(at("0.3.0", "actor.bf16", "AsyncPPOMATHConfig") == "false");
  CHECK(at("0.3.0", "ppo.gen.max_new_tokens", "PPOMATHConfig") == "16384");
  CHECK(at("0.3.0", "actor_train.mb_spec.max_tokens_per_mb", "PPOMATHConfig") == "1000000000000");
  CHECK(at("0.3.0", "max_head_offpolicyness", "AsyncPPOMATHConfig") == "0");
  CHECK(!in("0.3.0").has_class("GRPOConfig"));
  CHECK(in("0.3.0").derives("AsyncPPOMATHConfig", "BaseExperimentConfig"));
  CHECK(unknown("1.0.4", "actor.sglang.mem_fraction_static") ==
        "AReaL 1.0.4 has no actor.sglang.mem_fraction_static: now sglang");
}

TEST_CASE("types, choices and plain values") {
  CHECK(type("1.0.4", "actor") == "PPOActorConfig");
  CHECK(type("1.0.4", "critic") == "PPOCriticConfig?");
  CHECK(type("1.0.4", "actor.scheduling_spec") == "list[SchedulingSpec]");
  CHECK(type("1.0.4", "sglang.cuda_graph_bs") == "list[int]?");
  const Schema schema = in("2.0.0+");
  const Field* mode = schema.field("TrainEngineConfig", "weight_update_mode");
  REQUIRE(mode);
  CHECK(mode->choices == std::vector<std::string>{"disk", "xccl", "awex"});
  CHECK(mode->text() == "xccl");
  CHECK(mode->type.kind == FieldKind::text);
  const Field* fraction = schema.field("SGLangConfig", "mem_fraction_static");
  REQUIRE(fraction);
  CHECK(fraction->number() == 0.9);
  CHECK(!fraction->integer());
  CHECK(schema.field("SGLangConfig", "context_length")->integer() == 32768);
  CHECK(schema.field("SGLangConfig", "context_length")->number() == 32768.0);
  CHECK(schema.field("PPOActorConfig", "gradient_checkpointing")->flag() == false);
  CHECK(schema.field("PPOActorConfig", "gradient_checkpointing")->owner == "TrainEngineConfig");
  CHECK(!schema.field("SGLangConfig", "max_running_requests")->integer());
  CHECK(schema.field("SGLangConfig", "max_running_requests")->type.optional);
  CHECK(in("0.3.3").field("NameResolveConfig", "nfs_record_root") != nullptr);
  CHECK(in("0.3.3").field("ClusterSpecConfig", "fileroot")->computed);
}

TEST_CASE("paths go through lists and stop in dictionaries") {
  const Schema schema = in("1.0.4");
  CHECK(schema.find("GRPOConfig", "actor.scheduling_spec.0.gpu"));
  const PathRead variable = schema.find("GRPOConfig", "actor.scheduling_spec.0.env_vars.NCCL_DEBUG");
  REQUIRE(variable);
  CHECK(variable.inside);
  CHECK(variable.field->key == "env_vars");
  CHECK(!schema.find("GRPOConfig", "actor.scheduling_spec.0.gpus"));
  CHECK(!schema.find("GRPOConfig", "actor.path.deeper"));
  CHECK(!schema.find("GRPOConfig", ""));
  CHECK(!schema.find("GRPOConfig", "actor..path"));
  CHECK(!schema.find("NoSuchConfig", "actor"));
}

TEST_CASE("inherited fields: the nearest class wins") {
  const Schema schema = in("0.3.1");  // a diamond: PPOActorConfig and ExperimentalTrainEngineConfig are both TrainEngineConfig
  CHECK(schema.field("ExperimentalPPOActorConfig", "megatron")->owner == "ExperimentalTrainEngineConfig");
  CHECK(schema.field("ExperimentalPPOActorConfig", "eps_clip")->owner == "PPOActorConfig");
  std::set<std::string> keys;
  const auto fields = schema.fields("ExperimentalPPOActorConfig");
  for (const Field* field : fields) keys.insert(field->key);
  CHECK(keys.size() == fields.size());
  CHECK(keys.contains("path"));
  const Schema newest = in("2.0.0+");
  CHECK(newest.field("GRPOConfig", "actor")->owner == "PPOConfig");
  CHECK(newest.fields("GRPOConfig").front()->owner == "BaseExperimentConfig");
}

TEST_CASE("unknown keys: the nearest, the releases that know them, what they became") {
  CHECK(in("1.0.4").find("GRPOConfig", "actor.fsdp.ofload_params").nearest == "actor.fsdp.offload_params");
  CHECK(in("1.0.4").find("GRPOConfig", "actr.path").nearest == "actor.path");
  CHECK(in("1.0.4").find("GRPOConfig", "actr.path").known == 0);
  CHECK(in("1.0.4").find("GRPOConfig", "actor.zzzzzzzzzz").nearest.empty());
  CHECK(unknown("1.0.4", "actor.fsdp.ulysses_sp_size") ==
        "AReaL 1.0.4 has no actor.fsdp.ulysses_sp_size: known in 0.3.1 to 0.3.2; now the letter c of allocation_mode");
  CHECK(unknown("1.0.4", "actor.optimizer_dtype") == "AReaL 1.0.4 has no actor.optimizer_dtype: known in 2.0.0 and later");
  CHECK(unknown("0.5.2", "model.path", "SFTConfig") == "AReaL 0.5.2 has no model.path: known in 0.2.0 to 0.5.1; now actor");
  CHECK(unknown("2.0.0+", "actor.behave_imp_weight_cap").ends_with("; now rejection_sampling.upper"));
  CHECK(unknown("2.0.0+", "actor.group_size").ends_with("; now gconfig.n_samples"));
  CHECK(unknown("2.0.0", "launcher.trainer_env_vars").ends_with("; now scheduling_spec of the engines"));
  CHECK(unknown("2.0.0", "nonsense") == "AReaL 2.0.0 has no nonsense");
  CHECK(in("1.0.4").replaced("GRPOConfig", "allocation_mode") == "backend of each engine");
  CHECK(in("1.0.2").replaced("GRPOConfig", "allocation_mode").empty());
  CHECK(in("1.0.4").find("GRPOConfig", "allocation_mode"));
}

TEST_CASE("configurations that examples define") {
  const Schema schema = in("1.0.4");
  const std::string tau2 = "examples/tau2/utils.py:Tau2PPOConfig";
  CHECK(schema.derives(tau2, "PPOConfig"));
  CHECK(schema.find(tau2, "econfig.domain"));
  CHECK(schema.find(tau2, "actor.fsdp.offload_params"));
  CHECK(unknown("1.0.4", "econfig.domain", "PPOConfig").find(tau2) != std::string::npos);
  CHECK(schema.roots_beside("/home/me/AReaL/examples/tau2/config_8b.yaml") == std::vector<std::string>{tau2});
  CHECK(schema.roots_beside("examples/alignment/hhrlhf_dpo.yaml") == std::vector<std::string>{"DPOConfig", "RWConfig"});
  CHECK(schema.roots_beside("somewhere/job.yaml").empty());
  CHECK(schema.roots_beside("job.yaml").empty());
  CHECK(schema.root_of_script("examples/math/gsm8k_rl.py") == "GRPOConfig");
  CHECK(schema.root_of_script("examples/math/gsm8k_rl.yaml").empty());
  CHECK(in("2.0.0").find("examples/swe/utils.py:SWEPPOConfig", "econfig"));
  CHECK(!in("1.0.4").has_class("examples/swe/utils.py:SWEPPOConfig"));
  CHECK(in("0.3.4").roots_beside("examples/tir/tir.yaml") ==
        std::vector<std::string>{"examples/tir/tir_workflow.py:TIRGRPOConfig"});
  const auto roots = schema.roots();
  CHECK(roots.front() == "DPOConfig");
  CHECK(std::set<std::string>(roots.begin(), roots.end()).contains("GRPOConfig"));
}

TEST_CASE("every release can be read whole") {
  for (std::uint8_t i = release_named("0.3.0").index; i < kReleaseCount; ++i) {
    CAPTURE(name_of(Release{i}));
    const Schema schema = *Schema::of(Release{i});
    const auto roots = schema.roots();
    REQUIRE(roots.size() >= 2);
    for (const std::string& root : roots) {
      std::vector<std::string> left{root};
      std::set<std::string> seen;
      while (!left.empty()) {
        const std::string name = left.back();
        left.pop_back();
        if (!seen.insert(name).second) continue;
        for (const Field* field : schema.fields(name)) {
          CHECK(schema.field(name, field->key) == field);
          CHECK((field->required || field->computed || !field->default_json.empty()));
          if (field->type.kind != FieldKind::object) continue;
          CAPTURE(field->type.of);
          CHECK(schema.has_class(field->type.of));
          left.push_back(field->type.of);
        }
      }
    }
  }
}
