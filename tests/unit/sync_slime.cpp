// Weight updates of slime's and Relax's trainers against what their own code reached (tests/data/executed_slime_update.jsonl,
// made by benchmarks/oracle/execute_slime_update.py, and executed_bridge_update.jsonl, made by execute_bridge_update.py).
#include <doctest/doctest.h>

#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "catalog/catalog.hpp"
#include "estimate/megatron_buckets.hpp"
#include "estimate/megatron_update.hpp"
#include "job/training_loop.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Architecture model_of(const Json& row) {
  Json config{{"num_hidden_layers", row["layers"]},  {"hidden_size", row["hidden"]},
              {"num_attention_heads", row["heads"]}, {"num_key_value_heads", row["groups"]},
              {"head_dim", row["head_dim"]},         {"intermediate_size", row["ffn"]},
              {"vocab_size", row["vocab"]},          {"max_position_embeddings", 4096},
              {"tie_word_embeddings", row["tied"]},  {"model_type", "qwen3"}};
  if (row["experts"] > 0)
    config.update({{"model_type", "qwen3_moe"},
                   {"num_experts", row["experts"]},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", row["expert_ffn"]},
                   {"decoder_sparse_step", 1},
                   {"mlp_only_layers", Json::array()}});
  if (row["latent"])
    config.update({{"model_type", "deepseek_v3"},
                   {"num_key_value_heads", row["heads"]},
                   {"q_lora_rank", 96},
                   {"kv_lora_rank", 64},
                   {"qk_nope_head_dim", 48},
                   {"qk_rope_head_dim", 16},
                   {"v_head_dim", 48},
                   {"n_routed_experts", row["experts"]},
                   {"n_shared_experts", 2},
                   {"n_group", 1},
                   {"topk_group", 1},
                   {"topk_method", "noaux_tc"},
                   {"first_k_dense_replace", 0},
                   {"num_nextn_predict_layers", 0}});
  Architecture a = read_config(config.dump(), "model");
  if (row["model"] == "glm45") a.family = "qwen3_5_moe";  // of which the experts are one tensor
  for (LayerRun& run : a.runs)
    if (row["bias"]) {
      Mixer& m = run.layer.mixer;
      m.q_bias = m.k_bias = m.v_bias = true;
      m.qk_norm = QkNorm::none;
    }
  return a;
}

/// Actor and rollout, on the same GPUs or not.
Job job_of(const Json& row) {
  Job job;
  job.kind = JobKind::rl;
  Role rollout, actor;
  rollout.name = "rollout";
  rollout.kind = RoleKind::rollout;
  rollout.engine = EngineKind::sglang;
  rollout.server.layout.tensor = row["server_gpus"];
  rollout.server.layout.expert = row["server_experts"];
  actor.name = "actor";
  actor.engine = EngineKind::megatron;
  Trainer& t = actor.trainer;
  t.framework = row.value("framework", "slime") == "relax" ? Framework::relax : Framework::slime;
  t.framework_version = row["release"];
  t.loop = training_loop(t.framework);
  t.layout = {row["data"], row["tensor"], row["pipeline"], 1, row["expert"], row["expert_tensor"]};
  if (row["colocated"]) actor.beside = "rollout";
  actor.architecture = std::make_shared<Architecture>(model_of(row));
  job.roles = {rollout, actor};
  return job;
}

struct Plans {
  RoleRun from, to;
  const SyncPlan& of(const Json& row) const {
    const std::size_t rank = row["sends"] ? 0 : 1;
    return from.stage_sends.empty() ? *from.send[rank] : *from.stage_sends[row["stage"].get<std::size_t>()][rank];
  }
};
Plans plans_of(const Job& job, const Json& row) {
  Plans out;
  out.from.role = &job.roles[1];
  out.to.role = &job.roles[0];
  SyncPoint point;
  point.way = row["colocated"] ? SyncWay::shared_buckets : SyncWay::stage_buckets;
  point.bucket = row["buffer"];
  send_in_buckets(out.from, out.to, job, Catalog::builtin(), point);
  return out;
}

