// Parameter counts against published totals and against the modules that transformers builds.
//
// tests/data/configs.jsonl has a row per published model: the fields of its config.json that matter, and any of
//   counts        language model, active, mtp and vision tower, each counted by another program from the same config
//   published     totals as the Hub or an index file states them, with what they count: "main+mtp+copies+fp8_scales:41540496"
//   says
//                 that the total also counts the MTP block, its copies of embedding and head, and 41540496 block scales;
//                 buffers and router_bias likewise; "undescribed:<n>" a part of the checkpoint that the config does not describe
//   transformers  parameters (and router correction biases) of the module that transformers 5.23 builds
//   refused       the field that an InputError names
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>
#include <set>
#include <string>

#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

const std::vector<Json>& rows() {
  static const std::vector<Json> all = [] {
    std::vector<Json> out;
    std::ifstream file(OOMPLAN_SOURCE_DIR "/tests/data/configs.jsonl");
    for (std::string line; std::getline(file, line);) out.push_back(Json::parse(line));
    return out;
  }();
  return all;
}

Architecture architecture_of(const Json& row) { return read_config(row["config"].dump(), row["id"].get<std::string>()); }

/// "main+mtp-router_bias:2944" as a number.
std::int64_t sum_of(const std::string& words, const Architecture& model) {
  const ParameterCounts counts = count(model);
  const std::map<std::string, std::int64_t> known{{"main", counts.language},
                                                  {"vision", counts.tower},
                                                  {"mtp", counts.mtp},
                                                  {"copies", counts.mtp_copies},
                                                  {"tied_head", model.vocab * model.hidden}};
  std::int64_t total = 0;
  for (std::size_t at = 0; at < words.size();) {
    const std::size_t end = std::min(words.find_first_of("+-", at + 1), words.size());
    const bool minus = words[at] == '-';
    if (words[at] == '+' || minus) ++at;
    const std::string word = words.substr(at, end - at);
    const std::size_t colon = word.find(':');
    const std::int64_t value = colon == std::string::npos ? known.at(word) : std::stoll(word.substr(colon + 1));
    total += minus ? -value : value;
    at = end;
  }
  return total;
}

TEST_CASE("every published config is read, or refused by the name of the field that it lacks") {
  CHECK(rows().size() == 375);
  std::set<std::string> refused;
  for (const Json& row : rows()) {
    CAPTURE(row["id"].get<std::string>());
    if (!row.contains("refused")) {
      CHECK_NOTHROW(architecture_of(row));
      continue;
    }
    refused.insert(row["id"]);
    CHECK_THROWS_WITH_AS(architecture_of(row), doctest::Contains(row["refused"].get<std::string>().c_str()), InputError);
  }
  CHECK(refused == std::set<std::string>{"Qwen/Qwen3-Omni-30B-A3B", "moonshotai/Kimi-K3"});
}

TEST_CASE("counts equal those of another program, part by part") {
  int compared = 0;
  for (const Json& row : rows()) {
    if (!row.contains("counts")) continue;
    CAPTURE(row["id"].get<std::string>());
    const ParameterCounts counts = count(architecture_of(row));
    const Json& wanted = row["counts"];
    CHECK(counts.language == wanted["main"]);
    CHECK(counts.active == wanted["active"]);
    CHECK(counts.mtp == wanted["mtp"]);
    if (wanted.contains("vision")) CHECK(counts.tower == wanted["vision"]);
    ++compared;
  }
  CHECK(compared == 195);
}

TEST_CASE("counts equal the published totals, once it is said what a total counts") {
  int compared = 0, plain = 0;
  for (const Json& row : rows()) {
    if (!row.contains("published")) continue;
    CAPTURE(row["id"].get<std::string>());
    const Architecture model = architecture_of(row);
    for (const Json& total : row["published"]) {
      const std::string words = total["counts"];
      CAPTURE(words);
      CHECK(sum_of(words, model) == total["total"]);
      ++compared;
      plain += words.find(':') == std::string::npos ? 1 : 0;
    }
  }
  CHECK(compared >= 158);
  CHECK(plain >= compared - 27);
}

TEST_CASE("counts equal the modules that transformers builds") {
  int compared = 0;
  for (const Json& row : rows()) {
    if (!row.contains("transformers")) continue;
    CAPTURE(row["id"].get<std::string>());
    CHECK(sum_of(row["transformers"]["counts"], architecture_of(row)) == row["transformers"]["total"]);
    ++compared;
  }
  CHECK(compared >= 147);
}

