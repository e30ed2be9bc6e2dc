// The memory program of a server: fold and trace agree, every free has its allocation, sleep gives back what it should.
#include <doctest/doctest.h>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;

constexpr ServerPhase kLife[] = {ServerPhase::load,         ServerPhase::start,      ServerPhase::generate, ServerPhase::sleep,
                                 ServerPhase::wake_weights, ServerPhase::wake_cache, ServerPhase::generate};

ServerPlan plan_for(EngineKind engine, const char* version, const char* model, ServerPoint point, DType weights = DType::bf16) {
  const Catalog& catalog = Catalog::builtin();
  const ServerModel m = server_model(*catalog.model(model).architecture, engine, weights);
  return plan(m, resolve(catalog.facts(), engine, version, catalog.gpu("H100-80GB"), m), point);
}

struct Both {
  Span fold;
  Trace trace;
};
template <std::size_t N>
Both run(const ServerPlan& p, const ServerPhase (&phases)[N]) {
  PeakRecorder fold;
  const ServerSites sizes = make_sites(fold, p);
  ProgramWriter writer;
  const ServerSites sites = make_sites(writer, p);
  for (const ServerPhase phase : phases) {
    record(fold, p, sizes, phase);
    record(writer, p, sites, phase);
  }
  return {fold.span(), trace(writer.take())};
}

TEST_CASE("fold and trace of a server agree for both engines, asleep or not, eager or not") {
  for (const EngineKind engine : {EngineKind::vllm, EngineKind::sglang}) {
    for (const std::int64_t sleep : {0, 1, 2}) {
      for (const bool eager : {false, true}) {
        ServerPoint point;
        point.fraction = 0.6;
        point.max_model_len = 8192;
        point.sleep_level = sleep;
        point.eager = eager;
        point.logprobs = true;
        for (const char* model : {"Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B"}) {
          point.tensor = model[5] == 'Q' && model[9] == '3' ? 2 : 1;
          const Both b = run(plan_for(engine, engine == EngineKind::vllm ? "0.19.0" : "0.5.10", model, point), kLife);
          CHECK(b.fold == b.trace.span);
        }
      }
    }
  }
}

TEST_CASE("a teacher's prompt costs its logits in the model's format and twice in fp32, behind the pool that vLLM sized") {
  ServerPoint point;
  point.fraction = 0.6;
  point.max_model_len = 8192;
  point.batched_tokens = 2048;
  point.logprobs = true;
  const auto scored = [&](std::int64_t tokens, std::int64_t ranks, DType weights) {
    ServerPoint at = point;
    at.scored = tokens;
    at.tensor = ranks;
    const ServerPlan p = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", at, weights);
    const Both b = run(p, kLife);
    CHECK(b.fold == b.trace.span);
    return p;
  };
  constexpr std::int64_t kVocab = 152064;
  const ServerPlan one = scored(1000, 1, DType::bf16);
  CHECK(one[ServerTensor::prompt_logits] == 1000 * kVocab * 2);
  CHECK(one[ServerTensor::prompt_logits_fp32] == 1000 * kVocab * 4);
  CHECK(one[ServerTensor::prompt_log_probs] == 1000 * kVocab * 4);
  CHECK(one[ServerTensor::prompt_logits_parts] == 0);
  // a longer prompt comes in chunks; ranks gather their parts; fp16 is cast inside log_softmax's kernel
  CHECK(scored(5000, 1, DType::bf16)[ServerTensor::prompt_log_probs] == 2048 * kVocab * 4);
  CHECK(scored(1000, 2, DType::bf16)[ServerTensor::prompt_logits_parts] == 1000 * kVocab * 2);
  CHECK(scored(1000, 1, DType::fp16)[ServerTensor::prompt_logits_fp32] == 0);
  // the pool was sized without them: so much more is taken
  const auto highest = [](const ServerPlan& p) {
    return run(p, {ServerPhase::load, ServerPhase::start, ServerPhase::generate}).fold.peak;
  };
  ServerPoint unscored = point;
  const ServerPlan plain = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", unscored);
  CHECK(one.kv_pool == plain.kv_pool);
  CHECK(highest(scored(2000, 1, DType::bf16)) > highest(plain));
}