/// Of the sender's highest level, which is below `limit`; and the program that is written reaches what the plan says.
double error_of(const SyncPlan& plan, const Json& row, double limit) {
  const auto measured = row["peak"].get<double>(), peak = static_cast<double>(plan.send.peak);
  const double error = std::abs(measured == 0 ? peak : peak / measured - 1);
  CAPTURE(row.dump());
  CAPTURE(plan.send.peak);
  CHECK(error < limit);
  CHECK(plan.send.net == 0);
  ProgramWriter writer;
  record_send(writer, plan);
  CHECK(trace(writer.take()).span == plan.send);
  return error;
}

TEST_CASE("buckets of a weight update of slime, on shared GPUs and on GPUs of their own, are as executed") {
  std::ifstream file(OOMPLAN_SOURCE_DIR "/tests/data/executed_slime_update.jsonl");
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json row = Json::parse(line);
    const Job job = job_of(row);
    const Plans plans = plans_of(job, row);
    const SyncPlan& plan = plans.of(row);
    worst = std::max(worst, error_of(plan, row, 0.01));
  }
  CHECK(rows > 0);
  MESSAGE(fmt::format("{} rows, worst {:.4f} %", rows, 100 * worst));
}

/// Of the rank that was executed.
SyncPlan bridge_plan_of(const Job& job, const Json& row, SyncModel& model) {
  SyncPoint point;
  point.bucket = row["buffer"];
  point.sender = row["sends"];
  const Trainer& t = job.roles[1].trainer;
  const bool relax = t.framework == Framework::relax;
  const BucketForm form{true, true};
  if (!row["colocated"]) {
    point.way = SyncWay::stage_buckets;
    point.converts_first = false;
    point.keeps_gathered = true;
    model = megatron_stage_buckets(*job.roles[1].architecture, t, row["stage"], form);
    return plan_sync(model, point);
  }
  model = megatron_buckets(*job.roles[1].architecture, t, relax ? form : BucketForm{false, true, true});
  point.way = relax ? SyncWay::bridge_buckets : SyncWay::bridge_export;
  point.keeps_last = relax || row["release"] == "0.2.0";
  point.keeps_sent = relax;
  point.stages = row["pipeline"];
  point.expert_ranks = row["expert"];
  point.stage = row["stage"];
  const std::int64_t of_stage = row["rank"].get<std::int64_t>() % (t.layout.tensor * t.layout.data);
  point.expert_rank = of_stage / t.layout.expert_tensor % t.layout.expert;
  return plan_sync(model, point);
}

TEST_CASE("weight updates through Megatron-Bridge and by Relax's checkpoint engine are as executed") {
  std::ifstream file(OOMPLAN_SOURCE_DIR "/tests/data/executed_bridge_update.jsonl");
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    const Json row = Json::parse(line);
    const Job job = job_of(row);
    SyncModel model;
    const SyncPlan plan = bridge_plan_of(job, row, model);
    worst = std::max(worst, error_of(plan, row, 0.002));
  }
  CHECK(rows > 0);
  MESSAGE(fmt::format("{} rows, worst {:.4f} %", rows, 100 * worst));
}

TEST_CASE("Relax keeps the one tensor of the last bucket until the next one has been sent") {
  SyncModel m;
  m.storage = m.wire = DType::bf16;
  for (const Bytes b : {100, 60, 80}) {
    m.order.push_back({static_cast<std::uint32_t>(m.tensors.size()), 0, 0});
    SyncTensor t{fmt::format("t{}", b), {b / 2}, b, b};
    t.counted = b;
    m.tensors.push_back(std::move(t));
  }
  SyncPoint point;
  point.way = SyncWay::shared_buckets;
  point.bucket = 100;
  CHECK(plan_sync(m, point).send.peak == 2 * 100);
  point.keeps_sent = true;
  CHECK(plan_sync(m, point).send.peak == 100 + 2 * 60);  // of 80: 60 + 2 * 80 is as much
  point.keeps_last = true;
  CHECK(plan_sync(m, point).send.peak == 2 * 100 + 60);  // what was gathered first goes when the next is there
  const SyncPlan plan = plan_sync(m, point);
  CHECK(plan.send.net == 0);
  ProgramWriter writer;
  record_send(writer, plan);
  CHECK(trace(writer.take()).span == plan.send);
}

}  // namespace
