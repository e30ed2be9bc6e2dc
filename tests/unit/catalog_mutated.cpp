// Changed configs against what transformers builds from them, and the defaults of its configuration classes.
//
// tests/data/mutated_configs.jsonl (benchmarks/oracle/mutate_configs.py) has how many rows end how, configs of few layers by id,
// and a row per mutation: the changes, and what transformers' class of that model_type holds on the meta device, or that it
// refuses the config.
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>
#include <string>

#include "catalog/catalog.hpp"
#include "catalog/class_defaults.hpp"
#include "catalog/parameters.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Json changed(Json config, const Json& changes) {
  for (const Json& change : changes) {
    std::string key = change[1];
    Json* part = &config;
    if (const std::size_t dot = key.find('.'); dot != std::string::npos) {
      part = &config[key.substr(0, dot)];
      key.erase(0, dot + 1);
    }
    if (change[0] == "drop") {
      part->erase(key);
    } else {
      (*part)[key] = change[2];
    }
  }
  return config;
}

struct Outcomes {
  int equal = 0, refused = 0, refused_by_both = 0, answers = 0;
};

void compare(const Json& row, const Json& config, Outcomes& out) {
  const bool refused = row.contains("refused");
  ParameterCounts counts;
  try {
    counts = count(read_config(config.dump(), "config.json"));
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find("config.json ") == 0);  // names the field
    ++(refused ? out.refused_by_both : out.refused);
    return;
  }
  if (refused) {
    CHECK(row.value("answers", false));
    ++out.answers;
    return;
  }
  const std::int64_t parameters = row["parameters"], still = row.value("still", 0), buffers = row.value("buffers", 0);
  CHECK(counts.language + counts.tower == parameters + buffers);
  CHECK(counts.trained + counts.tower == parameters - still);
  CHECK(counts.buffers == buffers);
  ++out.equal;
}

TEST_CASE("changed configs hold what transformers builds from them, or are refused by the field") {
  std::ifstream file(OOMPLAN_SOURCE_DIR "/tests/data/mutated_configs.jsonl");
  std::map<std::string, Json> configs;
  Json said;
  Outcomes out;
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
    if (row.contains("rows")) {
      said = row;
      continue;
    }
    if (row.contains("id")) {
      configs[row["id"]] = row["config"];
      continue;
    }
    CAPTURE(line);
    compare(row, changed(configs.at(row["of"]), row["changes"]), out);
  }
  CHECK(out.equal + out.refused + out.refused_by_both + out.answers == said["rows"]);
  CHECK(out.equal >= said["equal"]);
  CHECK(out.refused <= said["refused_alone"]);
  CHECK(out.answers <= said["answered_alone"]);
}

TEST_CASE("an absent field is what the configuration class says, null what it makes of null") {
  const auto read = [](const char* text) { return read_config(text, "c"); };
  const Architecture mistral = read(R"({"model_type": "mistral"})");
  CHECK(mistral.layers() == 32);
  CHECK(mistral.runs.at(0).layer.mixer.kv_heads == 8);
  CHECK(mistral.runs.at(0).layer.mixer.window == 4096);
  CHECK(read(R"({"model_type": "mistral", "sliding_window": null})").runs.at(0).layer.mixer.window == 0);
  CHECK_THROWS_WITH_AS(read(R"({"model_type": "mistral", "num_key_value_heads": null})"),
                       doctest::Contains("without the key it is 8"), InputError);
  CHECK(read(R"({"model_type": "llama", "num_key_value_heads": null})").runs.at(0).layer.mixer.kv_heads == 32);
  CHECK_FALSE(read(R"({"model_type": "phimoe"})").head_bias);
  CHECK(read(R"({"model_type": "opt", "hidden_size": 1024, "num_attention_heads": 16})").embedding_width == 0);
  CHECK(read(R"({"model_type": "gpt2", "n_embd": 1024, "n_head": 16})").hidden == 1024);
  CHECK(read(R"({"model_type": "seed_oss"})").attention_dropout == doctest::Approx(0.1));
  CHECK(read(R"({"model_type": "gemma2"})").final_softcap);
  CHECK_FALSE(read(R"({"model_type": "gemma2", "final_logit_softcapping": null})").final_softcap);
  CHECK(read(R"({"model_type": "mistral3", "text_config": {"model_type": "mistral"}})").tied);
  CHECK_FALSE(read(R"({"model_type": "mistral", "attention_bias": true})").runs.at(0).layer.mixer.q_bias);  // no field of it
}

TEST_CASE("mlp_bias of DeepSeek V2 is of dense and shared blocks, that of V3 is passed over") {
  const auto total = [](const char* model_type, bool bias) {
    Json config{{"model_type", model_type},
                {"num_hidden_layers", 2},
                {"first_k_dense_replace", 1},
                {"num_experts_per_tok", 2},
                {"mlp_bias", bias}};
    return count(read_config(config.dump(), "c")).language;
  };
  // one dense block of 11008 and two shared experts of 1407 beside h 4096
  CHECK(total("deepseek_v2", true) - total("deepseek_v2", false) == (2 * 11008 + 4096) + (2 * 2 * 1407 + 4096));
  CHECK(total("deepseek_v3", true) == total("deepseek_v3", false));
}

TEST_CASE("the table of class defaults") {
  REQUIRE(class_defaults("mistral") != nullptr);
  CHECK(class_defaults("mistral")->version == "5.23.0");
  CHECK(class_defaults("mistral")->fields.integer("sliding_window", {0, 1 << 20}) == 4096);
  CHECK(class_defaults("chatglm") == nullptr);
  CHECK(part_defaults("qwen2_vl", "vision_config", "qwen2_vl")->name == "qwen2_vl.vision_config");
  CHECK(part_defaults("mistral3", "text_config", "mistral4")->name == "mistral4");
  CHECK(part_defaults("mistral3", "text_config", "")->name == "mistral3.text_config");
}

TEST_CASE("what corrects the choice of experts is stored and not trained") {
  const ParameterCounts v3 = count(*Catalog::builtin().model("deepseek-v3").architecture);
  CHECK(v3.buffers == 58 * 256);
  CHECK(v3.trained == v3.language - v3.buffers);
  const ParameterCounts ernie = count(*Catalog::builtin().model("baidu/ERNIE-4.5-21B-A3B-PT").architecture);
  CHECK(ernie.buffers == 0);  // parameters that want no gradient
  CHECK(ernie.language - ernie.trained == 27 * 64);
  const ParameterCounts llama = count(*Catalog::builtin().model("llama-3.1-8b").architecture);
  CHECK(llama.trained == llama.language);
}

}  // namespace
