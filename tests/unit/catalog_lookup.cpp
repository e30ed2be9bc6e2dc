// Finding models, GPUs and facts: built in, on disk, in the Hugging Face cache, and in a directory laid over the built-in files.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <oomplan/oomplan.hpp>
#include <set>
#include <string>

#include "catalog/catalog.hpp"
#include "catalog/embedded.hpp"
#include "catalog/parameters.hpp"

namespace {

using namespace oomplan;
namespace fs = std::filesystem;

constexpr const char* kTiny = R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "tie_word_embeddings": true})";

/// A folder that is removed again.
struct Folder {
  fs::path path = fs::temp_directory_path() / ("oomplan_catalog_test_" + std::to_string(std::rand()));
  Folder() { fs::create_directories(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code error;
    fs::remove_all(path, error);
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path / name).parent_path());
    std::ofstream(path / name) << text;
  }
  std::string file(const std::string& name) const { return (path / name).string(); }
};

struct Environment {
  Environment(const char* name, const std::string& value) : name_(name) {
    const char* const old = std::getenv(name);
    if (old != nullptr) old_ = old;
    had_ = old != nullptr;
    setenv(name, value.c_str(), 1);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() {
    if (had_) {
      setenv(name_, old_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::string old_;
  bool had_ = false;
};

std::string id_of(const std::string& name) { return Catalog::builtin().model(name).id; }

TEST_CASE("aliases say what they take and what else they could mean") {
  const ModelFound found = Catalog::builtin().model("qwen-7b");
  CHECK(found.id == "Qwen/Qwen2.5-7B-Instruct");
  CHECK(found.from == "built-in");
  CHECK(std::set<std::string>(found.also.begin(), found.also.end()).count("Qwen/Qwen3-8B") == 1);
  CHECK(id_of("llama-8b") == "meta-llama/Llama-3.1-8B-Instruct");
  CHECK(id_of("llama-3.1-8b") == "meta-llama/Llama-3.1-8B");
  CHECK(id_of("qwen2.5-7b") == "Qwen/Qwen2.5-7B");
  CHECK(id_of("qwen3-8b") == "Qwen/Qwen3-8B");
  CHECK(id_of("Qwen3_8B") == "Qwen/Qwen3-8B");
  CHECK(id_of("QWEN/qwen3-8b") == "Qwen/Qwen3-8B");
  CHECK(id_of("qwen3-30b-a3b") == "Qwen/Qwen3-30B-A3B");
  CHECK(id_of("deepseek-v3") == "deepseek-ai/DeepSeek-V3");
  CHECK(id_of("deepseek-ai/DeepSeek-V3-0324") == "deepseek-ai/DeepSeek-V3-0324");
  CHECK(Catalog::builtin().model("deepseek-ai/DeepSeek-V3-0324").architecture->name == "deepseek-ai/DeepSeek-V3-0324");
}

TEST_CASE("nothing is downloaded, and the nearest name is told") {
  const Environment hub("HF_HUB_CACHE", "/nonexistent"), home("HF_HOME", "/nonexistent"), user("HOME", "/nonexistent");
  CHECK_THROWS_WITH_AS(Catalog::builtin().model("qwen3-8bb"), doctest::Contains("did you mean 'Qwen3-8B'?"), InputError);
  for (const std::string& odd : {std::string(), std::string("../../etc/passwd"), std::string(5000, 'a'), std::string("a\0b", 3),
                                 std::string("/"), std::string("models--x/../y")})
    CHECK_THROWS_AS(Catalog::builtin().model(odd), InputError);
}

TEST_CASE("a model as a conversion stores it is that model in another format") {
  const ModelFound plain = Catalog::builtin().model("Qwen/Qwen3-30B-A3B");
  const ModelFound stored = Catalog::builtin().model("qwen3-30b-a3b:int4_experts_g128");
  CHECK(stored.id == "Qwen/Qwen3-30B-A3B:int4_experts_g128");
  CHECK(stored.architecture->name == stored.id);
  CHECK(stored.architecture->runs == plain.architecture->runs);
  const ModuleFormats formats(stored.architecture->quantization);
  const WeightFormat* const expert = formats.of("model.layers.3.mlp.experts.7.up_proj", true, false);
  REQUIRE(expert != nullptr);
  CHECK((expert->dtype == DType::int4 && expert->group == 128 && !expert->zero_points));
  for (const char* module : {"model.layers.3.self_attn.q_proj", "model.layers.3.mlp.gate", "model.embed_tokens"})
    CHECK(formats.of(module, false, false) == nullptr);
  CHECK(formats.of("lm_head", false, true) == nullptr);
  const ModelFound published = Catalog::builtin().model("Qwen/Qwen3-30B-A3B-FP8");
  CHECK(published.id == "Qwen/Qwen3-30B-A3B-FP8");
  CHECK(published.architecture->quantization.method == "fp8");
  CHECK(Catalog::builtin().model("deepseek-ai/DeepSeek-R1:bf16").architecture->quantization.method.empty());
  CHECK_THROWS_AS(Catalog::builtin().model("Qwen/Qwen3-30B-A3B:int5"), InputError);
  CHECK_THROWS_AS(Catalog::builtin().model(":fp8_blocks"), InputError);
}

TEST_CASE("every alias and every id of the same shape leads to a model") {
  const std::string text = embedded_text("aliases.json");
  std::size_t seen = 0;
  for (std::size_t at = text.find('"'); at != std::string::npos;) {
    const std::size_t end = text.find('"', at + 1);
    const std::string word = text.substr(at + 1, end - at - 1);
    at = text.find('"', end + 1);
    if (word == "aliases" || word == "same_shape" || word == "takes" || word == "also" || word == "first") continue;
    CAPTURE(word);
    CHECK_NOTHROW(Catalog::builtin().model(word));
    ++seen;
  }
  CHECK(seen > 300);
}

TEST_CASE("instructed, coding and base siblings of a built-in model are found, with the context that is theirs") {
  const auto context = [](const char* id) {
    const ModelFound found = Catalog::builtin().model(id);
    CHECK(found.id == id);
    CHECK(found.architecture->name == id);
    return found.architecture->max_positions;
  };
  CHECK(context("Qwen/Qwen2.5-3B-Instruct") == 32768);
  CHECK(context("Qwen/Qwen2.5-Coder-14B-Instruct") == 32768);
  CHECK(context("Qwen/Qwen2.5-Math-7B-Instruct") == 4096);
  CHECK(context("Qwen/Qwen2.5-14B") == 131072);
  CHECK(context("Qwen/Qwen2.5-14B-Instruct") == 32768);
  CHECK(context("Qwen/Qwen2.5-14B-Instruct-1M") == 1010000);
  CHECK(context("Qwen/Qwen3-4B") == 40960);
  CHECK(context("Qwen/Qwen3-4B-Base") == 32768);
  CHECK(context("meta-llama/Meta-Llama-3.1-70B-Instruct") == 131072);
  CHECK(context("google/codegemma-7b-it") == 8192);
  CHECK(context("deepseek-ai/deepseek-math-7b-rl") == 4096);
  CHECK(id_of("qwen2.5-3b-instruct") == "Qwen/Qwen2.5-3B-Instruct");
  CHECK(id_of("qwen2-vl-7b") == "Qwen/Qwen2-VL-7B-Instruct");
}

TEST_CASE("250 models are built in, sorted") {
  const auto ids = Catalog::builtin().model_ids();
  CHECK(ids.size() == 250);
  CHECK(std::is_sorted(ids.begin(), ids.end()));
}

TEST_CASE("a config.json and a directory that holds one are read from disk") {
  const Folder folder;
  folder.write("tiny/config.json", kTiny);
  const ModelFound file = Catalog::builtin().model(folder.file("tiny/config.json"));
  CHECK(file.from == "file");
  CHECK(file.architecture->hidden == 64);
  const ModelFound directory = Catalog::builtin().model(folder.file("tiny"));
  CHECK(directory.from == "directory");
  CHECK(directory.id == folder.file("tiny/config.json"));
  folder.write("broken/config.json", "{");
  CHECK_THROWS_WITH_AS(Catalog::builtin().model(folder.file("broken")), doctest::Contains("broken/config.json"), InputError);
  CHECK_THROWS_AS(Catalog::builtin().model(folder.path.string()), InputError);
}

TEST_CASE("the local Hugging Face cache is looked into, the revision of refs/main first") {
  const Folder folder;
  const std::string model = "hub/models--me--tiny/";
  folder.write(model + "snapshots/aaaa/config.json", kTiny);
  std::string other = kTiny;
  other.replace(other.find("1000"), 4, "2000");
  folder.write(model + "snapshots/bbbb/config.json", other);
  folder.write(model + "refs/main", "bbbb\n");
  {
    const Environment hub("HF_HUB_CACHE", ""), home("HF_HOME", folder.path.string());
    const ModelFound found = Catalog::builtin().model("me/tiny");
    CHECK(found.from == "Hugging Face cache");
    CHECK(found.id == "me/tiny");
    CHECK(found.architecture->vocab == 2000);
  }
  fs::remove_all(folder.path / (model + "refs"));
  const Environment hub("HF_HUB_CACHE", folder.file("hub"));
  CHECK(Catalog::builtin().model("me/tiny").architecture->vocab == 1000);
}

TEST_CASE("a directory is laid over the built-in files") {
  const Folder folder;
  folder.write("architectures/me--mine.json", std::string(R"({"id": "me/mine", "source": "ours", "config": )") + kTiny + "}");
  folder.write("architectures/Qwen--Qwen3-8B.json",
               std::string(R"({"id": "Qwen/Qwen3-8B", "source": "x", "config": )") + kTiny + "}");
  folder.write("aliases.json", R"({"aliases": {"mine": {"takes": "me/mine"}}})");
  const Gpu t4 = Catalog::builtin().gpu("t4");
  folder.write("gpus.json", R"([{"name": "Mine-24GB", "aliases": ["mine"], "sm": "sm99", "usable": 25000000000, "smi_mib": 24000,
    "sms": 10, "memory_bandwidth": 1e12, "bf16_flops": 1e14, "fp8_flops": 0, "link_bandwidth": 1e10, "link": "PCIe", "source": "s"}])");
  folder.write("engines/ours.json", R"({"engine": "ours", "facts": [
    {"fact": "context_bytes", "value": 7, "source": "s", "kind": "measured"}]})");
  const Catalog catalog = Catalog::with_directory(folder.path.string());
  CHECK(catalog.model("mine").id == "me/mine");
  CHECK(catalog.model("qwen3-8b").architecture->hidden == 64);
  CHECK(catalog.model("qwen3-4b").architecture->hidden == 2560);
  CHECK(catalog.gpu("mine").sms == 10);
  CHECK(catalog.gpu("t4").usable == t4.usable);
  CHECK(catalog.facts().find("ours", "context_bytes", {}).value == 7);
  CHECK(Catalog::builtin().model("qwen3-8b").architecture->hidden == 4096);
  CHECK_THROWS_AS(Catalog::with_directory(folder.file("nowhere")), InputError);
  // as whoever has the public headers alone asks for it
  CHECK(open_catalog(folder.path.string())->gpu("mine").sms == 10);
  CHECK(default_job("mine", 1, "mine", open_catalog(folder.path.string()).get()).job.roles[0].architecture->vocab == 1000);
  CHECK(open_catalog().get() == &Catalog::builtin());
  CHECK_THROWS_AS(open_catalog(folder.file("nowhere")), InputError);
}

