#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <oomplan/oomplan.hpp>

#include "catalog/architecture.hpp"
#include "catalog/catalog.hpp"
#include "frontends/defaults.hpp"
#include "frontends/write.hpp"
#include "job/follow.hpp"
#include "job/knobs.hpp"
#include "job/validate.hpp"
#include "sampled.hpp"

using namespace oomplan;

namespace {

const char* const kGrpo = R"(oomplan: 1
gpus: 8 x H100-80GB
model: qwen2.5-7b
prompt_tokens: 1024
response_tokens: 8k
rollout: {engine: sglang 0.5.10, layout: d4, mem_fraction_static: 0.8, concurrency: 256}
actor:   {engine: fsdp2, layout: d4, tokens_per_micro_batch: 16k, recompute: full, optimizer: adamw}
ref:     {beside: actor}
sync:    {by: nccl, bucket: 1GiB}
)";

Job job_of(const std::string& text, std::vector<std::string> overrides = {}) {
  return read({text, "job.yaml", {}, std::move(overrides)}).job;
}

std::vector<std::filesystem::path> examples() {
  std::vector<std::filesystem::path> out;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(OOMPLAN_SOURCE_DIR) / "examples"))
    if (entry.path().extension() == ".yaml") out.push_back(entry.path());
  return out;
}
std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace

TEST_CASE("under PyTorch alone a reference has the actor's formats, and an override of them reaches both") {
  const std::string text =
      "oomplan: 1\nframework: torch\ngpus: 2 x H100-80GB\nmodel: qwen2.5-0.5b\nprompt_tokens: 512\nresponse_tokens: 512\n"
      "actor: {layout: d2, precision: {storage: fp32, compute: bf16}, sequences_per_micro_batch: 2, sequence_tokens: 1k}\n"
      "ref: {beside: actor}\n";
  const Job job = job_of(text);
  const Trainer &actor = job.role("actor")->trainer, &ref = job.role("ref")->trainer;
  CHECK(ref.storage == DType::fp32);
  CHECK(ref.compute == DType::bf16);
  CHECK(ref.reduce == actor.reduce);
  Job changed = job;
  set_as_read(changed, "actor.precision.storage", "bf16");
  const Job read = job_of(text, {"actor.precision.storage=bf16"});
  for (const char* key : {"ref.precision.storage", "ref.precision.compute", "ref.precision.reduce"})
    CHECK(get(changed, key) == get(read, key));
  CHECK(changed.role("ref")->trainer.storage == DType::bf16);
}

TEST_CASE("values of transformers and TRL are answered with ours") {
  const auto complaint = [](const std::string& setting) -> std::string {
    try {
      (void)job_of(
          "oomplan: 1\nframework: torch\ngpus: 1 x H100-80GB\nmodel: qwen2.5-0.5b\ntrainer: {engine: single, precision: "
          "{storage: bf16}, sequences_per_micro_batch: 2, sequence_tokens: 1k, " +
          setting + "}\n");
    } catch (const InputError& e) {
      return e.what();
    }
    return {};
  };
  const std::string fused = complaint("optimizer: adamw_torch_fused");
  CHECK(fused.find("did you mean 'adamw'?") != std::string::npos);
  CHECK(fused.find("with optimizer_form: fused") != std::string::npos);
  CHECK(complaint("optimizer: adamw_bnb_8bit").find("did you mean 'adamw_8bit'?") != std::string::npos);
  CHECK(complaint("kernels: flash_attention_2").find("did you mean 'hf_flash'?") != std::string::npos);
  CHECK(complaint("head: dpo").find("did you mean 'trl_dpo'?") != std::string::npos);
}