TEST_CASE("vLLM's start-up peak above the weights is what the profile run reports") {
  ServerPoint point;
  point.fraction = 0.9;
  point.max_model_len = 8192;
  const ServerPlan p = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen3-8B", point);
  // rows 1024, V = 151,936: logits 0.5 u + fp32 1 u + probabilities 1 u + noise 1 u, u = rows * V * 4
  const Bytes u = 1024LL * 151936 * 4;
  const Bytes hand = u / 2 + 3 * u + 132LL * 151936 * 4 + 8192LL * 4096 * 2 + 2 * 1024LL * 4096 * 2 + 32 * kMiB;
  CHECK(p.profile_peak == hand);
  CHECK(p.refusal == ServerRefusal::none);
}

TEST_CASE("sleep level 1 leaves context, NCCL, graphs and workspaces; the weights wait in pinned memory") {
  ServerPoint point;
  point.fraction = 0.5;
  point.max_model_len = 8192;
  point.sleep_level = 1;
  const ServerPlan p = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point);
  const ServerPhase phases[] = {ServerPhase::load, ServerPhase::start, ServerPhase::sleep};
  const Both b = run(p, phases);
  using T = ServerTensor;
  CHECK(b.fold.net == p[T::context] + p[T::nccl] + p[T::growth] + p[T::late_growth] + p[T::graphs] + p[T::buffers] +
                          p[T::request_table] + p[T::blas] + p[T::topk_buffer]);
  CHECK(b.fold.host_net == p.weights);
  point.sleep_level = 2;
  const Both two = run(plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point), phases);
  CHECK(two.fold.net == b.fold.net);
  CHECK(two.fold.host_net == 0);
}

TEST_CASE("a server that cannot start says why") {
  ServerPoint point;
  point.max_model_len = 8192;
  point.fraction = 0.9;
  point.occupied = 20 * kGiB;
  ServerPlan p = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point);
  CHECK(p.refusal == ServerRefusal::not_enough_free);
  CHECK(to_text(p).find("refuses to start") != std::string::npos);
  CHECK(plan_for(EngineKind::sglang, "0.5.10", "Qwen/Qwen2.5-7B-Instruct", point).refusal ==
        ServerRefusal::none);  // its share shrinks instead
  point.occupied = 0;
  point.fraction = 0.25;
  point.max_model_len = 131072;  // 7 GiB of cache for one request
  CHECK(plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point).refusal == ServerRefusal::request_too_long);
  point.fraction = 0.15;
  CHECK(plan_for(EngineKind::sglang, "0.5.10", "Qwen/Qwen2.5-7B-Instruct", point).refusal == ServerRefusal::no_cache);
  point.fraction = 0.9;
  point.tensor = 3;
  CHECK(plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point).refusal == ServerRefusal::cannot_split);
}

TEST_CASE("a shortage of cache queues or preempts, it is not a lack of memory") {
  ServerPoint point;
  point.fraction = 0.9;
  point.max_model_len = 32768;
  const ServerPlan vllm = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point);
  const ServerAnswer few = describe(vllm, "rollout", 4, 32768);
  CHECK(few.shortage.empty());
  CHECK(few.kv_bytes_per_token == 28 * 2 * 4 * 128 * 2);
  CHECK(few.requests_of_full_length == vllm.kv_tokens / 32768);
  const ServerAnswer many = describe(vllm, "rollout", 5000, 32768);
  CHECK(many.shortage.find("preempted") != std::string::npos);
  const ServerPlan sglang = plan_for(EngineKind::sglang, "0.5.10", "Qwen/Qwen2.5-7B-Instruct", point);
  CHECK(describe(sglang, "rollout", 5000, 32768).shortage.find("queue") != std::string::npos);
}

TEST_CASE("what is preempted comes again in one step, as many tokens as the cache has") {
  ServerPoint point;
  point.fraction = 0.255;
  point.max_model_len = 8192;
  point.batched_tokens = 32768;
  point.step_tokens = 1000;
  point.flight_tokens = 8192;  // they fit
  const auto step = [&] {
    return plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point)[ServerTensor::step_activations];
  };
  const ServerPlan p = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen2.5-7B-Instruct", point);
  REQUIRE(p.kv_tokens > 8192);
  REQUIRE(p.kv_tokens < point.batched_tokens);
  const Bytes first = step();
  point.flight_tokens = p.kv_tokens + 1;
  CHECK(step() == first / 1000 * p.kv_tokens);
  point.flight_tokens = std::int64_t{1} << 40;
  point.batched_tokens = 8192;  // the step is cut: a whole batch
  CHECK(step() == 0);
}