TEST_CASE("GPUs are found by name and by alias, in any case") {
  const Catalog& catalog = Catalog::builtin();
  CHECK(catalog.gpu("H100-80GB").sm == "sm90");
  CHECK(catalog.gpu("h100").name == "H100-80GB");
  CHECK(catalog.gpu("NVIDIA H100 80GB HBM3").name == "H100-80GB");
  CHECK_THROWS_WITH_AS(catalog.gpu("h101"), doctest::Contains("did you mean"), InputError);
  CHECK_THROWS_AS(catalog.gpu(""), InputError);
}

TEST_CASE("a GPU row is plausible and its names are its own") {
  std::set<std::string> names;
  for (const Gpu& gpu : Catalog::builtin().gpus()) {
    CAPTURE(gpu.name);
    std::set<std::string> own{gpu.name};
    own.insert(gpu.aliases.begin(), gpu.aliases.end());
    for (const std::string& each : own) CHECK(names.insert(each).second);
    CHECK(gpu.usable <= gpu.smi_mib * kMiB);  // the driver keeps some
    CHECK(gpu.usable > gpu.smi_mib * kMiB * 9 / 10);
    CHECK(gpu.memory_bandwidth > gpu.link_bandwidth);
    CHECK(gpu.bf16_flops > gpu.memory_bandwidth);
    CHECK(gpu.source.find("usable") != std::string::npos);
  }
  CHECK(names.size() > 40);
}

}  // namespace
