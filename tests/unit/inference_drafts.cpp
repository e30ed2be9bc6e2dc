// Heads of other checkpoints that draft, by hand: EAGLE and EAGLE-3 for Llama 3.1 8B. What vLLM's own classes allocate is judged
// in inference_executed.cpp.
#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "catalog/catalog.hpp"
#include "inference/rank_share.hpp"
#include "inference/server.hpp"
#include "inference/stage.hpp"

namespace {

using namespace oomplan;
using T = ServerTensor;

constexpr const char* kTarget = "meta-llama/Llama-3.1-8B-Instruct";  // h 4096, 32 layers, 8 key/value heads of 128, V 128,256
constexpr Bytes kHidden = 4096, kWide = 14336, kDraftVocab = 32000, kKvWidth = 1024;
constexpr const char* kLlama =
    R"("model_type": "llama", "intermediate_size": 14336, "num_hidden_layers": 1,
"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 2048,
"rms_norm_eps": 1e-5, "tie_word_embeddings": false)";

std::string config_of(const std::string& more, std::int64_t hidden) {
  return "{\"hidden_size\": " + std::to_string(hidden) + ", " + more + (more.empty() ? "" : ", ") + kLlama + "}";
}
const std::string kEagle3 = R"("architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000)";

Server with_draft(const std::string& more, DraftMethod method = DraftMethod::auto_, std::int64_t hidden = kHidden) {
  Server s;
  s.draft_tokens = 4;
  s.draft_model = "config.json";
  s.draft_method = method;
  s.draft.architecture = std::make_shared<const Architecture>(read_config(config_of(more, hidden), "config.json"));
  return s;
}

struct Drafted {
  ServerModel model;
  ServerFacts facts;
  ServerPoint point;
  ServerPlan plan;
};
Drafted drafted(EngineKind engine, const char* version, Server server, std::int64_t tensor = 1) {
  const Catalog& catalog = Catalog::builtin();
  server.version = version;
  server.layout.tensor = tensor;
  server.max_model_len = 8192;
  Drafted out;
  out.model = server_model(*catalog.model(kTarget).architecture, engine, server);
  out.facts = resolve(catalog.facts(), engine, server, catalog.gpu("H100-80GB"), out.model);
  out.point = point_of(server);
  out.plan = plan(out.model, out.facts, out.point);
  return out;
}

/// Matrices of a layer whose queries, keys and values read `input`, and its norms, on each of tp ranks.
Bytes layer(Bytes input, Bytes norms, Bytes tp) {
  return 2 * ((input * (kHidden + 2 * kKvWidth) + kHidden * kHidden + 3 * kHidden * kWide) / tp + norms * kHidden);
}

TEST_CASE("an EAGLE-3 head: queries from 2h, three norms, states of three layers projected, a head and a table of its own") {
  for (const Bytes tp : {1, 2, 4}) {
    const Drafted d = drafted(EngineKind::sglang, "0.5.10", with_draft(kEagle3), tp);
    const Stage s = drafts_of(d.model, d.facts, share_of(d.model, d.facts, d.point));
    CHECK(s.head == 2 * kDraftVocab * kHidden / tp);
    CHECK(s.embedding == 0);
    CHECK(s.norms + s.mixers + s.feed_forwards + 2 * kHidden == layer(2 * kHidden, 3, tp));  // the third norm is beside the layer
    const Bytes rope = d.facts.rope_tables * 2048 * 128 * d.facts.rope_bits / 8;
    CHECK(s.outside == 2 * (3 * kHidden * kHidden + 2 * kHidden) + 8 * kDraftVocab + rope);
    CHECK(d.plan[T::drafts] >= s.head + s.outside + s.norms + s.mixers + s.feed_forwards);
    CHECK(d.plan[T::draft_cache] == (d.plan.kv_tokens + d.plan.page_tokens) * 2 * 2 * kKvWidth / tp);
  }
}

