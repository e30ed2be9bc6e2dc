// Distillation in AReaL's files: a teacher that is one more engine, and one that serves.
#include <doctest/doctest.h>

#include "areal_files.hpp"

using namespace oomplan;
using namespace oomplan::areal_files;

TEST_CASE("areal: a teacher is one more engine without an optimizer, on GPUs of its own") {
  const std::vector<std::string> teacher{"cluster.n_gpus_per_node=16", "+teacher.backend=fsdp:d1t4",
                                         "+teacher.path=Qwen/Qwen2.5-14B-Instruct", "+teacher.optimizer=null",
                                         "+teacher.mb_spec.max_tokens_per_mb=10240"};
  const Job job = read(source("grpo_7b.yaml", "1.0.4", teacher)).job;
  const Role* role = job.role("teacher");
  REQUIRE(role != nullptr);
  CHECK(role->kind == RoleKind::teacher);
  CHECK(role->model == "Qwen/Qwen2.5-14B-Instruct");
  CHECK(role->trainer.layout.tensor == 4);
  CHECK(role->trainer.tokens_per_micro_batch == 10240);
  CHECK(role->beside.empty());
  bool asked = false;
  for (const auto& gpu : estimate(job).gpus)
    for (const auto& phase : gpu.phases) {
      CHECK_FALSE(phase.phase == "teacher.backward");
      asked = asked || phase.phase == "teacher.log_probs";
    }
  CHECK(asked);
}

TEST_CASE("areal: a teacher that serves has the rollout's settings, its own model, and scores one sequence at a time") {
  const std::vector<std::string> served{"cluster.n_gpus_per_node=16",       "+teacher.path=Qwen/Qwen2.5-14B-Instruct",
                                        "+teacher.engine_type=rollout",     "+teacher.rollout.backend=vllm:d2t2",
                                        "+vllm.gpu_memory_utilization=0.7", "+vllm.max_model_len=8192"};
  const Job job = read(source("grpo_7b.yaml", "main", served)).job;
  const Role* role = job.role("teacher");
  REQUIRE(role != nullptr);
  CHECK(role->engine == EngineKind::vllm);
  CHECK(role->model == "Qwen/Qwen2.5-14B-Instruct");
  CHECK(role->server.layout.tensor == 2);
  CHECK(role->server.layout.data == 2);
  CHECK(role->server.concurrency == 2);
  CHECK(role->server.memory_fraction == 0.7);
  CHECK(role->server.max_model_len == 8192);
  CHECK(role->beside.empty());
  bool scores = false;
  for (const auto& gpu : explain(job).gpus)
    for (const auto& phase : gpu.phases) {
      CHECK_FALSE(phase.phase == "teacher.receive_weights");
      if (phase.phase == "teacher.generate")
        for (const auto& tensor : phase.live) scores = scores || tensor.name == "server.a prompt's log-probabilities";
    }
  CHECK(scores);
  std::vector<std::string> sglang = served;
  sglang[3] = "+teacher.rollout.backend=sglang:d2t2";
  const std::string why = refusal(source("grpo_7b.yaml", "main", sglang));
  CHECK_MESSAGE(why.find("not supported yet: log-probs of prompts by SGLang") != std::string::npos, why);
}