TEST_CASE("a job file becomes a job") {
  const Job job = job_of(kGrpo);
  CHECK(job.kind == JobKind::rl);
  CHECK(job.cluster.gpu == "H100-80GB");
  CHECK(job.cluster.gpus == 8);
  CHECK(job.prompt_tokens == 1024);
  CHECK(job.response_tokens == 8192);
  CHECK(job.sync.by == SyncBy::nccl);
  CHECK(job.sync.bucket == kGiB);
  REQUIRE(job.roles.size() == 3);
  const Role *rollout = job.role("rollout"), *actor = job.role("actor"), *ref = job.role("ref");
  CHECK(rollout->engine == EngineKind::sglang);
  CHECK(rollout->server.version == "0.5.10");
  CHECK(rollout->server.memory_fraction == 0.8);
  CHECK(rollout->server.concurrency == 256);
  CHECK(rollout->server.max_model_len == 32768);  // AReaL's SGLangConfig.context_length
  CHECK(actor->trainer.tokens_per_micro_batch == 16384);
  CHECK(actor->trainer.recompute == Recompute::full);
  CHECK(actor->trainer.storage == DType::bf16);  // AReaL before 2.0
  CHECK(actor->trainer.optimizer_form == OptimizerForm::fused);
  CHECK(actor->trainer.head == LossHead::areal_compiled);
  CHECK(actor->architecture->hidden == 3584);
  CHECK(ref->kind == RoleKind::reference);
  CHECK(ref->beside == "actor");
  CHECK(ref->trainer.layout.data == 4);
  CHECK(ref->trainer.tokens_per_micro_batch == 16384);
  CHECK_FALSE(ref->in_process);
}

TEST_CASE("every value has its origin") {
  const Job job = job_of(kGrpo, {"actor.recompute=none"});
  CHECK(job.origins.at("actor.layout").kind == Origin::Kind::file);
  CHECK(job.origins.at("actor.layout").place.line == 7);
  CHECK(job.origins.at("actor.layout").place.column == 34);
  CHECK(job.origins.at("actor.recompute").kind == Origin::Kind::override_);
  CHECK(job.origins.at("ref.layout").kind == Origin::Kind::derived);
  const Origin& storage = job.origins.at("actor.precision.storage");
  CHECK(storage.kind == Origin::Kind::default_);
  CHECK(storage.because == "AReaL 1.0.4 default");
  CHECK(storage.source == "areal/engine/fsdp_engine.py");
  CHECK(job.role("actor")->trainer.recompute == Recompute::none);
  CHECK(job.role("ref")->trainer.recompute == Recompute::none);  // like the actor
}

TEST_CASE("the framework's version decides what is not written") {
  const Job two = job_of(std::string(kGrpo) + "framework: areal 2.0.0\n");
  CHECK(two.role("actor")->trainer.storage == DType::fp32);  // optimizer_dtype
  const std::string verl = R"(oomplan: 1
framework: verl 0.9.0
gpus: 8 x H100-80GB
model: qwen3-8b
prompt_tokens: 1k
response_tokens: 8k
rollout: {engine: vllm 0.11.0}
actor: {beside: rollout, layout: d4c2}
ref: {beside: actor}
critic: {beside: actor}
)";
  const Job job = job_of(verl);
  const Trainer& actor = job.role("actor")->trainer;
  CHECK(actor.storage == DType::fp32);
  CHECK(actor.autocast);
  CHECK(actor.recompute == Recompute::full);
  CHECK(actor.head == LossHead::verl_flash_ce);
  CHECK(actor.tokens_per_micro_batch == 32768);  // 16384 a GPU, two of them share a sequence
  CHECK_FALSE(actor.gradient_sync_every_micro_batch);
  CHECK(job_of(verl, {"framework=verl 0.8.0"}).role("actor")->trainer.gradient_sync_every_micro_batch);
  CHECK(job_of(verl, {"framework=verl 0.8.0", "actor.engine=fsdp2"}).role("actor")->trainer.wrap_head);
  CHECK_FALSE(job_of(verl, {"framework=verl 0.7.0", "actor.engine=fsdp2"}).role("actor")->trainer.wrap_head);
  CHECK(job.role("ref")->trainer.cpu_offload_policy);
  CHECK(job.role("ref")->in_process);
  CHECK(job.role("critic")->trainer.head == LossHead::value);
  CHECK_FALSE(job.role("actor")->in_process);  // the servers are processes of their own
  const Server& rollout = job.role("rollout")->server;
  CHECK(rollout.layout.tensor == 2);
  CHECK(rollout.layout.data == 4);
  CHECK(rollout.memory_fraction == 0.5);
  CHECK(rollout.sleep_level == 2);
  CHECK(job.sync.by == SyncBy::ipc);
  CHECK(job.sync.bucket == 2048 * kMiB);
  CHECK(rollout.max_running == 256);
  CHECK(job_of(verl, {"framework=verl 0.8.0"}).role("rollout")->server.max_running == 1024);
}

