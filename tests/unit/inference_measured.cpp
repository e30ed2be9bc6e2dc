// Servers that were started and logged what they hold: tests/data/measured_inference_small.jsonl.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "catalog/catalog.hpp"
#include "inference/server.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Bytes gib(double v) { return static_cast<Bytes>(v * static_cast<double>(kGiB)); }

DType dtype_of(const std::string& text) {
  for (const DTypeRow& r : kDTypes)
    if (r.name == text) return r.value;
  return DType::bf16;
}

ServerPlan plan_of(const Json& row) {
  const Catalog& catalog = Catalog::builtin();
  const EngineKind engine = row["engine"] == "vllm" ? EngineKind::vllm : EngineKind::sglang;
  Gpu gpu = catalog.gpu(row["gpu"].get<std::string>());
  if (row.contains("total_gib")) gpu.usable = gib(row["total_gib"]);
  ServerModel model = server_model(*catalog.model(row["model"].get<std::string>()).architecture, engine, dtype_of(row["weights"]),
                                   dtype_of(row["kv"]));
  ServerFacts facts = resolve(catalog.facts(), engine, row["version"].get<std::string>(), gpu, model);
  if (row.contains("swa_ratio")) facts.swa_ratio = row["swa_ratio"];
  ServerPoint point;
  point.tensor = row["tensor"];
  point.pipeline = row["pipeline"];
  point.fraction = row["fraction"];
  point.max_model_len = row["max_model_len"];
  point.batched_tokens = row["batched_tokens"];
  point.max_running = row["max_running"];
  point.eager = row["eager"];
  const ServerPlan first = plan(model, facts, point);
  // checkpoints of mixed formats: the cache is judged with the weights that were logged
  const Json& m = row["measured"];
  if (engine == EngineKind::vllm || !m.contains("free_before_gib") || !m.contains("free_after_weights_gib")) return first;
  facts.total = gib(m["free_before_gib"]) + first[ServerTensor::context] + first[ServerTensor::nccl];
  model.outside += gib(m["free_before_gib"].get<double>() - m["free_after_weights_gib"].get<double>()) - first.weights;
  ServerPlan out = plan(model, facts, point);
  out.weights = first.weights;
  return out;
}

struct Errors {
  std::vector<double> all;
  void add(double predicted, double measured) { all.push_back(std::abs(predicted / measured - 1) * 100); }
  double quantile(double q) {
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[std::min(all.size() - 1, static_cast<std::size_t>(q * static_cast<double>(all.size())))];
  }
};

TEST_CASE("servers hold what they logged") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/measured_inference_small.jsonl");
  REQUIRE(in.good());
  std::map<std::string, Errors> errors;
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    const ServerPlan p = plan_of(row);
    const Json& m = row["measured"];
    const bool mixed = row["id"].get<std::string>().starts_with("sgl-3090");  // AWQ with parts in 16 bits
    const std::string engine = row["engine"];
    const auto judge = [&](const char* key, double predicted) {
      if (m.contains(key)) errors[engine + " " + key].add(predicted, m[key].get<double>());
    };
    const auto in_gib = [](Bytes b) { return static_cast<double>(b) / static_cast<double>(kGiB); };
    if (!mixed) judge("weights_gib", in_gib(p.weights));
    if (row["complete"].get<bool>()) {
      judge("profile_peak_gib", in_gib(p.profile_peak));
      judge("non_kv_gib", in_gib(p.non_kv));
      judge("kv_tokens", static_cast<double>(p.kv_tokens));
      judge("graphs_gib", in_gib(p[ServerTensor::graphs]));
    }
  }
  CHECK(errors["vllm weights_gib"].all.size() >= 15);
  CHECK(errors["vllm weights_gib"].quantile(0.5) < 0.3);
  CHECK(errors["vllm profile_peak_gib"].quantile(0.5) < 0.5);
  CHECK(errors["vllm non_kv_gib"].quantile(0.5) < 0.5);
  CHECK(errors["vllm kv_tokens"].quantile(0.5) < 0.3);
  CHECK(errors["vllm kv_tokens"].quantile(0.95) < 1.5);
  CHECK(errors["vllm graphs_gib"].quantile(0.5) < 4);
  CHECK(errors["vllm graphs_gib"].quantile(0.95) < 9);
  CHECK(errors["sglang kv_tokens"].quantile(0.5) < 1.5);
  for (auto& [key, e] : errors)
    MESSAGE(key << ": " << e.all.size() << " rows, median " << e.quantile(0.5) << " %, p95 " << e.quantile(0.95) << " %");
}

}  // namespace
