// Weight updates by hand: a model of two layers whose tensors are powers of two.
#include <doctest/doctest.h>

#include "sync/sync.hpp"

namespace {

using namespace oomplan;

/// Tensors of 100, 60, 50, 90 and 30 bytes on the wire, twice that in storage, in this order.
SyncModel five() {
  SyncModel m;
  m.storage = DType::fp32;
  m.wire = DType::bf16;
  for (const Bytes b : {100, 60, 50, 90, 30}) {
    const auto n = static_cast<std::uint32_t>(m.tensors.size());
    m.tensors.push_back({"t" + std::to_string(n), {b / 2}, 2 * b, b});
    m.order.push_back({n, 0, 0});
    m.total_sent += b;
  }
  return m;
}

SyncPoint point_of(SyncWay way, Bytes bucket = 120) {
  SyncPoint p;
  p.way = way;
  p.bucket = bucket;
  p.casts = true;
  return p;
}

void both_agree(const SyncPlan& plan) {
  ProgramWriter send, receive;
  record_send(send, plan);
  record_receive(receive, plan);
  const Trace a = trace(send.take()), b = trace(receive.take());
  CHECK(a.span == plan.send);
  CHECK(b.span == plan.receive);
  CHECK(a.left == 0);
  CHECK(b.left == 0);
}

TEST_CASE("a bucket is closed by the tensor that would not fit") {
  const SyncModel m = five();
  const SyncPlan p = plan_sync(m, point_of(SyncWay::buckets));
  REQUIRE(p.buckets.size() == 3);  // 100 | 60 50 | 90 30
  CHECK(p.buckets[1].bytes == 110);
  CHECK(p.largest_bucket == 120);
  both_agree(p);
  // at the first close: bucket 100, gathered 120 and its cast copy 60; at the second: 110 + 180 + 90
  CHECK(p.send.peak == 110 + 180 + 90);
  CHECK(p.receive.peak == 120);
}

TEST_CASE("with two buckets the one under way lives until the next is full") {
  const SyncModel m = five();
  const SyncPlan p = plan_sync(m, point_of(SyncWay::two_buckets));
  both_agree(p);
  CHECK(p.send.peak == 100 + 110 + 180 + 90);
}

TEST_CASE("ranks that do not send hold the tensor before as well") {
  const SyncModel m = five();
  SyncPoint at = point_of(SyncWay::two_buckets);
  at.sender = false;
  const SyncPlan p = plan_sync(m, at);
  both_agree(p);
  CHECK(p.send.peak == 200 + 120);
}

TEST_CASE("under tensor parallelism a matrix is gathered over two axes of ranks: half of it, all of it, and all of it in order") {
  SyncModel m = five();
  for (auto& t : m.tensors) t.shape.insert(t.shape.begin(), 1);
  m.tensors[4].shape = {15};  // a norm
  gather_twice(m, 2);
  CHECK(m.tensors[0].beside == 100 + 200);
  CHECK(m.tensors[4].beside == 0);
  const SyncPlan p = plan_sync(m, point_of(SyncWay::buckets));
  both_agree(p);
  CHECK(p.send.peak == 110 + (90 + 180) + 180);  // the second bucket, and the tensor that would not fit
  SyncPoint at = point_of(SyncWay::buckets);
  at.sender = false;
  const SyncPlan other = plan_sync(m, at);
  both_agree(other);
  CHECK(other.send.peak == 100 + (90 + 180) + 180);  // beside the tensor before
}

TEST_CASE("vLLM receives one tensor after another, SGLang a bucket, a flattened bucket twice") {
  const SyncModel m = five();
  SyncPoint at = point_of(SyncWay::two_buckets);
  at.server = EngineKind::vllm;
  CHECK(plan_sync(m, at).receive.peak == 100 + 60);
  at.server = EngineKind::sglang;
  at.flattened = true;
  const SyncPlan flat = plan_sync(m, at);
  CHECK(flat.receive.peak == 240);
  both_agree(flat);
}

TEST_CASE("verl: two buffers on both sides, or one that the server opens") {
  SyncModel m = five();
  m.wire = m.storage;
  for (SyncTensor& t : m.tensors) t.sent = t.stored;
  SyncPoint at = point_of(SyncWay::double_buffer, 1000);
  at.casts = false;
  const SyncPlan two = plan_sync(m, at);
  CHECK(two.send.peak == 2000 + 200 + 120);
  CHECK(two.receive.peak == 2000);
  both_agree(two);
  at.way = SyncWay::ipc;
  at.server = EngineKind::vllm;
  const SyncPlan ipc = plan_sync(m, at);
  CHECK(ipc.send.peak == 1000 + 200 + 120);
  CHECK(ipc.receive.peak == 0);
  both_agree(ipc);
}

TEST_CASE("through the disk rank 0 keeps the whole model on the host and one tensor on the device") {
  const SyncModel m = five();
  const SyncPlan p = plan_sync(m, point_of(SyncWay::disk));
  both_agree(p);
  CHECK(p.send.peak == 200);
  CHECK(p.send.host_peak == 330);
  CHECK(p.receive.peak == 0);
}

TEST_CASE("the order of a model walks its layers, and fused experts travel as one") {
  Architecture a;
  a.name = "tiny";
  a.model_type = "qwen3_moe";
  a.family = "qwen3_moe";
  a.hidden = 8;
  a.vocab = 64;
  Layer layer;
  layer.mixer.kind = MixerKind::attention;
  layer.mixer.heads = layer.mixer.kv_heads = 2;
  layer.mixer.head_dim = 4;
  layer.feed_forward.kind = FeedForwardKind::moe;
  layer.feed_forward.experts = 4;
  layer.feed_forward.experts_per_token = 2;
  layer.feed_forward.expert_width = 16;
  a.runs = {{layer, 3}};
  const SyncModel split = sync_model(a, DType::fp32, DType::bf16, false), fused = sync_model(a, DType::fp32, DType::bf16, true);
  CHECK(split.total_sent == fused.total_sent);
  CHECK(split.total_sent == 2 * (2 * 64 * 8 + 8 + 3 * (4 * 8 * 8 + 2 * 8 + 4 * 8 + 4 * 3 * 8 * 16)));
  CHECK(split.order.size() == 3 + 3 * (4 + 2 + 1 + 4 * 3));
  CHECK(fused.order.size() == 3 + 3 * (4 + 2 + 1 + 3));
  CHECK(split.largest_stored == 64 * 8 * 4);
  CHECK(fused.largest_stored == 4 * 8 * 16 * 4);
  const SyncPlan p = plan_sync(split, point_of(SyncWay::two_buckets, 1000));
  both_agree(p);
}

}  // namespace