TEST_CASE("built-in models count like the config that they were taken from") {
  std::map<std::string, const Json*> by_id;
  for (const Json& row : rows()) by_id[row["id"]] = &row;
  for (const std::string& id : Catalog::builtin().model_ids()) {
    CAPTURE(id);
    const ModelFound found = Catalog::builtin().model(id);
    CHECK(found.id == id);
    CHECK(found.from == "built-in");
    REQUIRE(by_id.count(id) == 1);
    const Architecture wanted = architecture_of(*by_id[id]);
    const ParameterCounts a = count(*found.architecture), b = count(wanted);
    CHECK(a.language == b.language);
    CHECK(a.active == b.active);
    CHECK(a.tower == b.tower);
    CHECK(a.mtp == b.mtp);
    CHECK(found.architecture->family == wanted.family);
  }
}

TEST_CASE("a parameter table adds up, names no tensor twice and leaves no run without tensors") {
  for (const Json& row : rows()) {
    if (row.contains("refused")) continue;
    CAPTURE(row["id"].get<std::string>());
    const Architecture model = architecture_of(row);
    std::set<std::string> seen;
    std::set<std::int64_t> runs;
    for (const Parameter& each : parameters(model)) {
      CAPTURE(each.name);
      CHECK(each.total() > 0);
      runs.insert(each.run);
      if (each.part == ParameterPart::mtp || each.part == ParameterPart::tower) continue;
      CHECK(seen.insert(std::to_string(each.run) + " " + each.name).second);
    }
    for (std::size_t i = 0; i < model.runs.size(); ++i) {
      const Layer& layer = model.runs[i].layer;
      const bool empty = layer.mixer.kind == MixerKind::none && layer.feed_forward.kind == FeedForwardKind::none;
      CHECK(runs.count(static_cast<std::int64_t>(i)) == (empty ? 0 : 1));
    }
  }
}

TEST_CASE("Qwen2.5-0.5B by hand") {
  const Architecture model = *Catalog::builtin().model("Qwen/Qwen2.5-0.5B-Instruct").architecture;
  // h 896, 14 heads of 64, 2 k/v heads, f 4864, V 151936, tied
  const std::int64_t attention = 896 * 896 + 896 + 2 * (896 * 128 + 128) + 896 * 896;
  const std::int64_t layer = attention + 3 * 896 * 4864 + 2 * 896;
  CHECK(count(model).language == 151936 * 896 + 24 * layer + 896);
  CHECK(model.tied);
  REQUIRE(model.runs.size() == 1);
  const auto all = parameters(model);
  CHECK(all.front().name == "model.embed_tokens.weight");
  CHECK(all[1].name == "model.layers.{l}.input_layernorm.weight");
  CHECK(all[2].name == "model.layers.{l}.self_attn.q_proj.weight");
  CHECK(all[2].shape == std::vector<std::int64_t>{896, 896});
  CHECK(all[2].split == SplitAxis::rows);
  CHECK(all[4].name == "model.layers.{l}.self_attn.k_proj.weight");
  CHECK(all[4].split == SplitAxis::kv_rows);
  CHECK(all.back().name == "model.norm.weight");
}

TEST_CASE("a 671B model is a few dozen rows") {
  const auto all = parameters(*Catalog::builtin().model("deepseek-v3").architecture);
  CHECK(all.size() < 80);
}

}  // namespace

TEST_CASE("every family has the elements that transformers' class of it has, by the config that transformers saves") {
  std::ifstream file(OOMPLAN_SOURCE_DIR "/tests/data/counted_families.jsonl");
  int families = 0;
  for (std::string line; std::getline(file, line); ++families) {
    const Json row = Json::parse(line);
    CAPTURE(row["family"]);
    CHECK(count(read_config(row["config"].dump(), "model")).language == row["elements"].get<std::int64_t>());
  }
  CHECK(families == 85);
}

TEST_CASE("a config that does not say how wide its shared expert is has the one that transformers makes") {
  const Json qwen2 =
      Json::parse(R"({"model_type": "qwen2_moe", "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 256})");
  CHECK(count(read_config(qwen2.dump(), "model")).language == 4'688'256);  // transformers 5.23
}
