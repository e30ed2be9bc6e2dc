// A trainer and a server in one process on one GPU, as AgileRL's rig measured them: tests/data/colocated_rows.jsonl. The first
// line says where they are from.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "estimate/figures.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

/// `padded`: a response ended before the others. Since 30 July 2026 the rig makes all of them equally long.
Job job_of(const Json& row, bool padded) {
  const auto sequence = row["sequence"].get<std::int64_t>(), group = row["group"].get<std::int64_t>();
  const std::int64_t prompt = std::max<std::int64_t>(8, sequence / 4);  // the rig's prompts
  const std::int64_t together = std::min(group, row["micro_batch"].get<std::int64_t>());
  const std::string text = fmt::format(
      "oomplan: 1\nframework: agilerl 2.8\ngpus: 1 x {gpu}\nmodel: {model}\nprompt_tokens: {prompt}\nresponse_tokens: "
      "{response}\n"
      "sequences_per_step: {group}\nsamples_per_prompt: {group}\n"
      "rollout: {{engine: vllm {vllm}, gpu_memory_utilization: {fraction}, max_running_requests: {group}, concurrency: {group}, "
      "lora: {{rank: {rank}}}}}\n"
      "actor: {{engine: single, beside: rollout, sequences_per_micro_batch: {together}, sequence_tokens: {sequence}, "
      "micro_batches: {updates}, padding_mask: {padded}, lora: {{rank: {rank}, targets: [{targets}]}}}}\n",
      fmt::arg("gpu", row["gpu"].get<std::string>()), fmt::arg("model", row["model"].get<std::string>()),
      fmt::arg("prompt", prompt), fmt::arg("response", sequence - prompt), fmt::arg("group", group),
      fmt::arg("vllm", row["vllm"].get<std::string>()), fmt::arg("fraction", row["fraction"].get<double>()),
      fmt::arg("rank", row["rank"].get<std::int64_t>()), fmt::arg("together", together), fmt::arg("sequence", sequence),
      fmt::arg("updates", (group + together - 1) / together), fmt::arg("padded", padded),
      fmt::arg("targets", row["targets"].get<std::string>()));
  return read({text, "job.yaml", {}, {}}).job;
}

struct Predicted {
  Bytes training = 0, allocated = 0, generation = 0, asleep = 0;
};
/// As NVML tells it: with what the driver keeps back.
Predicted predicted(const Json& row, bool padded) {
  const ColocatedFigures f = colocated_figures(job_of(row, padded), 1, Catalog::builtin());
  Predicted out;
  out.asleep = f.asleep + f.kept_back;
  for (const ColocatedPhase& p : f.phases) {
    const std::string what = p.phase.substr(p.phase.find('.') + 1);
    if (what == "generate" || what == "wake") out.generation = std::max(out.generation, p.device + f.kept_back);
    if (what != "log_probs" && what != "forward" && what != "backward" && what != "optimizer") continue;
    out.training = std::max(out.training, p.device + f.kept_back);
    out.allocated = std::max(out.allocated, p.allocated);
  }
  return out;
}

struct Errors {
  std::vector<double> all;
  void add(Bytes said, const Json& measured) {
    all.push_back(100 * std::abs(static_cast<double>(said) / measured.get<double>() - 1));
  }
  double quantile(double q) {
    std::sort(all.begin(), all.end());
    REQUIRE_FALSE(all.empty());
    return all[std::min(all.size() - 1, static_cast<std::size_t>(q * static_cast<double>(all.size())))];
  }
};

TEST_CASE("a trainer and a sleeping server take what was measured of the device") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/colocated_rows.jsonl");
  REQUIRE(in.good());
  std::map<std::string, Errors> errors;
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    if (!row.contains("id")) continue;
    const Predicted p = predicted(row, row.value("padded", false));
    if (row["phase"] == "generation") {
      errors["generation"].add(p.generation, row["device"]);
      continue;
    }
    errors["training"].add(p.training, row["device"]);
    errors["asleep"].add(p.asleep, row["asleep"]);
    errors["allocated"].add(p.allocated, row["allocated"]);
  }
  // a segment of 256 MiB that hangs on one tensor's place is the largest error of training: docs/agilerl.md
  CHECK(errors["training"].quantile(0.5) < 0.4);
  CHECK(errors["training"].quantile(0.9) < 2);
  CHECK(errors["training"].quantile(0.95) < 4);
  CHECK(errors["training"].quantile(1) < 10);
  CHECK(errors["asleep"].quantile(0.5) < 2);
  CHECK(errors["asleep"].quantile(0.95) < 6);
  CHECK(errors["allocated"].quantile(0.5) < 1.5);
  CHECK(errors["generation"].quantile(0.5) < 1);
  CHECK(errors["generation"].quantile(1) < 5);
}

TEST_CASE("a response that ended early brought the mask that is expected of AgileRL's batches") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/colocated_rows.jsonl");
  int met = 0, low = 0;
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    if (!row.value("padded", false)) continue;
    CHECK(static_cast<double>(predicted(row, true).training) == doctest::Approx(row["device"].get<double>()).epsilon(0.01));
    low += static_cast<double>(predicted(row, false).training) < 0.95 * row["device"].get<double>() ? 1 : 0;
    ++met;
  }
  CHECK(met == 6);
  CHECK(low ==
        2);  // those of eight sequences: of one sequence the mask is small, and the third of eight has a wide optimizer step
}

TEST_CASE("two starts with the same engine: torch's allocated peaks say that batches were padded") {
  // what torch counts of the engine is the same for both, and so is the error of the predicted peak, if the batches are right
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/colocated_rows.jsonl");
  std::map<std::string, std::vector<std::array<double, 2>>> errors;  // unpadded, padded
  std::map<std::string, int> padded;
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    if (row.value("phase", "") != "training" || row["model"] != "HuggingFaceTB/SmolLM2-1.7B-Instruct" || row["sequence"] != 4096)
      continue;
    const std::string engine = fmt::format("{} {}", row["group"].get<int>(), row["rank"].get<int>());
    const auto error = [&](bool mask) {
      return static_cast<double>(predicted(row, mask).allocated - row["allocated"].get<Bytes>()) / static_cast<double>(kMiB);
    };
    errors[engine].push_back({error(false), error(true)});
    padded[engine] += row.value("padded", false) ? 1 : 0;
  }
  CHECK(errors.size() == 4);
  for (const auto& [engine, both] : errors) {
    INFO(engine);
    REQUIRE(both.size() == 2);
    const std::size_t mask = padded[engine] == 2 ? 1 : 0;
    CHECK(std::abs(both[0][mask] - both[1][mask]) < 1);
    CHECK(std::abs(both[0][1 - mask] - both[1][1 - mask]) > 100);
  }
}

}  // namespace
