#include <doctest/doctest.h>

#include "layout/letters.hpp"
#include "layout/rules.hpp"

using namespace oomplan;

namespace {

Layout made(std::int64_t d, std::int64_t t, std::int64_t p, std::int64_t c, std::int64_t e, std::int64_t et = 1,
            bool hybrid = false) {
  Layout out;
  out.data = d;
  out.tensor = t;
  out.pipeline = p;
  out.context = c;
  out.expert = e;
  out.expert_tensor = et;
  out.hybrid = hybrid;
  return out;
}

}  // namespace

TEST_CASE("layouts of AReaL's own tests, docs and examples") {
  struct Row {
    const char* text;
    Layout layout;
    std::int64_t world;
  };
  const Row rows[] = {
      {"d4", made(4, 1, 1, 1, 1), 4},
      {"d4p2t2", made(4, 2, 2, 1, 1), 16},
      {"t2d2", made(2, 2, 1, 1, 1), 4},
      {"d2c2", made(2, 1, 1, 2, 1), 4},
      {"c4", made(1, 1, 1, 4, 1), 4},
      {"d2p2e2", made(2, 1, 2, 1, 2), 4},
      {"d2p2t4e2c4", made(2, 4, 2, 4, 2), 64},
      {"attn:d2p2t2c2|ffn:d2p2t2e2", made(2, 2, 2, 2, 2, 2, true), 16},
      {"(attn:d4p2t2c2|ffn:d2p2t4e2)", made(4, 2, 2, 2, 2, 4, true), 32},
      {"attn:d1p4t2c2|ffn:d1p4t1e4", made(1, 2, 4, 2, 4, 1, true), 16},
      {"attn:d1p12t4|ffn:d1p12e4", made(1, 4, 12, 1, 4, 1, true), 48},
      {"attn:d4p4t2|ffn:d2p4e4", made(4, 2, 4, 1, 4, 1, true), 32},
      {"attn:d4p1t4c2|ffn:d4p1e8", made(4, 4, 1, 2, 8, 1, true), 32},
      {" d 4 t 2 ", made(4, 2, 1, 1, 1), 8},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto read = read_letters(row.text);
    REQUIRE(read);
    CHECK(*read.layout == row.layout);
    CHECK(read.layout->world() == row.world);
    const auto again = read_letters(letters(*read.layout));
    REQUIRE(again);
    CHECK(*again.layout == row.layout);
  }
}

TEST_CASE("layouts that are refused say why") {
  struct Row {
    const char* text;
    const char* why;
  };
  const Row rows[] = {
      {"", "no letter stands in it"},
      {"x5", "'x' is not one of the letters d, t, p, c, e"},
      {"d2m2p1", "'m' was the tensor degree before AReaL 0.3.1: write t"},
      {"d", "no number stands behind 'd'"},
      {"d0", "a degree is at least 1: 'd0'"},
      {"d04", "leading zero behind 'd'"},
      {"d4d2", "the letter 'd' stands twice"},
      {"d-4", "no number stands behind 'd'"},
      {"d4+d4", "one role has one layout: GPUs are added up over the roles"},
      {"sglang:d4", "the engine is written at 'engine', the layout has only letters"},
      {"d200000", "the degree of 'd' is above 131072"},
      {"d131072t2", "it takes more than 131072 GPUs"},
      {"d131072t131072p131072c131072", "it takes more than 131072 GPUs"},
      {"d3e2", "3 GPUs are not a multiple of p*e = 2"},
      {"attn:d4", "'attn:' needs '|ffn:' behind it"},
      {"attn:d2p2t1c4|ffn:d2p4t1e2", "the pipeline degrees differ: p2 behind attn:, p4 behind ffn:"},
      {"attn:d4p2t1c1|ffn:d2p2t2e2", "attn: takes 8 GPUs, ffn: 16"},
      {"attn:d2e2|ffn:e2", "'e' is not one of the letters c, d, t, p behind attn:"},
      {"attn:d2|ffn:c2", "'c' is not one of the letters d, e, t, p behind ffn:"},
      {"attn:d131072t131072|ffn:e2", "it takes more than 131072 GPUs"},
      {"attn:d2|ffn:e131072t131072",
       "the expert data degree cannot be derived: 2 GPUs of attn: are not a multiple of e*t*p = more than 131072"},
      {"attn:d2|ffn:d131072e131072t131072", "attn: takes 2 GPUs, ffn: more than 131072"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.text);
    const auto read = read_letters(row.text);
    CHECK(!read);
    CHECK(read.why == row.why);
  }
  CHECK(read_letters("D4").nearest == "d4");
  CHECK(read_letters("fsdp:d4").nearest == "d4");
}