TEST_CASE("an EAGLE head: 2h projected to h, the model's tables, no norm in front of attention") {
  const Server s = with_draft("", DraftMethod::eagle);
  const Drafted vllm = drafted(EngineKind::vllm, "0.19.1", s);
  const Stage with = stage_of(vllm.model, vllm.facts, 1, 1, 1, 0);
  const ServerModel plain = server_model(*Catalog::builtin().model(kTarget).architecture, EngineKind::vllm, Server{});
  const Stage without = stage_of(plain, vllm.facts, 1, 1, 1, 0);
  const auto all = [](const Stage& x) { return x.embedding + x.head + x.outside + x.norms + x.mixers + x.feed_forwards; };
  CHECK(with.embedding == without.embedding);
  CHECK(with.head == without.head);
  const Bytes rope = vllm.facts.rope_tables * 2048 * 128 * vllm.facts.rope_bits / 8;
  CHECK(all(with) - all(without) == layer(kHidden, 1, 1) + 2 * 2 * kHidden * kHidden + rope);
  // SGLang's projection has a bias
  const Drafted sglang = drafted(EngineKind::sglang, "0.5.10", s);
  CHECK(sglang.model.draft_outside == vllm.model.draft_outside + 2 * kHidden);
}

TEST_CASE("a draft's layers are layers of vLLM's cache, and its inputs lie in buffers of a whole batch") {
  const Drafted with = drafted(EngineKind::vllm, "0.19.1", with_draft(kEagle3));
  const Drafted without = drafted(EngineKind::vllm, "0.19.1", Server{});
  CHECK(with.plan.token_bytes == without.plan.token_bytes / 32 * 33);
  CHECK(with.plan[T::buffers] == 3 * without.plan[T::buffers]);
  CHECK(with.plan.kv_tokens < without.plan.kv_tokens);
}

TEST_CASE("what a draft reads of the model lives through a step, and tables that it gives up are there while it loads") {
  const Server s = with_draft(kEagle3);
  const Drafted vllm = drafted(EngineKind::vllm, "0.19.1", s), without = drafted(EngineKind::vllm, "0.19.1", Server{});
  const Bytes states = 2 * 3 * vllm.plan.batched_tokens * kHidden, table = Bytes{2} * 128256 * kHidden;
  CHECK(vllm.plan[T::draft_states] == states);
  CHECK(vllm.plan[T::draft_loaded] == table);
  CHECK(vllm.plan.profile_peak - without.plan.profile_peak <= states);
  CHECK(drafted(EngineKind::sglang, "0.5.10", s).plan[T::draft_loaded] == table);
  CHECK(drafted(EngineKind::sglang, "0.5.18", s).plan[T::draft_loaded] == 0);  // loaded before the pool is made
  const Server eagle = with_draft("", DraftMethod::eagle);
  CHECK(drafted(EngineKind::vllm, "0.19.1", eagle).plan[T::draft_states] == 0);
  CHECK(drafted(EngineKind::sglang, "0.5.10", eagle).plan[T::draft_loaded] == 2 * table);
}

TEST_CASE("a head of another width has an embedding of its own; SGLang's head without a vocabulary has the model's") {
  const Server s =
      with_draft(R"("architectures": ["LlamaForCausalLMEagle3"], "target_hidden_size": 4096)", DraftMethod::auto_, 2048);
  const Drafted own = drafted(EngineKind::sglang, "0.5.10", s);
  CHECK(own.model.draft.own_embedding);
  CHECK(own.model.draft.head_rows == 0);
  CHECK(drafted(EngineKind::vllm, "0.19.1", s).model.draft.head_rows == 128256);
}

TEST_CASE("drafts that were not looked up, or that name no method, are refused") {
  Server s = with_draft("");
  CHECK_THROWS_AS(drafted(EngineKind::vllm, "0.19.1", s), InputError);
  s = with_draft(kEagle3);
  s.draft.architecture = nullptr;
  CHECK_THROWS_AS(drafted(EngineKind::vllm, "0.19.1", s), InputError);
}

}  // namespace
