// SGLang's drafts that sleep, stand beside recurrent states, or attend with FlashInfer, by hand from the code of 0.5.12.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "catalog/catalog.hpp"
#include "inference/flashinfer.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;
using T = ServerTensor;

ServerPlan planned(const char* name, Server server) {
  const Catalog& catalog = Catalog::builtin();
  if (server.version.empty()) server.version = "0.5.12";
  const ModelFound found = catalog.model(name);
  const ServerModel model = server_model(*found.architecture, EngineKind::sglang, server);
  const ServerFacts facts = resolve(catalog.facts(), EngineKind::sglang, server, catalog.gpu("H100-80GB"), model);
  return plan(model, facts, point_of(server));
}

/// With what the engine's facts say of the model.
FlashInferAsk asked(const char* name, std::int64_t captured = 0, std::int64_t context = 0) {
  const Catalog& catalog = Catalog::builtin();
  Server server;
  server.version = "0.5.12";
  const ModelFound found = catalog.model(name);
  const ServerModel model = server_model(*found.architecture, EngineKind::sglang, server);
  const ServerFacts facts = resolve(catalog.facts(), EngineKind::sglang, server, catalog.gpu("H100-80GB"), model);
  return {.workspace = facts.flashinfer_workspace, .wrapper = facts.flashinfer_wrapper, .captured = captured, .context = context};
}

TEST_CASE("wrappers and tables of FlashInfer") {
  // without graphs: ragged, paged and verified rows, and single tokens
  CHECK(flashinfer_buffers(asked("llama-3.1-8b")).workspace == (384 + 4 * 8) * kMiB);
  CHECK(flashinfer_buffers(asked("Qwen/Qwen3-8B")).workspace == (512 + 4 * 8) * kMiB);
  FlashInferAsk windows = asked("llama-3.1-8b");
  windows.windows = true;
  CHECK(flashinfer_buffers(windows).workspace == (384 + 7 * 8) * kMiB);
  // 1, 2, 4, 8
  const FlashInferBuffers eight = flashinfer_buffers(asked("llama-3.1-8b", 8, 1000));
  CHECK(eight.workspace == (384 + (4 + 4) * 8) * kMiB);
  CHECK(eight.tables == 8 * 1000 * (4 + 1));
  // 1, 2, 4, 8, 12, 16 to 256 by 8
  CHECK(flashinfer_buffers(asked("llama-3.1-8b", 256)).workspace == (384 + (4 + 5 + 31) * 8) * kMiB);
  // with drafts 1 to 8, 10 to 32 by 2, 40 to 48 by 4; 50 is none of them
  for (const auto& [captured, sizes] : {std::pair{48, 23}, {50, 24}}) {
    FlashInferAsk drafts = asked("XiaomiMiMo/MiMo-7B-RL", captured, 1000);
    drafts.draft_tokens = 4;
    drafts.draft_steps = 3;
    const FlashInferBuffers ahead = flashinfer_buffers(drafts);
    CHECK(ahead.workspace == (512 + (4 + sizes + 8 + 2 * (2 + sizes) + sizes) * 8) * kMiB);
    CHECK(ahead.tables == captured * 1000 * (4 * 5 + 3 * 4 + 4 * 5));
  }
}

TEST_CASE("drafts sleep with their server, and their weights are on the host") {
  Server s;
  s.max_running = 64;
  s.memory_fraction = 0.7;
  s.draft_tokens = 4;
  s.sleep_level = 1;
  const ServerPlan p = planned("XiaomiMiMo/MiMo-7B-RL", s);
  REQUIRE(p[T::drafts] > 0);
  CHECK(p[T::host_weights] == p.weights + p[T::drafts]);
  PeakRecorder levels;
  const ServerSites sites = make_sites(levels, p);
  for (const ServerPhase phase : {ServerPhase::load, ServerPhase::start}) record(levels, p, sites, phase);
  const Bytes awake = levels.span().net;
  record(levels, p, sites, ServerPhase::sleep);
  CHECK(awake - levels.span().net == p.weights + p[T::drafts] + p[T::kv_cache] + p[T::draft_cache] + p[T::request_table]);
  record(levels, p, sites, ServerPhase::wake_weights);
  record(levels, p, sites, ServerPhase::wake_cache);
  CHECK(levels.span().net == awake);
}

TEST_CASE("every request has a state more for each token that is verified") {
  Server s;
  s.max_running = 64;
  s.share_prompts = false;
  s.memory_fraction = 0.7;
  const ServerPlan plain = planned("Qwen/Qwen3.5-9B", s);
  CHECK(plain.state_slots == 64);
  const Bytes state = plain[T::state_cache] / 65;
  s.draft_tokens = 4;
  const ServerPlan ahead = planned("Qwen/Qwen3.5-9B", s);
  CHECK(ahead.state_slots == 64);
  CHECK(ahead[T::state_cache] == (65 + 65 * 4) * state);
}

/// _calculate_mamba_ratio: 3, with buffers to write to 2 more, or 1 where no schedule overlaps.
TEST_CASE("a running request takes several states beside the radix cache") {
  Server s;
  s.memory_fraction = 0.7;
  const ServerPlan plain = planned("Qwen/Qwen3.5-9B", s);
  CHECK(plain.max_running == plain.state_slots / 3);
  CHECK(plain[T::request_table] == plain.max_running * (plain.max_model_len + 4) * 4);
  const Bytes state = plain[T::state_cache] / (plain.state_slots + 1);
  s.state_buffers = true;
  CHECK(planned("Qwen/Qwen3.5-9B", s).max_running == plain.state_slots / 5);
  s.draft_tokens = 4;
  const auto states = [&](const char* version, std::int64_t of_a_request) {
    s.version = version;
    const ServerPlan p = planned("Qwen/Qwen3.5-9B", s);
    const std::int64_t requests = std::min<std::int64_t>(48, p.state_slots / of_a_request);
    CHECK(p.max_running == requests);
    CHECK(p[T::state_cache] == (p.state_slots + 1 + (requests + 1) * 4) * state);
  };
  states("0.5.12", 5);
  states("0.5.10", 4);
}

}  // namespace