TEST_CASE("overrides: the later wins, null goes back to the default") {
  CHECK(job_of(kGrpo, {"actor.tokens_per_micro_batch=10k", "actor.tokens_per_micro_batch=12k"})
            .role("actor")
            ->trainer.tokens_per_micro_batch == 12288);
  CHECK(job_of(kGrpo, {"rollout.mem_fraction_static=null"}).role("rollout")->server.memory_fraction == 0.9);
  CHECK(job_of(kGrpo, {"actor.offload=[parameters, optimizer]"}).role("actor")->trainer.offload_optimizer);
  CHECK(job_of(kGrpo, {"gpus=16 x H100-80GB", "actor.layout=d8", "rollout.layout=d8"}).role("ref")->trainer.layout.data == 8);
}

TEST_CASE("the same job in JSON") {
  const Job job =
      job_of(R"({"oomplan": 1, "gpus": "8 x H100-80GB", "model": "qwen2.5-7b", "prompt_tokens": 1024, "response_tokens": "8k",
    "rollout": {"engine": "sglang 0.5.10", "layout": "d4", "mem_fraction_static": 0.8, "concurrency": 256},
    "actor": {"engine": "fsdp2", "layout": "d4", "tokens_per_micro_batch": 16384, "recompute": "full"},
    "ref": {"beside": "actor"}, "sync": {"by": "nccl", "bucket": "1GiB"}})");
  CHECK(same_settings(job, job_of(kGrpo)));
}

TEST_CASE("tied embeddings belong to the root unit") {
  const Job job = job_of(kGrpo, {"model=Qwen/Qwen2.5-0.5B-Instruct", "rollout.layout=d4"});
  REQUIRE(job.role("actor")->architecture->tied);
  CHECK_FALSE(job.role("actor")->trainer.wrap_embedding);
}

TEST_CASE("the short form is a job that can run") {
  for (const std::int64_t gpus : {1, 2, 3, 4, 8, 16, 64}) {
    CAPTURE(gpus);
    const Job job = default_job("qwen3-8b", gpus).job;
    CHECK(problems(job, Catalog::builtin()).empty());
    CHECK(job.roles.size() == 3);
    CHECK(same_settings(job_of(to_yaml(job)), job));
  }
  const Job large = default_job("Qwen/Qwen3-32B", 16, "A100-80GB").job;
  CHECK(large.role("rollout")->server.layout.tensor == 2);  // 65.5 GB of weights: more than 60 % of one GPU
  CHECK_THROWS_AS(default_job("qwen3-8b", 0), InputError);
  CHECK_THROWS_AS(default_job("qwen3-8b", -4), InputError);
  CHECK_THROWS_AS(default_job("qwen3-8b", std::int64_t{1} << 40), InputError);
  CHECK_THROWS_AS(default_job("no such model", 8), InputError);
  CHECK_THROWS_AS(default_job("qwen3-8b", 8, "no such GPU"), InputError);
}

TEST_CASE("a job of Megatron, written down, has none of the settings that it must not have") {
  const Job job = job_of(
      "oomplan: 1\nframework: torch\ngpus: 8 x H100-80GB\nmodel: Qwen/Qwen3-8B\ntrainer: {engine: megatron, layout: d1t2p4, "
      "sequence_parallel: true, sequences_per_micro_batch: 1, sequence_tokens: 4k, micro_batches: 8}\n");
  CHECK(same_settings(job_of(to_annotated_yaml(job)), job));
  CHECK(to_annotated_yaml(job).find("reshard_after_forward") == std::string::npos);
}

