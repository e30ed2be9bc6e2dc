// models/engines: for every version, GPU and condition that the code asks for, exactly one row answers.
#include <doctest/doctest.h>

#include <oomplan/units/errors.hpp>
#include <set>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"
#include "job/training_loop.hpp"
#include "sync/sync.hpp"

namespace {

using namespace oomplan;

/// Bounds of all rows of an engine, and the versions around the measured ones.
std::vector<std::string> versions_of(const Facts& facts, const std::string& engine, const std::vector<std::string>& more) {
  const auto known = facts.known_versions(engine);
  std::set<std::string> out(known.begin(), known.end());
  out.insert(more.begin(), more.end());
  return {out.begin(), out.end()};
}

ServerModel model_of(bool moe, bool latent, const std::string& family) {
  ServerModel m;
  m.hidden = 4096;
  m.moe = moe;
  m.mla = latent;
  m.family = family;
  return m;
}

TEST_CASE("every supported version of both engines resolves on every GPU of the table") {
  const Catalog& catalog = Catalog::builtin();
  const auto vllm = versions_of(catalog.facts(), "vllm",
                                {"0.6.6", "0.7.3", "0.8.5", "0.9.2", "0.10.2", "0.11.0", "0.14.1", "0.19.0", "0.19.1", "0.24.0"});
  const auto sglang =
      versions_of(catalog.facts(), "sglang", {"0.4.6.post5", "0.4.9", "0.5.2", "0.5.5", "0.5.9", "0.5.10.post1", "0.5.18"});
  REQUIRE(!catalog.gpus().empty());
  int resolved = 0;
  for (const Gpu& gpu : catalog.gpus()) {
    for (const bool moe : {false, true}) {
      for (const bool latent : {false, true}) {
        for (const std::string family : {"llama", "gemma3", "olmo2", "gpt_oss"}) {
          ServerModel m = model_of(moe, latent, family);
          m.engine = EngineKind::vllm;
          for (const std::string& v : vllm)
            CHECK_NOTHROW_MESSAGE((resolve(catalog.facts(), EngineKind::vllm, v, gpu, m), ++resolved), v, " ", gpu.name);
          m.engine = EngineKind::sglang;
          for (const std::string& v : sglang)
            CHECK_NOTHROW_MESSAGE((resolve(catalog.facts(), EngineKind::sglang, v, gpu, m), ++resolved), v, " ", gpu.name);
        }
      }
    }
  }
  CHECK(resolved > 1000);
}

TEST_CASE("versions older than those that were read are refused by name") {
  const Catalog& catalog = Catalog::builtin();
  const Gpu& gpu = catalog.gpu("H100-80GB");
  CHECK_THROWS_WITH_AS(resolve(catalog.facts(), EngineKind::vllm, "0.4.2", gpu, model_of(false, false, "llama")),
                       doctest::Contains("not supported yet"), InputError);
  CHECK_NOTHROW(resolve(catalog.facts(), EngineKind::vllm, "0.99", gpu, model_of(false, false, "llama")));  // as the newest
  CHECK_THROWS_AS(resolve(catalog.facts(), EngineKind::sglang, "", gpu, model_of(false, false, "llama")), InputError);
}

TEST_CASE("weight updates find their settings in every version of both frameworks") {
  const Facts& facts = Catalog::builtin().facts();
  for (const std::string v : {"0.3.4", "0.4.1", "0.5.3", "1.0.0", "1.0.3", "1.0.4", "2.0.0"}) {
    for (const SyncBy by : {SyncBy::none, SyncBy::nccl, SyncBy::disk})
      CHECK_NOTHROW(sync_point(facts, training_loop(Framework::areal), v, by, 0, EngineKind::sglang, false));
    CHECK_NOTHROW(fused_experts(facts, training_loop(Framework::areal), v));
  }
  for (const std::string v : {"0.4.1", "0.5.0", "0.7.0", "0.7.1", "0.8.0", "0.9.0"})
    for (const bool same : {false, true})
      CHECK_NOTHROW(sync_point(facts, training_loop(Framework::verl), v, SyncBy::nccl, 0, EngineKind::vllm, same));
  CHECK(sync_point(facts, training_loop(Framework::areal), "1.0.4", SyncBy::nccl, 0, EngineKind::sglang, false).bucket == kGiB);
  CHECK(sync_point(facts, training_loop(Framework::verl), "0.9.0", SyncBy::nccl, 0, EngineKind::vllm, true).bucket == 2 * kGiB);
}

}  // namespace
