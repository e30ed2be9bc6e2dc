// Every row of the table of what kernels take: a role that breaks it, and the nearest one that does not.
#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <set>
#include <string>

#include "catalog/catalog.hpp"
#include "catalog/fields.hpp"
#include "job/kernel_needs.hpp"

namespace {

using namespace oomplan;

std::shared_ptr<const Architecture> model(const char* name) { return Catalog::builtin().model(name).architecture; }
constexpr const char* kLlama = "meta-llama/Llama-3.1-8B-Instruct";

Role trainer(Kernels kernels, EngineKind engine = EngineKind::single) {
  Role out;
  out.kind = RoleKind::trainer;
  out.engine = engine;
  out.architecture = model(kLlama);
  out.trainer.kernels = kernels;
  out.trainer.storage = out.trainer.compute = DType::bf16;
  return out;
}
Role flash(DType compute) {
  Role out = trainer(Kernels::hf_flash);
  out.trainer.storage = out.trainer.compute = compute;
  return out;
}
Role megatron(Fp8Recipe recipe) {
  Role out = trainer(Kernels::hf_flash, EngineKind::megatron);
  out.trainer.megatron.fp8 = recipe;
  return out;
}
Role server(EngineKind engine, const char* version, DType weights, const char* quantization = "") {
  Role out;
  out.kind = RoleKind::server;
  out.engine = engine;
  out.server.version = version;
  out.server.weights = weights;
  Architecture a = *model(kLlama);
  if (*quantization != '\0') a.quantization = read_quantization(Fields::parse(quantization, "config.json"));
  out.architecture = std::make_shared<const Architecture>(std::move(a));
  return out;
}
Role of(Role role, const char* name) {
  role.architecture = model(name);
  return role;
}
Role changed(Role role, const std::function<void(Role&)>& change) {
  change(role);
  return role;
}

struct Case {
  Role broken;
  const char* sm;
  Role taken;
  const char* taken_on;
};

std::map<std::string, Case> cases() {
  constexpr EngineKind kV = EngineKind::vllm, kS = EngineKind::sglang;
  constexpr const char* kFp8 = R"({"quant_method": "fp8"})";
  constexpr const char* kMxfp4 = R"({"quant_method": "mxfp4"})";
  constexpr const char* kAwq = R"({"quant_method": "awq", "bits": 4, "group_size": 128})";
  constexpr const char* kBnb = R"({"quant_method": "bitsandbytes", "load_in_4bit": true})";
  const auto float8 = [](Role& r) { r.trainer.float8 = Float8::tensorwise; };
  return {
      {"flash_fp32",
       {flash(DType::fp32), "sm90", changed(flash(DType::fp32), [](Role& r) { r.trainer.autocast = true; }), "sm90"}},
      {"flash_gpu", {flash(DType::fp16), "sm75", flash(DType::fp16), "sm80"}},
      {"flash_width",
       {of(flash(DType::bf16), "google/gemma-4-31B"), "sm90", of(flash(DType::bf16), "google/gemma-2-9b"), "sm90"}},
      {"archon_gpu",
       {trainer(Kernels::archon, EngineKind::archon), "sm75", trainer(Kernels::archon, EngineKind::archon), "sm80"}},
      {"sdpa_gpu", {trainer(Kernels::hf_sdpa), "sm70", trainer(Kernels::hf_sdpa), "sm80"}},
      {"te_gpu",
       {megatron(Fp8Recipe::none), "sm75",
        changed(megatron(Fp8Recipe::none), [](Role& r) { r.trainer.megatron.impl = TransformerImpl::local; }), "sm75"}},
      {"torchao_float8_gpu",
       {changed(trainer(Kernels::torchtitan), float8), "sm80", changed(trainer(Kernels::torchtitan), float8), "sm89"}},
      {"te_fp8_gpu", {megatron(Fp8Recipe::delayed), "sm80", megatron(Fp8Recipe::delayed), "sm89"}},
      {"te_blockwise_gpu", {megatron(Fp8Recipe::blockwise), "sm89", megatron(Fp8Recipe::blockwise), "sm90"}},
      {"te_mxfp8_gpu", {megatron(Fp8Recipe::mxfp8), "sm120", megatron(Fp8Recipe::mxfp8), "sm100"}},
      {"sglang_gpu", {server(kS, "0.5.10", DType::fp16), "sm70", server(kS, "0.5.10", DType::fp16), "sm75"}},
      {"sglang_fp32", {server(kS, "0.5.10", DType::fp32), "sm90", server(kV, "0.19.1", DType::fp32), "sm90"}},
      {"vllm_fp32_latent",
       {of(server(kV, "0.19.1", DType::fp32), "deepseek-ai/DeepSeek-V2-Lite"), "sm90",
        of(server(kV, "0.19.1", DType::bf16), "deepseek-ai/DeepSeek-V2-Lite"), "sm90"}},
      {"vllm_whole_heads",
       {of(server(kV, "0.7.0", DType::bf16), "deepseek-ai/DeepSeek-V2-Lite"), "sm90",
        of(server(kV, "0.7.1", DType::bf16), "deepseek-ai/DeepSeek-V2-Lite"), "sm90"}},
      {"quantised_fp32", {server(kV, "0.19.1", DType::fp32, kFp8), "sm90", server(kV, "0.19.1", DType::fp32, kBnb), "sm90"}},
      {"mxfp4_fp16", {server(kV, "0.19.1", DType::fp16, kMxfp4), "sm90", server(kV, "0.19.1", DType::bf16, kMxfp4), "sm90"}},
      {"fp8_gpu", {server(kV, "0.13.0", DType::fp16, kFp8), "sm75", server(kV, "0.14.1", DType::fp16, kFp8), "sm75"}},
      {"mxfp4_gpu", {server(kV, "0.19.1", DType::bf16, kMxfp4), "sm75", server(kV, "0.19.1", DType::bf16, kMxfp4), "sm80"}},
      {"awq_gpu", {server(kV, "0.19.1", DType::fp16, kAwq), "sm70", server(kV, "0.19.1", DType::fp16, kAwq), "sm75"}},
  };
}

bool breaks(const Role& role, const char* sm, std::string_view name) {
  for (const KernelNeed* need : broken_needs(role, sm))
    if (need->name == name) return true;
  return false;
}

}  // namespace

TEST_CASE("every row of what kernels take has a role that breaks it, and a neighbour that does not") {
  const auto all = cases();
  std::set<std::string_view> names;
  for (const KernelNeed& need : kernel_needs()) {
    CAPTURE(need.name);
    CHECK(names.insert(need.name).second);
    const auto found = all.find(std::string(need.name));
    REQUIRE(found != all.end());
    CHECK(breaks(found->second.broken, found->second.sm, need.name));
    CHECK_FALSE(breaks(found->second.taken, found->second.taken_on, need.name));
    CHECK_FALSE(need.expected.empty());
    // who says so and where: a path and a version
    const bool refuses = need.why.find("refuse") != std::string_view::npos;
    const bool not_yet = need.why.find("not supported yet") != std::string_view::npos;
    CHECK((refuses || not_yet));
    CHECK(need.why.find('/') != std::string_view::npos);
    CHECK(need.why.find_first_of("0123456789") != std::string_view::npos);
  }
  CHECK(names.size() == all.size());
}

TEST_CASE("GPUs that are not NVIDIA's break no row about compute capability") {
  for (const auto& [name, c] : cases()) {
    if (name.ends_with("_gpu")) CHECK_FALSE(breaks(c.broken, "gfx942", name));
  }
  CHECK(compute_capability("sm103") == 103);
  CHECK(compute_capability("gfx942") == 0);
}
