// Weight updates of LoRA: the adapters alone through NCCL, everything through files. By hand on one tiny model.
//
// Legend: h = 8 hidden, A = 8 (two query heads of 4), K = 4 (one key/value head), F = 12, V = 1000, r = 2, two layers.
#include <doctest/doctest.h>

#include "catalog/catalog.hpp"
#include "layers/tape.hpp"
#include "sync/sync.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

constexpr Bytes h = 8, A = 8, K = 4, F = 12, V = 1000, r = 2, layers = 2;
constexpr Bytes kAdapters = r * (2 * (h + A) + 2 * (h + K) + 3 * (h + F));  // of a layer
constexpr Bytes kFrozen = layers * (2 * A * h + 2 * K * h + 3 * F * h + 2 * h) + 2 * V * h + h;

Architecture tiny() {
  return read_config(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12,
                         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 1000,
                         "max_position_embeddings": 64, "tie_word_embeddings": false})",
                     "tiny");
}
SyncModel adapters(DType storage, DType wire) {
  Trainer t;
  t.framework = Framework::areal;
  t.kernels = Kernels::hf_flash;
  t.lora.rank = r;
  t.lora.format = AdapterFormat::storage;
  const Architecture a = tiny();
  return trained_model(*make_tape(a, train_pass(t, EngineKind::fsdp2, a, false, 4)), storage, wire);
}

TEST_CASE("the adapters of every layer travel in the order of its modules, and nothing else does") {
  const SyncModel m = adapters(DType::fp32, DType::bf16);
  REQUIRE(m.order.size() == layers * 7 * 2);
  CHECK(m.total_sent == 2 * layers * kAdapters);
  CHECK(m.largest_stored == 4 * r * F);
  CHECK(m.largest_sent == 2 * r * F);
  CHECK(m.tensors[0].name == "layer.self_attn.q_proj.lora_A.weight");
  CHECK(m.tensors[0].shape == std::vector<std::int64_t>{r, h});
  CHECK(m.tensors[1].name == "layer.self_attn.q_proj.lora_B.weight");
  CHECK(m.order[13].layer == 0);
  CHECK(m.order[14].layer == 1);
  CHECK(m.order[14].tensor == m.order[0].tensor);
}

TEST_CASE("vLLM keeps every adapter tensor of a bucket before it builds the adapter on the host") {
  const SyncModel m = adapters(DType::bf16, DType::bf16);
  SyncPoint point;
  point.way = SyncWay::two_buckets;
  point.server = EngineKind::vllm;
  CHECK(plan_sync(m, point).receive.peak == 2 * 2 * r * F);  // of a whole model: one after another
  point.adapters = true;
  const SyncPlan p = plan_sync(m, point);
  CHECK(p.buckets.size() == 1);
  CHECK(p.receive.peak == 2 * layers * kAdapters);
  CHECK(p.send.peak == 2 * layers * kAdapters);
  point.sender = false;
  CHECK(plan_sync(m, point).send.peak < 2 * kAdapters);  // two gathered tensors
}

TEST_CASE("through files the state dict of everything is gathered: adapters beside the model on rank 0's host") {
  const SyncModel whole = sync_model(tiny(), DType::bf16, DType::bf16, false);
  const SyncModel m = joined(whole, adapters(DType::bf16, DType::bf16));
  SyncPoint point;
  point.way = SyncWay::disk;
  const SyncPlan p = plan_sync(m, point);
  CHECK(p.send.host_peak == 2 * (kFrozen + layers * kAdapters));
  CHECK(p.send.peak == 2 * V * h);
  CHECK(p.receive.peak == 0);
  ProgramWriter writer;
  record_send(writer, p);
  CHECK(trace(writer.take()).span == p.send);
}

}  // namespace
