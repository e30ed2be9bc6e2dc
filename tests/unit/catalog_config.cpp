// What read_config refuses, and how it says so.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <oomplan/units/errors.hpp>
#include <string>

#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Json llama() {
  return {{"model_type", "llama"},          {"hidden_size", 64},        {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2},       {"intermediate_size", 128}, {"vocab_size", 1000},     {"tie_word_embeddings", false},
          {"max_position_embeddings", 2048}};
}

std::string error_of(const std::string& text) {
  try {
    read_config(text, "c.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string error_with(const char* key, const Json& value) {
  Json config = llama();
  config[key] = value;
  return error_of(config.dump());
}

TEST_CASE("a small llama by hand") {
  const Architecture model = read_config(llama().dump(), "c.json");
  CHECK(model.name == "c.json");
  CHECK(model.family == "llama");
  CHECK(model.layers() == 2);
  CHECK(model.runs.front().layer.mixer.head_dim == 16);
  CHECK(model.runs.front().layer.mixer.rotary_dim == 16);
  CHECK(count(model).language == 2 * 64000 + 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 128) + 64);
  CHECK(read_config(llama().dump(), "c.json") == model);
}

TEST_CASE("an unknown model_type is named with the nearest known one") {
  CHECK(error_with("model_type", "lama") ==
        "c.json model_type: found 'lama', expected a known model_type (did you mean 'llama'?): 'lama' is not one that oomplan "
        "describes");
  Json config = llama();
  config.erase("model_type");
  CHECK(error_of(config.dump()).find("model_type: found nothing") != std::string::npos);
  config["architectures"] = {"LlamaForCausalLM"};
  CHECK(error_of(config.dump()).empty());
  config["architectures"] = {"MyModel"};
  CHECK(error_of(config.dump()).find("class MyModel is not known") != std::string::npos);
}

TEST_CASE("wrong types and values are refused with the place, what was found and what was expected") {
  CHECK(error_with("hidden_size", "64") == "c.json hidden_size: found '64', expected an integer from 1 to 65536");
  CHECK(error_with("hidden_size", -64) == "c.json hidden_size: found -64, expected an integer from 1 to 65536");
  CHECK(error_with("hidden_size", 0).find("found 0") != std::string::npos);
  CHECK(error_with("hidden_size", 1e30).find("found 1e+30") != std::string::npos);
  CHECK(error_with("hidden_size", 64.5).find("found 64.5") != std::string::npos);
  CHECK(error_with("hidden_size", true).find("found true") != std::string::npos);
  CHECK(error_with("hidden_size", Json::array({64})).find("found a list of 1") != std::string::npos);
  CHECK(error_with("hidden_size", Json::object()).find("found an object") != std::string::npos);
  CHECK(error_with("hidden_size", nullptr).find("found null") != std::string::npos);
  CHECK(error_with("num_hidden_layers", 18446744073709551615ULL).find("num_hidden_layers") != std::string::npos);
  CHECK(error_with("num_hidden_layers", 5000).find("1 to 1024") != std::string::npos);
  CHECK(error_with("num_key_value_heads", 3).find("a divisor of 4") != std::string::npos);
  CHECK(error_with("num_attention_heads", 3).find("hidden_size: found 64, expected a multiple of 3") != std::string::npos);
  CHECK(error_with("hidden_size", 66).find("a multiple of 4 (4 heads)") != std::string::npos);
  CHECK(error_with("tie_word_embeddings", "no").find("true or false") != std::string::npos);
  CHECK(error_with("hidden_act", "silo").find("did you mean 'silu'?") != std::string::npos);
  CHECK(error_with("dtype", "bfloat17").find("did you mean 'bfloat16'?") != std::string::npos);
  CHECK(error_with("vocab_size", 1LL << 40).find("vocab_size") != std::string::npos);
  CHECK(error_with("attention_dropout", 2).find("attention_dropout") != std::string::npos);
  CHECK(error_with("partial_rotary_factor", "half").find("partial_rotary_factor") != std::string::npos);
  CHECK(error_with("layer_types", Json::array({"full_attention"})).find("an entry for each layer") != std::string::npos);
  CHECK(error_with("layer_types", Json::array({"full_attention", "none"})).find("layer type 'none'") != std::string::npos);
}

TEST_CASE("what Python writes beyond JSON is read as a number that no limit accepts") {
  std::string text = llama().dump();
  text.insert(1, R"("time_step_limit": [0.0, Infinity], "note": "NaN \" Infinity", )");
  CHECK(error_of(text).empty());
  text.insert(1, R"("attention_dropout": NaN, )");
  CHECK(error_of(text).find("attention_dropout: found a number that is not finite") != std::string::npos);
}

TEST_CASE("deep, long, doubled and broken texts are refused") {
  CHECK(error_of(std::string(200000, '[')).find("64 levels") != std::string::npos);
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  CHECK(error_of(deep).find("64 levels") != std::string::npos);
  CHECK(error_of(std::string((std::size_t{16} << 20) + 1, ' ')).find("bytes") != std::string::npos);
  std::string numbers = "{\"a\": [1";
  for (int i = 0; i < 1000000; ++i) numbers += ",1";
  CHECK(error_of(numbers + "]}").find("1000000 values") != std::string::npos);
  CHECK(error_of(R"({"model_type": "llama", "model_type": "qwen2"})").find("'model_type' twice") != std::string::npos);
  CHECK(error_of("").find("JSON") != std::string::npos);
  CHECK(error_of("[]").find("a JSON object") != std::string::npos);
  CHECK(error_of("{\"model_type\": \"ll\xff\xfe\"}").find("JSON") != std::string::npos);
}

TEST_CASE("sizes that are each allowed may not make a model that is not") {
  const Json config{{"model_type", "qwen3_moe"},    {"hidden_size", 65536},
                    {"num_hidden_layers", 1024},    {"num_attention_heads", 4096},
                    {"num_key_value_heads", 4096},  {"head_dim", 4096},
                    {"intermediate_size", 1 << 20}, {"moe_intermediate_size", 1 << 20},
                    {"num_experts", 4096},          {"num_experts_per_tok", 8},
                    {"vocab_size", 1 << 22}};
  CHECK(error_of(config.dump()).find("a model of at most 17592186044416 parameters") != std::string::npos);
}

TEST_CASE("lists that a family reads must have an entry for each layer") {
  Json config{{"model_type", "minimax_m1"}, {"hidden_size", 64},        {"num_hidden_layers", 2}, {"num_attention_heads", 4},
              {"num_key_value_heads", 2},   {"intermediate_size", 128}, {"vocab_size", 1000},     {"num_local_experts", 4},
              {"num_experts_per_tok", 2},   {"attn_type_list", {0}}};
  CHECK(error_of(config.dump()).find("attn_type_list") != std::string::npos);
  config["attn_type_list"] = {0, 1};
  CHECK(error_of(config.dump()).empty());
  config["num_experts_per_tok"] = 5;
  CHECK(error_of(config.dump()).find("num_experts_per_tok: found 5, expected an integer from 1 to 4") != std::string::npos);
}

TEST_CASE("Gemma 2's soft caps: the family's when nothing is said, none when null is") {
  Json config = llama();
  config["model_type"] = "gemma2";
  CHECK(read_config(config.dump(), "c").runs.at(0).layer.mixer.softcap);
  CHECK(read_config(config.dump(), "c").final_softcap);
  config["attn_logit_softcapping"] = nullptr;
  CHECK_FALSE(read_config(config.dump(), "c").runs.at(0).layer.mixer.softcap);
  config["final_logit_softcapping"] = nullptr;
  CHECK_FALSE(read_config(config.dump(), "c").final_softcap);
}

TEST_CASE("flat sizes of Gemma 3 are the text class's where architectures names it, and nobody's where it names the whole") {
  Json config = llama();
  config["model_type"] = "gemma3_text";
  Architecture text = read_config(config.dump(), "c");
  text.model_type = "gemma3";
  config["model_type"] = "gemma3";
  config["architectures"] = {"Gemma3ForCausalLM"};
  CHECK(read_config(config.dump(), "c") == text);
  config["architectures"] = {"Gemma3ForConditionalGeneration"};
  CHECK(error_of(config.dump()).find("reads no sizes of the text half outside of it") != std::string::npos);
}

TEST_CASE("Gemma 4's tower of sound counts as transformers 5.23 builds it") {
  const std::string text =
      R"("text_config": {"model_type": "gemma4_text", "hidden_size": 2560, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "intermediate_size": 10240, "vocab_size": 1000, "head_dim": 256})";
  const std::string vision = R"("vision_config": {"model_type": "gemma4_vision", "hidden_size": 768, "num_hidden_layers": 2,
    "num_attention_heads": 12, "intermediate_size": 3072, "patch_size": 16})";
  const auto tower = [&](const std::string& audio) {
    return count(read_config("{\"model_type\": \"gemma4\", " + text + ", " + vision + audio + "}", "c")).tower;
  };
  CHECK(tower(", \"audio_config\": {}") - tower("") == 304'824'608 + 1536 * 2560);
  CHECK(tower(", \"audio_config\": null") == tower(""));
  CHECK(error_of("{\"model_type\": \"gemma4\", " + text + ", " + vision +
                 ", \"audio_config\": {\"subsampling_conv_channels\": [1]}}")
            .find("two integers") != std::string::npos);
}