TEST_CASE("the examples read, and both written forms read back to the same job") {
  REQUIRE(examples().size() >= 6);
  for (const auto& path : examples()) {
    CAPTURE(path.filename().string());
    const Job job = job_of(text_of(path));
    CHECK(same_settings(job_of(to_yaml(job)), job));
    CHECK(same_settings(job_of(to_annotated_yaml(job)), job));
    CHECK(to_yaml(job_of(to_annotated_yaml(job))) == to_yaml(job));
    CHECK(to_json(job).find("\"schema\": \"oomplan.job/1\"") != std::string::npos);
  }
}

TEST_CASE("whatever single knob is changed, the written job reads back to the same") {
  Sample sample(1);
  for (const auto& path : examples()) {
    const std::string text = text_of(path);
    const Job job = job_of(text);
    for (const auto& role : job.roles)
      for (const auto& knob : knobs()) {
        if (!applies(knob, role)) continue;
        std::vector<std::string> values = knob.choices;
        for (const char* more : {"true", "false", "33k", "48k", "3", "2", "0.42", "auto", "none", "d2", "d8", "[]"})
          values.emplace_back(more);
        for (const auto& value : values) {
          if (!sample.takes()) continue;
          const std::string change = role.name + "." + std::string(knob.key) + "=" + value;
          CAPTURE(path.filename().string());
          CAPTURE(change);
          Job changed;
          try {
            changed = job_of(text, {change});
          } catch (const InputError&) {
            continue;
          }
          CHECK(same_settings(job_of(to_yaml(changed)), changed));
        }
      }
  }
}

TEST_CASE("one default at most for every framework, version, role and key") {
  for (const auto& [framework, versions] : std::vector<std::pair<Framework, std::vector<std::string>>>{
           {Framework::areal, {"0.4", "0.5.3", "1.0.0", "1.0.4", "2.0.0", "3.0"}},
           {Framework::verl, {"0.7", "0.7.1", "0.8.0", "0.9.0", "0.10.0"}},
           {Framework::torch, {""}}})
    for (const auto& version : versions)
      for (const auto kind : {RoleKind::actor, RoleKind::reference, RoleKind::critic, RoleKind::trainer, RoleKind::rollout})
        for (const auto engine : {EngineKind::fsdp2, EngineKind::sglang, EngineKind::vllm})
          for (const char* beside : {"", "other"}) {
            Job job;
            Role role;
            role.kind = kind;
            role.engine = engine;
            role.beside = beside;
            role.trainer.framework = framework;
            role.trainer.framework_version = version;
            if (role.serves() != (kind == RoleKind::rollout)) continue;
            job.roles = {role};
            std::set<std::string_view> keys;
            for (const auto& row : default_rows())
              if (applies(row, job, job.roles[0])) {
                CAPTURE(row.key);
                CHECK(keys.insert(row.key).second);
                CHECK(!row.source.empty());
              }
            CHECK((keys.size() > 10 || role.serves()));
          }
}

TEST_CASE("hand-made jobs are refused as well") {
  Job job = default_job("qwen3-8b", 8).job;
  const auto count = [&] { return problems(job, Catalog::builtin()).size(); };
  CHECK(count() == 0);
  job.roles[1].trainer.tokens_per_micro_batch = std::int64_t{1} << 40;
  CHECK(count() > 0);
  job = default_job("qwen3-8b", 8).job;
  job.roles[0].server.concurrency = std::int64_t{1} << 50;
  CHECK(count() > 0);
  job = default_job("qwen3-8b", 8).job;
  job.roles[2].beside = "nobody";
  CHECK(count() > 0);
  job = Job{};
  CHECK(count() > 0);
}
