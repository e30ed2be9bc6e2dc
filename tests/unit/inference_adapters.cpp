// Room for LoRA adapters beside a server's weights, by hand on a tiny model: 4 layers, h = 8, 4 heads of 2, 2 key/value heads,
// F = 16, V = 100; n = 2 slots of rank r = 3.
#include <doctest/doctest.h>

#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"
#include "inference/stage.hpp"

namespace {

using namespace oomplan;

constexpr Bytes h = 8, A = 8, K = 8, F = 16, V = 100, L = 4, n = 2, r = 3, bytes = 2;

Architecture tiny() {
  Layer layer;
  layer.mixer.kind = MixerKind::attention;
  layer.mixer.heads = 4;
  layer.mixer.kv_heads = 2;
  layer.mixer.head_dim = 2;
  layer.mixer.rotary_dim = 2;
  layer.feed_forward.kind = FeedForwardKind::gated;
  layer.feed_forward.width = F;
  Architecture a;
  a.name = "tiny";
  a.model_type = a.family = "qwen2";
  a.hidden = h;
  a.vocab = V;
  a.max_positions = 64;
  a.runs = {{layer, L - 1}, {layer, 1}};
  return a;
}
Server slots(std::vector<std::string> targets = {}, const std::string& version = "0.14.0") {
  Server s;
  s.version = version;
  s.lora = {n, r, std::move(targets)};
  return s;
}
Bytes room(const Architecture& a, EngineKind engine, const Server& s, std::int64_t tp = 1) {
  return stage_of(server_model(a, engine, s), ServerFacts{}, tp, 1, 1, 0).adapters;
}

TEST_CASE("a slot is a pair beside every linear layer; tensor parallelism cuts one factor of each") {
  const Bytes whole = 3 * h + h + 2 * h + h;  // A of q, k, v; B of o; A of gate and up; B of down
  const Bytes split = A + A + 2 * F + F;      // B of q; A of o; B of gate and up; A of down
  CHECK(room(tiny(), EngineKind::vllm, slots()) == L * n * r * bytes * (whole + split + K));
  CHECK(room(tiny(), EngineKind::vllm, slots(), 2) == L * n * r * bytes * (whole + split / 2 + K / 2));
  CHECK(room(tiny(), EngineKind::vllm, slots(), 4) == L * n * r * bytes * (whole + split / 4 + K / 2));  // a whole head on each
  CHECK(room(tiny(), EngineKind::sglang, slots(), 4) == L * n * r * bytes * (whole + (split + K) / 4));
  CHECK(room(tiny(), EngineKind::vllm, Server{}) == 0);
}

TEST_CASE("SGLang makes slots of attention for every layer, linear attention or not, and none of experts that were not named") {
  Architecture a = tiny();
  a.runs[0].layer.mixer = {};
  a.runs[0].layer.mixer.kind = MixerKind::gated_delta;
  CHECK(room(a, EngineKind::sglang, slots({"q_proj", "k_proj", "v_proj", "o_proj"})) ==
        L * n * r * bytes * (3 * h + A + K + A + h));
  CHECK_THROWS_AS(room(a, EngineKind::vllm, slots()), InputError);
  for (LayerRun& run : a.runs) {
    run.layer.feed_forward.kind = FeedForwardKind::moe;
    run.layer.feed_forward.experts = 4;
    run.layer.feed_forward.expert_width = F;
  }
  CHECK(room(a, EngineKind::sglang, slots({"o_proj"})) == L * n * r * bytes * (A + h));
  CHECK_THROWS_AS(room(a, EngineKind::sglang, slots({"o_proj", "up_proj"})), InputError);
  CHECK_THROWS_AS(room(a, EngineKind::sglang, slots()), InputError);
}

TEST_CASE("SGLang makes slots beside the modules that it was told, q, k and v as one; vLLM beside all") {
  CHECK(room(tiny(), EngineKind::sglang, slots({"q_proj"})) == L * n * r * bytes * (3 * h + A + K));
  CHECK(room(tiny(), EngineKind::sglang, slots({"up_proj", "o_proj"})) == L * n * r * bytes * (2 * h + 2 * F + A + h));
  CHECK(room(tiny(), EngineKind::vllm, slots({"q_proj"})) == room(tiny(), EngineKind::vllm, slots()));
}

TEST_CASE("embedding and head have slots where the engine makes them there") {
  const Bytes table = n * r * bytes * (V + h), bare = room(tiny(), EngineKind::vllm, slots());
  Architecture a = tiny();
  a.model_type = "llama";
  CHECK(room(a, EngineKind::vllm, slots()) == bare + 2 * table);
  a.model_type = "qwen3";
  CHECK(room(a, EngineKind::vllm, slots()) == bare);
  CHECK(room(a, EngineKind::vllm, slots({}, "0.19.1")) == bare + 2 * table);
  CHECK(room(a, EngineKind::sglang, slots({"q_proj", "lm_head"})) == room(a, EngineKind::sglang, slots({"q_proj"})) + table);
}

TEST_CASE("slots beside experts, latent attention and ungated blocks of SGLang are refused by name") {
  Architecture a = tiny();
  a.runs[0].layer.feed_forward.kind = FeedForwardKind::moe;
  CHECK_THROWS_AS((void)room(a, EngineKind::vllm, slots()), InputError);
  a = tiny();
  a.runs[1].layer.mixer.kind = MixerKind::mla;
  CHECK_THROWS_AS((void)room(a, EngineKind::vllm, slots()), InputError);
  a = tiny();
  for (auto& run : a.runs) run.layer.feed_forward.kind = FeedForwardKind::plain;
  CHECK_THROWS_AS((void)room(a, EngineKind::sglang, slots()), InputError);
  CHECK(room(a, EngineKind::vllm, slots()) == L * n * r * bytes * (3 * h + A + K + A + h + h + F + F + h));
}

TEST_CASE("slots beside experts: a pair for gate, one for up and one for down of each, and one beside the router") {
  constexpr Bytes E = 4, f = 24;
  Architecture a = tiny();
  const Bytes dense = 3 * h + 3 * F;  // gate, up: h each and F each; down: F and h
  const Bytes without = room(a, EngineKind::vllm, slots({}, "0.23.0"));
  for (auto& run : a.runs) {
    FeedForward& ff = run.layer.feed_forward;
    ff.kind = FeedForwardKind::moe;
    ff.experts = E;
    ff.experts_per_token = 2;
    ff.expert_width = f;
  }
  const Bytes experts = L * n * r * bytes * (E * (3 * h + 3 * f) + h + E - dense);
  CHECK(room(a, EngineKind::vllm, slots({}, "0.23.0")) - without == experts);
  CHECK(room(a, EngineKind::vllm, slots({}, "0.19.1")) - without == experts);
  a.model_type = "qwen3_moe";  // its class names embedding and head
  CHECK(room(a, EngineKind::vllm, slots({}, "0.19.1")) - without == experts + 2 * n * r * bytes * (V + h));
}

TEST_CASE("slots come out of the KV cache, and asleep vLLM gives them back while SGLang keeps them") {
  const Catalog& catalog = Catalog::builtin();
  const Architecture a = *catalog.model("Qwen/Qwen2.5-7B-Instruct").architecture;
  for (const EngineKind engine : {EngineKind::vllm, EngineKind::sglang}) {
    CAPTURE(static_cast<int>(engine));
    Server server = slots({}, engine == EngineKind::vllm ? "0.19.0" : "0.5.10");
    server.memory_fraction = 0.6;
    server.max_model_len = 8192;
    server.sleep_level = 1;
    const auto plan_of = [&](const Server& s) {
      const ServerModel m = server_model(a, engine, s);
      return plan(m, resolve(catalog.facts(), engine, s.version, catalog.gpu("H100-80GB"), m), point_of(s));
    };
    const ServerPlan with = plan_of(server);
    server.lora.slots = 0;
    const ServerPlan without = plan_of(server);
    // 28 layers; h = 3584, K = 512, F = 18944, q, k, v, o, gate, up and down
    const Bytes pairs = 28 * n * r * bytes * ((3584 + 3584) * 2 + 2 * (3584 + 512) + 3 * (3584 + 18944));
    CHECK(with[ServerTensor::adapters] == pairs);
    CHECK(with.weights == without.weights + pairs);
    CHECK(with.kv_pool == without.kv_pool - pairs);
    // vLLM: the nodes of 51 + 51 graphs once more; the pool serves both sets
    const Bytes second = engine == EngineKind::vllm ? 102 * 28 * 188650 : 0;
    CHECK(with[ServerTensor::graphs] - without[ServerTensor::graphs] == second);
    const auto asleep = [&](const ServerPlan& p) {
      ProgramWriter writer;
      PeakRecorder fold;
      const ServerSites sites = make_sites(writer, p), sizes = make_sites(fold, p);
      for (const ServerPhase phase : {ServerPhase::load, ServerPhase::start, ServerPhase::sleep}) {
        record(writer, p, sites, phase);
        record(fold, p, sizes, phase);
      }
      CHECK(trace(writer.take()).span == fold.span());
      return fold.span().net;
    };
    // the second set of vLLM's graphs stays too
    CHECK(asleep(with) - asleep(without) == (engine == EngineKind::vllm ? second : pairs));
    CHECK(with[ServerTensor::host_weights] - without[ServerTensor::host_weights] == (engine == EngineKind::vllm ? pairs : 0));
  }
}

}  // namespace
