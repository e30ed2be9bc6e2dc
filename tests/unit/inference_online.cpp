// Weights that are converted while they are loaded, caches of 4 bits, models without their towers: by hand.
#include <string>

#include <doctest/doctest.h>

#include "catalog/catalog.hpp"
#include "inference/server_facts.hpp"
#include "inference/stage.hpp"
#include "job/validate_server.hpp"

namespace {

using namespace oomplan;

constexpr std::int64_t kHidden = 4096, kWidth = 12288, kHead = 128;  // Qwen3 8B

Server asked(OnlineFormat format, DType kv = DType::bf16) {
  Server s;
  s.version = "0.24.0";
  s.online = format;
  s.kv = kv;
  return s;
}

ServerModel model_of(const char* name, const Server& server) {
  return server_model(*Catalog::builtin().model(name).architecture, EngineKind::vllm, server);
}

Stage stage_of_one(const char* name, const Server& server) {
  const Catalog& catalog = Catalog::builtin();
  const ServerModel m = model_of(name, server);
  return stage_of(m, resolve(catalog.facts(), EngineKind::vllm, server, catalog.gpu("H100"), m), 1, 1, 1, 0);
}

std::string why_not(const Server& server, const char* gpu, const char* model = "Qwen/Qwen3-8B",
                    EngineKind engine = EngineKind::vllm) {
  Role role;
  role.kind = RoleKind::server;
  role.engine = engine;
  role.architecture = Catalog::builtin().model(model).architecture;
  role.server = server;
  std::string out;
  for (const KnobProblem& p : server_problems(role, Catalog::builtin().gpu(gpu))) out += p.knob + ": " + p.why + "\n";
  return out;
}

TEST_CASE("a token of the cache in 4 bits has a scale for 16 elements, one with scales of its own 4 bytes a head twice") {
  const auto token = [](const Server& s) { return model_of("Qwen/Qwen3-8B", s).kinds.front().cache.token_head; };
  CHECK(token(asked(OnlineFormat::none)) == 2 * kHead * 2);
  CHECK(token(asked(OnlineFormat::none, DType::fp8)) == 2 * kHead);
  CHECK(token(asked(OnlineFormat::none, DType::nvfp4)) == 2 * (kHead / 2 + kHead / 16));
  Server scaled = asked(OnlineFormat::none, DType::fp8);
  scaled.kv_token_scales = true;
  CHECK(token(scaled) == 2 * (kHead + 4));
}

TEST_CASE("bitsandbytes unpacks a matrix for its product, and a layer's experts all at once") {
  CHECK(stage_of_one("Qwen/Qwen3-8B", asked(OnlineFormat::none)).unpacked == 0);
  CHECK(stage_of_one("Qwen/Qwen3-8B", asked(OnlineFormat::fp8_per_block)).unpacked == 0);
  CHECK(stage_of_one("Qwen/Qwen3-8B", asked(OnlineFormat::bitsandbytes)).unpacked == 2 * kHidden * kWidth);
  // 128 experts of 3 matrices, 2048 x 768
  CHECK(stage_of_one("Qwen/Qwen3-30B-A3B", asked(OnlineFormat::bitsandbytes)).unpacked == 2LL * 128 * 3 * 2048 * 768);
}

TEST_CASE("formats of weights differ by their scales") {
  const auto gate_up = [](OnlineFormat f) {
    const ServerModel m = model_of("Qwen/Qwen3-8B", asked(f));
    const ServerLayer& l = m.kinds.front();
    const auto at = static_cast<std::size_t>(Fused::gate_up);
    return std::pair{l.matrices[at].split, l.scales[at].split};
  };
  const std::int64_t n = 2 * kWidth * kHidden;
  CHECK(gate_up(OnlineFormat::fp8_per_block) == std::pair<Bytes, Bytes>{n, n / (128 * 128) * 4});
  CHECK(gate_up(OnlineFormat::fp8_per_channel) == std::pair<Bytes, Bytes>{n, 2 * kWidth * 4});
  CHECK(gate_up(OnlineFormat::mxfp8) == std::pair<Bytes, Bytes>{n, n / 32});
  CHECK(gate_up(OnlineFormat::bitsandbytes) == std::pair<Bytes, Bytes>{n / 2, n / 64 * 4});
  CHECK(gate_up(OnlineFormat::experts_int8) == std::pair<Bytes, Bytes>{2 * n, 0});
}

TEST_CASE("formats that a release, a GPU or a model has not are refused by name") {
  CHECK(why_not(asked(OnlineFormat::bitsandbytes), "H100").empty());
  Server old = asked(OnlineFormat::mxfp8);
  old.version = "0.19.1";
  CHECK(why_not(old, "H100").find("below sm100") != std::string::npos);
  CHECK(why_not(old, "B200").empty());
  CHECK(why_not(asked(OnlineFormat::bitsandbytes), "H100", "deepseek-ai/DeepSeek-V2-Lite").find("latent") != std::string::npos);
  CHECK(why_not(asked(OnlineFormat::none, DType::nvfp4), "H100").find("sm100") != std::string::npos);
  CHECK(why_not(asked(OnlineFormat::none, DType::nvfp4), "B200").empty());
  CHECK(why_not(asked(OnlineFormat::none, DType::mxfp4), "B200").find("4 bits") != std::string::npos);
  Server scaled = asked(OnlineFormat::none);
  scaled.kv_token_scales = true;
  CHECK(why_not(scaled, "H100").find("kv: fp8") != std::string::npos);
  Server sglang = asked(OnlineFormat::none, DType::mxfp4);
  sglang.version = "0.5.10";
  CHECK(why_not(sglang, "B200", "Qwen/Qwen3-8B", EngineKind::sglang).empty());
  CHECK(why_not(sglang, "B200", "google/gemma-3-27b-it", EngineKind::sglang).find("windows") != std::string::npos);
}

TEST_CASE("a model without its tower has no dummy images and no table of the tower") {
  Server text = asked(OnlineFormat::none);
  const ServerModel whole = model_of("google/gemma-3-27b-it", text);
  text.text_only = true;
  const ServerModel alone = model_of("google/gemma-3-27b-it", text);
  CHECK(whole.tower + whole.tower_whole > 0);
  CHECK(alone.tower + alone.tower_whole == 0);
  CHECK(whole.image_tokens > 0);
  CHECK(alone.image_tokens == 0);
}

}  // namespace
