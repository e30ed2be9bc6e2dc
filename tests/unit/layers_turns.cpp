// Loops over the sequence: a tape of a few simulated turns is that of all of them.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.hpp"
#include "catalog/read_config.hpp"
#include "layers/tape.hpp"
#include "layers/tape_builder.hpp"
#include "sampled.hpp"

using namespace oomplan;

namespace {

constexpr std::string_view kLightning = "lightning attention";
std::shared_ptr<const Architecture> lightning() {
  return std::make_shared<const Architecture>(read_config(
      R"({"model_type": "minimax", "block_size": 256, "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 384,
          "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"], "num_attention_heads": 8,
          "num_key_value_heads": 2, "num_hidden_layers": 4, "num_experts_per_tok": 2, "num_local_experts": 4, "rms_norm_eps": 1e-05,
          "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "tie_word_embeddings": false, "vocab_size": 1024})",
      "lightning"));
}

struct Line {
  TapeEvent::Kind kind;
  std::string name;
  Shape shape;
  std::int32_t offset, turn;
  bool relative, all_inner;
  bool operator==(const Line&) const = default;
};

/// The segment's events, every turn written out.
std::vector<Line> written_out(const Tape& tape, const Segment& segment) {
  std::vector<Line> out;
  const auto put = [&](const TapeEvent& e, std::int64_t turn) {
    const TapeSite& site = tape.sites[e.site];
    out.push_back({e.kind, site.name, site.shape, e.offset, static_cast<std::int32_t>(turn), e.relative, e.all_inner});
  };
  for (std::size_t i = 0; i < segment.events.size(); ++i) {
    const TapeEvent& e = segment.events[i];
    if (e.of_tensor()) {
      put(e, e.turn);
      continue;
    }
    const std::size_t end = end_of_loop(segment.events, i);
    for (std::int64_t t = 0; t < e.turns(); ++t) {
      const std::int64_t turn = e.first_turn() + (e.descends() ? -t : t);
      for (std::size_t k = i + 1; k < end; ++k)
        put(segment.events[k], segment.events[k].turn + (segment.events[k].turning ? turn : 0));
    }
    i = end;
  }
  return out;
}

void check_same(const Tape& few, const Tape& all, const TokenCounts& counts) {
  REQUIRE(few.stations.size() == all.stations.size());
  const auto few_values = monomial_values(few, counts), all_values = monomial_values(all, counts);
  for (std::size_t s = 0; s < few.stations.size(); ++s)
    for (const bool backward : {false, true})
      for (const Unit unit : {Unit::first, Unit::inner, Unit::last}) {
        CAPTURE(s);
        CAPTURE(backward);
        const Segment &x = few.stations[s].segment(backward, unit), &y = all.stations[s].segment(backward, unit);
        const auto lines = written_out(few, x), expected = written_out(all, y);
        REQUIRE(lines.size() == expected.size());
        CHECK((lines == expected));
        CHECK(x.gradient_bytes == y.gradient_bytes);
        REQUIRE(x.uses.size() == y.uses.size());
        for (const auto& [of_few, of_all] :
             {std::pair(&x.summary, &y.summary), std::pair(&x.summary_adding, &y.summary_adding)}) {
          const TorchSpan a = evaluate(*of_few, few_values), b = evaluate(*of_all, all_values);
          CHECK(a.net == b.net);
          CHECK(a.peak == b.peak);
          CHECK(a.events == b.events);
          CHECK(a.witness == b.witness);
        }
      }
}

}  // namespace

TEST_CASE("a few turns of a loop over the sequence stand for all of them") {
  struct Row {
    std::string_view model;
    std::int64_t tokens;
  };
  const Row rows[] = {{"Qwen/Qwen3-Next-80B-A3B-Instruct", 64 * 37 + 5},
                      {"Qwen/Qwen3.5-27B", 64 * 21},
                      {"state-spaces/mamba-130m-hf", 301},
                      {"state-spaces/mamba-130m-hf", 8},
                      {"state-spaces/mamba-130m-hf", 9},
                      {"ai21labs/AI21-Jamba-Mini-1.5", 200},
                      {"tiiuae/falcon-mamba-7b", 150},
                      {kLightning, 256 * 20 + 100}};
  std::size_t shorter = 0;
  Sample sample(1);
  for (const Row& row : rows) {
    CAPTURE(row.model);
    CAPTURE(row.tokens);
    const std::shared_ptr<const Architecture> a =
        row.model == kLightning ? lightning() : Catalog::builtin().model(row.model).architecture;
    for (const Recompute recompute : {Recompute::none, Recompute::full})
      for (const int variant : {0, 1, 2, 3}) {
        if (!sample.takes() || (variant == 3 && row.model == kLightning)) continue;  // not described under autocast
        PassOptions o;
        o.recompute = recompute;
        o.reentrant = variant == 1;
        o.training = variant != 2;
        o.kernels.autocast = variant == 3;
        o.kernels.scan_tokens = row.tokens;
        o.kernels.several_sequences = true;
        const auto few = make_tape(*a, o), all = make_tape_of_all_turns(*a, o);
        TokenCounts counts;
        counts.b = 3;
        counts.s = row.tokens;
        check_same(*few, *all, counts);
        std::size_t events = 0, expected = 0;
        for (const Station& s : few->stations) events += s.backward[0].events.size() + s.forward[0].events.size();
        for (const Station& s : all->stations) expected += s.backward[0].events.size() + s.forward[0].events.size();
        shorter += events < expected;
      }
  }
  CHECK(shorter > 0);
  if (sample.has_all()) CHECK(shorter > 20);
}
