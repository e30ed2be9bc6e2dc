// Brackets in brackets: every door that takes JSON stops before what recurses.
#include <doctest/doctest.h>

#include <oomplan/oomplan.hpp>
#include <oomplan/units/errors.hpp>
#include <string>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"
#include "frontends/servers/serve_command.hpp"
#include "units/json_depth.hpp"

using namespace oomplan;

namespace {

constexpr std::size_t kLevels = 200'000;

std::string nested(const std::string& open, const std::string& close, const std::string& inner = "1") {
  std::string out;
  for (std::size_t i = 0; i < kLevels; ++i) out += open;
  out += inner;
  for (std::size_t i = 0; i < kLevels; ++i) out += close;
  return out;
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("levels are those of brackets outside of strings") {
  CHECK(json_depth("1") == 0);
  CHECK(json_depth("[]") == 1);
  CHECK(json_depth(R"({"a": [1, {"b": 2}], "c": []})") == 3);
  CHECK(json_depth(R"("[[[")") == 0);
  CHECK(json_depth(R"(["\"[[", "\\", [1]])") == 2);
  CHECK(json_depth("]]][") == 0);
  CHECK(too_deep(std::string(kMaxJsonDepth, '[')).empty());
  CHECK(too_deep(std::string(kMaxJsonDepth + 1, '[')) == "nesting of more than 64 levels");
}

TEST_CASE("every door that takes JSON refuses what nests too deep") {
  const std::string lists = nested("[", "]"), maps = nested("{\"a\":", "}");
  const std::string expected = "nesting of more than 64 levels";
  for (const std::string& deep : {lists, maps, std::string(kLevels, '[')}) {
    const std::string config = "{\"model_type\": \"llama\", \"x\": " + deep + "}";
    CHECK(error_of([&] { read_config(config, "c"); }).find(expected) != std::string::npos);
    CHECK(error_of([&] { read_training_case(config, "", Catalog::builtin()); }).find(expected) != std::string::npos);
    CHECK(error_of([&] { read_serving_case(config, "", Catalog::builtin()); }).find(expected) != std::string::npos);
    Source megatron;
    megatron.text = "{\"num_layers\": " + deep + "}";
    megatron.dialect = "megatron";
    megatron.overrides = {"gpus=8"};
    CHECK(error_of([&] { read(megatron); }).find(expected) != std::string::npos);
    for (const char* const flag : {"--speculative-config", "--compilation-config", "--hf-overrides"})
      CHECK_FALSE(error_of([&] {
                    read_serve_command({"vllm", "serve", "Qwen/Qwen3-8B", flag, config}, {}, Catalog::builtin());
                  }).empty());
  }
}