TEST_CASE("SGLang's own fraction follows the version") {
  ServerPoint point;
  point.max_model_len = 32768;
  // 81,559 MiB: 512 + 1.5 * 8192 + 2 * 256 + 128 = 13,440; prefill graphs of 58 sizes from 0.5.10 on: + 464
  CHECK(plan_for(EngineKind::sglang, "0.5.5", "Qwen/Qwen3-8B", point).fraction == doctest::Approx(0.835));
  CHECK(plan_for(EngineKind::sglang, "0.5.10", "Qwen/Qwen3-8B", point).fraction == doctest::Approx(0.830));
  CHECK(plan_for(EngineKind::sglang, "0.5.2", "Qwen/Qwen3-8B", point).fraction == doctest::Approx(0.874));
  CHECK(plan_for(EngineKind::sglang, "0.4.6.post5", "Qwen/Qwen3-8B", point).fraction == doctest::Approx(0.88));
}

TEST_CASE("pipeline stages share the smallest pool") {
  ServerPoint point;
  point.fraction = 0.9;
  point.max_model_len = 8192;
  point.pipeline = 3;
  std::int64_t tokens = 0;
  for (point.stage = 0; point.stage < 3; ++point.stage) {
    const ServerPlan p = plan_for(EngineKind::vllm, "0.19.0", "Qwen/Qwen3-8B", point);
    if (point.stage == 0) tokens = p.kv_tokens;
    CHECK(p.kv_tokens == tokens);
  }
}

}  // namespace

TEST_CASE("a server that scores has one row in place of the head, no logits, and nothing that SGLang would capture") {
  constexpr std::int64_t kHidden = 4096, kRunning = 1024, kVocab = 151936;  // of Qwen3-8B
  const Catalog& catalog = Catalog::builtin();
  const auto served = [&](EngineKind engine, const char* version, bool scores, std::int64_t ranks) {
    Server server;
    server.pooling = scores;
    server.version = version;
    const ServerModel m = server_model(*catalog.model("Qwen/Qwen3-8B").architecture, engine, server);
    ServerPoint at;
    at.fraction = 0.5;
    at.tensor = ranks;
    at.max_running = kRunning;
    at.batched_tokens = 8192;
    const ServerPlan p = plan(m, resolve(catalog.facts(), engine, server, catalog.gpu("H100-80GB"), m), at);
    const Both b = run(p, kLife);
    CHECK(b.fold == b.trace.span);
    return p;
  };
  for (const std::int64_t ranks : {1, 2}) {
    const ServerPlan scores = served(EngineKind::vllm, "0.24.0", true, ranks);
    const ServerPlan generates = served(EngineKind::vllm, "0.24.0", false, ranks);
    CHECK(scores[ServerTensor::head] == kHidden * 4);
    CHECK(generates[ServerTensor::head] == kVocab / ranks * kHidden * 2);
    CHECK(scores[ServerTensor::feed_forwards] == generates[ServerTensor::feed_forwards]);
    CHECK(scores[ServerTensor::logits] + scores[ServerTensor::probabilities] == 0);
    CHECK(scores[ServerTensor::sampled_hidden] == kRunning * kHidden * 2);
    CHECK(scores[ServerTensor::pooled] == kRunning * kHidden * 4);
    CHECK(scores[ServerTensor::scores] == kRunning * 4);
    CHECK(scores.profile_peak < generates.profile_peak);
    CHECK(scores[ServerTensor::graphs] < generates[ServerTensor::graphs]);  // pieces alone
  }
  const ServerPlan sglang = served(EngineKind::sglang, "0.5.8", true, 2);
  CHECK(sglang[ServerTensor::head] == kHidden * 2);
  CHECK(sglang[ServerTensor::pooled] == 0);
  CHECK(sglang[ServerTensor::graphs] + sglang[ServerTensor::graph_logits] + sglang[ServerTensor::logits] == 0);
  CHECK(served(EngineKind::sglang, "0.5.8", false, 2)[ServerTensor::graphs] > 0);
}
