// Requests in service, by hand: who starts, when the pool is full, who gives up.
#include <doctest/doctest.h>

#include "catalog/catalog.hpp"
#include "inference/in_service.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;

struct Case {
  ServerModel model;
  ServerFacts facts;
  ServerPoint point;
  ServerPlan plan_made;
};

/// Llama 3.1 8B: 131,072 bytes a token. `pages`: of 16 tokens that requests can have; one more stands for "no page".
Case vllm_case(std::int64_t pages, std::int64_t max_running) {
  const Catalog& catalog = Catalog::builtin();
  Server s;
  s.version = "0.19.1";
  s.max_model_len = 4096;
  s.max_running = max_running;
  s.kv_cache_bytes = (pages + 1) * 16 * 131072;
  Case out;
  out.model = server_model(*catalog.model("meta-llama/Llama-3.1-8B-Instruct").architecture, EngineKind::vllm, s);
  out.facts = resolve(catalog.facts(), EngineKind::vllm, s, catalog.gpu("H100-80GB"), out.model);
  out.point = point_of(s);
  out.plan_made = plan(out.model, out.facts, out.point);
  REQUIRE(out.plan_made.kv_pages == pages + 1);
  return out;
}

InService served(const Case& c, const ServiceLoad& load) {
  const auto found = in_service(c.model, c.facts, c.point, c.plan_made, load);
  REQUIRE(found.has_value());
  return *found;
}

}  // namespace

TEST_CASE("vLLM lets prompts in and preempts when responses have grown") {
  // prompts take 10 of 1,000 pages, whole requests 25: 64 start, 40 can end; 15 pages each are 240 tokens, 80 of a response
  const InService s = served(vllm_case(1000, 256), {64, 160, 240});
  CHECK(s.at_once == 64);
  CHECK(s.waiting == 0);
  CHECK(s.to_the_end == 40);
  CHECK(s.given_up == 24);
  CHECK(s.full_at == 81);
  CHECK(s.cause == "kv_pool");
  CHECK(s.recomputed_tokens > 24 * (160 + 80));
  CHECK(s.recomputed_tokens < 24 * (160 + 240));
  CHECK(s.tokens_wanted == 64 * 400);
}

TEST_CASE("responses to one prompt hold its whole pages once") {
  // 144 of 160 tokens are nine whole pages, held once for eight responses: 58 * 25 - 50 * 9 = 1,000 pages
  const InService s = served(vllm_case(1000, 256), {64, 160, 240, 8});
  CHECK(s.shared_tokens == 144);
  CHECK(s.to_the_end == 58);
  CHECK(s.full_at == 209);
  CHECK(s.given_up == 6);
  const InService alone = served(vllm_case(1000, 256), {64, 160, 240, 8, false});
  CHECK(alone.shared_tokens == 0);
  CHECK(alone.to_the_end == 40);
}

TEST_CASE("the first thing that makes requests wait is told") {
  const InService few = served(vllm_case(1000, 32), {64, 160, 240});
  CHECK(few.cause == "max_running_requests");
  CHECK(few.at_once == 32);
  CHECK(few.waiting == 32);
  CHECK(few.full_at == 0);
  CHECK(few.given_up == 0);
  const InService prompts = served(vllm_case(300, 256), {64, 160, 240});
  CHECK(prompts.cause == "kv_pool");
  CHECK(prompts.at_once == 30);
  const InService nobody = served(vllm_case(2000, 256), {64, 160, 240});
  CHECK(nobody.cause.empty());
  CHECK(nobody.to_the_end == 64);
  CHECK(nobody.full_at == 0);
}

TEST_CASE("what is not stated, or longer than the context, has no answer") {
  const Case c = vllm_case(1000, 256);
  CHECK_FALSE(in_service(c.model, c.facts, c.point, c.plan_made, {0, 160, 240}).has_value());
  CHECK_FALSE(in_service(c.model, c.facts, c.point, c.plan_made, {64, 0, 240}).has_value());
  CHECK_FALSE(in_service(c.model, c.facts, c.point, c.plan_made, {64, 160, 4096}).has_value());
}

TEST_CASE("SGLang keeps room for responses: requests queue before they are retracted") {
  const Catalog& catalog = Catalog::builtin();
  Server s;
  s.version = "0.5.10";
  s.max_model_len = 32768;
  const auto architecture = catalog.model("meta-llama/Llama-3.1-8B-Instruct").architecture;
  Case c;
  c.model = server_model(*architecture, EngineKind::sglang, s);
  c.facts = resolve(catalog.facts(), EngineKind::sglang, s, catalog.gpu("H100-80GB"), c.model);
  c.point = point_of(s);
  c.plan_made = plan(c.model, c.facts, c.point);
  const std::int64_t pool = c.plan_made.kv_tokens;
  const std::int64_t prompts_only = pool / 1024;  // a system that keeps nothing would let in so many
  const InService all = served(c, {4096, 1024, 8192});
  CHECK(all.at_once < std::min<std::int64_t>(prompts_only, 2048));
  CHECK(all.cause == "reserve");
  CHECK(all.to_the_end == pool / 9216);
  // 600 steps later a request holds 1,624 tokens and keeps 0.098 of 4,096 more
  const double each = 1024 + 600 + 0.098 * 4096;
  CHECK(all.at_once == doctest::Approx(static_cast<double>(pool) / each).epsilon(0.02));
  CHECK(all.given_up == all.at_once - all.to_the_end);
  const InService little = served(c, {16, 1024, 8192});
  CHECK(little.cause.empty());
  CHECK(little.at_once == 16);
}