TEST_CASE("Nemotron-H's class takes Granite's names of a state's sizes in place of its own") {
  const auto total = [](const char* more) {
    return count(read_config(std::string(R"({"model_type": "nemotron_h", "hidden_size": 256, "num_hidden_layers": 2,
      "hybrid_override_pattern": "M*", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
      "intermediate_size": 512, "vocab_size": 1000, "mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 32,
      "n_groups": 8, "conv_kernel": 4, "tie_word_embeddings": false)") +
                                 more + "}",
                             "c"))
        .language;
  };
  CHECK(total("") == 1'241'368);  // transformers 5.23
  CHECK(total(R"(, "mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_conv_bias": false)") == 1'139'864);
}

TEST_CASE("windows follow layer_types, or the family's rule") {
  const auto spans = [](Json extra, const char* model_type) {
    Json config = llama();
    config["num_hidden_layers"] = 6;
    config["model_type"] = model_type;
    if (extra.is_object()) config.update(extra);
    std::string out;
    for (const LayerRun& run : read_config(config.dump(), "c").runs)
      out += std::string(static_cast<std::size_t>(run.count), run.layer.mixer.span == AttentionSpan::full ? 'f' : 's');
    return out;
  };
  CHECK(spans({}, "llama") == "ffffff");
  CHECK(spans({{"sliding_window", 512}}, "mistral") == "ssssss");
  CHECK(spans({{"sliding_window", nullptr}}, "mistral") == "ffffff");
  CHECK(spans({{"sliding_window", 512}}, "qwen2") == "ffffff");
  CHECK(spans({{"sliding_window", 512}, {"use_sliding_window", true}, {"max_window_layers", 4}}, "qwen2") == "ffffss");
  CHECK(spans({{"sliding_window", 512}}, "gemma2") == "sfsfsf");
  CHECK(spans({{"sliding_window", 512}}, "gemma3_text") == "sssssf");
  CHECK(spans({{"sliding_window", 512}, {"sliding_window_pattern", 3}}, "gemma3_text") == "ssfssf");
  CHECK(spans({{"sliding_window", 512}}, "olmo3") == "sssfss");
  CHECK(spans({{"sliding_window", 512},
               {"layer_types",
                {"full_attention", "sliding_attention", "full_attention", "full_attention", "full_attention", "full_attention"}}},
              "olmo3") == "fsffff");
}

}  // namespace