TEST_CASE("Ulysses: 40 heads on 32 GPUs can be split 1, 2, 4 or 8 ways") {
  CHECK(ulysses_degrees(32, {40, 8, 0, 0}) == std::vector<std::int64_t>{1, 2, 4, 8});
  CHECK(ulysses_degrees(32, {40, 40, 0, 0}) == std::vector<std::int64_t>{1, 2, 4, 8});
  CHECK(ulysses_degrees(8, {28, 4, 0, 0}) == std::vector<std::int64_t>{1, 2, 4});
  CHECK(ulysses_degrees(12, {24, 8, 0, 0}) ==
        std::vector<std::int64_t>{1, 2, 4});  // 3, 6, 12: neither divide 8 nor are multiples
  CHECK(ulysses_degrees(64, {64, 8, 0, 0}) == std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64});  // heads are repeated
}

TEST_CASE("rules of the engines") {
  const ModelShape qwen7b{28, 4, 0, 28};
  CHECK(broken_rules(made(4, 1, 1, 1, 1), EngineKind::fsdp2, qwen7b).empty());
  CHECK(broken_rules(made(2, 1, 1, 4, 1), EngineKind::fsdp2, qwen7b).empty());
  CHECK(broken_rules(made(1, 1, 1, 8, 1), EngineKind::fsdp2, qwen7b).size() == 1);
  CHECK(broken_rules(made(2, 4, 1, 1, 1), EngineKind::fsdp2, qwen7b).empty());
  CHECK(broken_rules(made(2, 8, 1, 1, 1), EngineKind::fsdp2, qwen7b).size() == 1);  // DTensor splits whole heads only
  CHECK(broken_rules(made(2, 2, 1, 2, 1), EngineKind::fsdp2, qwen7b).size() == 1);  // not with Ulysses yet
  CHECK(broken_rules(made(2, 2, 1, 1, 1), EngineKind::fsdp1, qwen7b).size() == 1);
  CHECK(broken_rules(made(1, 2, 2, 1, 2), EngineKind::fsdp2, qwen7b).size() == 2);
  CHECK(broken_rules(made(2, 4, 1, 1, 1), EngineKind::vllm, qwen7b).empty());
  CHECK(broken_rules(made(2, 8, 1, 1, 1), EngineKind::vllm, qwen7b).size() == 1);
  CHECK(broken_rules(made(1, 1, 32, 1, 1), EngineKind::vllm, qwen7b).size() == 1);
  CHECK(broken_rules(made(1, 1, 1, 2, 1), EngineKind::sglang, qwen7b).size() == 1);
  CHECK(broken_rules(made(2, 1, 1, 1, 1), EngineKind::single, qwen7b).size() == 1);
  CHECK(broken_rules(made(1, 4, 1, 1, 1), EngineKind::single, qwen7b).empty());  // parallelize_module alone
  CHECK(broken_rules(made(1, 8, 1, 1, 1), EngineKind::single, qwen7b).size() == 1);
  CHECK(broken_rules(made(1, 1, 1, 1, 6), EngineKind::megatron, {32, 4, 128, 48}).size() == 1);
}
