// Which modules have adapters, against peft's own answers for every family (tests/data/adapted_modules.jsonl, made by
// benchmarks/oracle/count_targets.py with the configs of tests/data/counted_families.jsonl).
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "layers/adapted_modules.hpp"
#include "layers/families.hpp"
#include "layers/name_pattern.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

std::vector<Json> rows_of(const std::string& file) {
  std::vector<Json> out;
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/" + file);
  REQUIRE(in.good());
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

std::vector<std::string> words(const Json& of) { return of.get<std::vector<std::string>>(); }

Lora lora_of(const Json& spec) {
  Lora out;
  out.rank = 4;
  const std::string kind = spec.value("kind", "lora");
  out.kind = kind == "vera" ? AdapterKind::vera : kind == "ia3" ? AdapterKind::ia3 : AdapterKind::lora;
  if (!spec.contains("targets"))
    out.targets_by_type = true;
  else if (spec["targets"].is_array())
    out.targets = words(spec["targets"]);
  else if (const std::string text = spec["targets"]; text != "all-linear" && text != "All-Linear")
    out.targets_matching = text;
  if (spec.contains("exclude") && spec["exclude"].is_array()) out.exclude = words(spec["exclude"]);
  if (spec.contains("exclude") && spec["exclude"].is_string()) out.exclude_matching = spec["exclude"];
  if (spec.contains("layers")) out.layers = spec["layers"].get<std::vector<std::int64_t>>();
  if (spec.contains("pattern")) out.layers_pattern = words(spec["pattern"]);
  if (spec.contains("save")) out.modules_to_save = words(spec["save"]);
  return out;
}

/// "model.layers.{l}.mlp.up_proj": [0, 2] as full names.
std::vector<std::string> full_names(const Json& by_layer) {
  std::vector<std::string> out;
  for (const auto& [place, layers] : by_layer.items())
    for (const std::int64_t layer : layers) {
      std::string name = place;
      if (const auto at = name.find("{l}"); at != std::string::npos) name.replace(at, 3, std::to_string(layer));
      out.push_back(std::move(name));
    }
  std::sort(out.begin(), out.end());
  return out;
}

std::map<std::string, Architecture> families() {
  std::map<std::string, Architecture> out;
  for (const Json& row : rows_of("counted_families.jsonl")) {
    const std::string family = row["family"];
    std::optional<Architecture> a;
    try {
      a = read_config(row["config"].dump(), family);
    } catch (const InputError&) {
      continue;
    }
    if (find_family_code(a->family) != nullptr) out.emplace(family, std::move(*a));
  }
  return out;
}

TEST_CASE("Adapted modules: peft's own answers for every family") {
  const std::map<std::string, Architecture> models = families();
  int met = 0, both_refuse = 0, refused_here = 0;
  for (const Json& row : rows_of("adapted_modules.jsonl")) {
    const auto model = models.find(row["family"]);
    if (model == models.end()) continue;
    const Json& spec = row["spec"];
    INFO(row["family"].get<std::string>() << " " << spec.dump());
    const Lora lora = lora_of(spec);
    std::optional<AdaptedModules> got;
    std::string why;
    try {
      got = adapted_modules(model->second, lora, false);
    } catch (const InputError& error) {
      why = error.what();
    }
    if (row.contains("error")) {
      CHECK_MESSAGE(!got, row["error"].get<std::string>());
      ++both_refuse;
      continue;
    }
    if (!got) {
      const bool named = why.find("not supported yet") != std::string::npos ||
                         why.find("saves nothing") != std::string::npos;  // of modules_to_save peft ignores what it does not find
      CHECK_MESSAGE(named, why);
      ++refused_here;
      continue;
    }
    ++met;
    CHECK(got->full_names == full_names(row["adapted"]));
    CHECK(got->folded_names == (row.contains("folded") ? full_names(row["folded"]) : std::vector<std::string>{}));
    CHECK(got->saved.size() == (row.contains("saved") ? row["saved"].size() : 0U));
    if (lora.kind == AdapterKind::lora) CHECK(got->trained == row["trained"].get<std::int64_t>());
  }
  MESSAGE(met, " met, ", both_refuse, " refused by both, ", refused_here, " not supported");
  CHECK(met > 1500);
  CHECK(both_refuse > 1000);
}

bool matches(std::string_view pattern, std::string_view name) {
  std::string why;
  const NamePattern made = NamePattern::parse(pattern, why);
  CHECK_MESSAGE(why.empty(), why);
  return made.matches(name);
}
std::string objection(std::string_view pattern) {
  std::string why;
  (void)NamePattern::parse(pattern, why);
  return why;
}

TEST_CASE("Expressions for names: what Python's re.fullmatch takes") {
  const std::string q = "model.layers.12.self_attn.q_proj";
  CHECK(matches(R"(.*\.(q|v)_proj)", q));
  CHECK_FALSE(matches(R"(q_proj)", q));
  CHECK(matches(R"(model\.layers\.\d{2}\.self_attn\.[kqv]_proj)", q));
  CHECK_FALSE(matches(R"(model\.layers\.\d\.self_attn\.[kqv]_proj)", q));
  CHECK(matches(R"(^model\.(?:layers|h)\.(?P<n>[0-9]+)\..*?_proj$)", q));
  CHECK(matches(R"(.*layers\.1[^0-15-9]\..*)", q));
  CHECK(matches(R"([\w.]+)", q));
  CHECK(matches("a{2,3}b{,2}c{2}", "aaabcc"));
  CHECK_FALSE(matches("a{2,3}b{,2}c{2}", "abcc"));
  CHECK(matches("a{x}", "a{x}"));
  CHECK(matches("(|a)b?", ""));
  CHECK(matches(R"(x[]\]a-]y)", "x]y"));
}

TEST_CASE("Expressions for names: what is not understood is said, and nothing takes long") {
  for (const char* pattern : {"(?=a)", "(?i)a", R"((a)\1)", R"(a\b)", "a**", "*a", "(a", "a)", "[a", "a\\", "[b-a]", "a{3,2}",
                              "a++", "(?P=n)", "a{5000}"})
    CHECK_MESSAGE(!objection(pattern).empty(), pattern);
  CHECK_FALSE(objection(std::string(3000, 'a')).empty());
  CHECK_FALSE(objection(std::string(100, '(')).empty());
  CHECK_FALSE(objection("((((a{100}){100}){100}){100})").empty());
  const std::string name(400, 'a');
  CHECK_FALSE(matches("(a*)*b", name));
  CHECK_FALSE(matches("(a|a|aa)+b", name));
  CHECK_FALSE(matches("(.*)*(.*)*(.*)*x", name));
}

}  // namespace
