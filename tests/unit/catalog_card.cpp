// The model card's figures, by hand.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "catalog/catalog.hpp"
#include "report/model_card.hpp"

namespace {

using namespace oomplan;

CacheFigures figures(const char* name) { return cache_figures(*Catalog::builtin().model(name).architecture); }

TEST_CASE("cache bytes a token: keys and values, the latent, or nothing") {
  CHECK(figures("qwen3-8b").per_token == 36 * 2 * 8 * 128 * 2);
  CHECK(figures("deepseek-v3").per_token == 61 * (512 + 64) * 2);
  CHECK(figures("gpt2").per_token == 12 * 2 * 768 * 2);
  CHECK(figures("gpt-oss").per_token == 12 * 2 * 8 * 64 * 2);
  CHECK(figures("gpt-oss").per_token_windowed == 12 * 2 * 8 * 64 * 2);
  CHECK(figures("mamba-2.8b").per_token == 0);
}

TEST_CASE("states of a request: convolution in 16 bits, recurrent state in 32") {
  // Mamba 2.8B: 64 layers, inner 5120, 3 taps kept, state 16
  CHECK(figures("mamba-2.8b").per_request == 64 * (3 * 5120 * 2 + 5120 * 16 * 4));
  // Qwen3-Next: 36 linear layers, 16 key heads and 32 value heads of 128
  CHECK(figures("qwen3-next").per_request == 36 * (3 * (2 * 2048 + 4096) * 2 + 4096 * 128 * 4));
  CHECK(figures("qwen3-next").per_token == 12 * 2 * 2 * 256 * 2);
}

TEST_CASE("the card in JSON") {
  const auto card = nlohmann::json::parse(model_card_json(*Catalog::builtin().model("qwen3-30b-a3b").architecture, true));
  CHECK(card["schema"] == "oomplan.model/1");
  CHECK(card["parameters"]["total"] == 30532122624);
  CHECK(card["parameters"]["active"] == 3353032704);
  CHECK(card["layers"].size() == 1);
  CHECK(card["layers"][0]["experts"] == 128);
  std::int64_t sum = 0;
  for (const auto& row : card["tensors"]) sum += row["total"].get<std::int64_t>();
  CHECK(sum == 30532122624);
  Architecture odd = *Catalog::builtin().model("gpt2").architecture;
  odd.name = "\xff";
  CHECK_NOTHROW(model_card_json(odd, false));
}

TEST_CASE("the card as text") {
  const std::string card = model_card_text(*Catalog::builtin().model("deepseek-v3").architecture, false);
  CHECK(card.find("671,026,419,200") != std::string::npos);
  CHECK(card.find("58 x mla") != std::string::npos);
  CHECK(card.find("\x1b") == std::string::npos);
  CHECK(model_card_text(*Catalog::builtin().model("gpt2").architecture, true).find("\x1b[1m") != std::string::npos);
}

}  // namespace
