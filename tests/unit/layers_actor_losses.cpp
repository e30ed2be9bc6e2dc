// Losses of verl's and slime's actors behind Megatron's output layer against what their own functions reached
// (tests/data/executed_actor_losses.jsonl, executed_topk_losses.jsonl and executed_relax_topk.jsonl, made by
// benchmarks/oracle/execute_actor_losses.py, execute_topk_losses.py and execute_relax_topk.py).
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "eager_levels.hpp"
#include "layers/megatron_actor_losses.hpp"
#include "layers/megatron_moe.hpp"
#include "layers/ops.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

void play_backward(Eager& g, Tensor& loss) {
  if (!g.grad_enabled) return;
  g.in_backward = true;
  g.backward(loss, g.make("gradient", {}, DType::fp32));
}

/// Someone else's, that wants its gradient and lets it go.
Tensor outside(Eager& g) {
  Tensor out = g.scalar(DType::bf16);
  out.grad_fn = std::make_shared<Node>();
  out.grad_fn->apply = [](const Gradients&) { return Gradients{}; };
  return out;
}

/// verl's use_fused_kernels, from hidden states of this rank's rows.
Levels predicted_fused(const Json& row) {
  const bool spread = row["sequence_parallel"];
  const Dim width(row["hidden"].get<std::int64_t>());
  TokenCounts counts;
  counts.s = row["tokens"].get<std::int64_t>() / (spread ? 2 : 1);
  Eager g;
  g.grad_enabled = !row["forward_only"].get<bool>();
  Tensor hidden = outside(g);
  hidden.shape = {axis::S, axis::B, width};
  const Shape whole{Dim(2) * axis::S, axis::B, width};
  const Tensor given = spread ? moved_rows(g, hidden, whole, {}, DType::bf16, "gathered") : hidden;
  const ActorLoss o{.entropy = row["entropy"], .fused = true};
  const Tensor weight = row["frozen"].get<bool>() ? g.scalar(DType::bf16) : outside(g);
  Tensor loss = fused_actor_loss(g, o, given, g.scalar(DType::int64), weight, row["vocab"]);
  play_backward(g, loss);
  return levels_of(g, counts);
}

ActorLossKind kind_of(const std::string& loss) {
  if (loss == "slime") return ActorLossKind::slime;
  if (loss == "slime_whole") return ActorLossKind::slime_whole;
  if (loss == "slime_sliced") return ActorLossKind::slime_sliced;
  return loss == "slime_samples" ? ActorLossKind::slime_samples : ActorLossKind::verl;
}

Levels predicted(const Json& row) {
  if (row["loss"] == "verl_fused") return predicted_fused(row);
  const auto tokens = row["tokens"].get<std::int64_t>(), chunk = row.value("chunk", std::int64_t{-1});
  ActorLoss o;
  o.kind = kind_of(row["loss"].get<std::string>());
  o.entropy = row["entropy"];
  o.entropy_gradient = row.value("entropy_gradient", false);
  o.temperature = row.value("temperature", 1.0) != 1;
  o.checkpoint = row.value("checkpoint", false);
  o.topk = row.value("topk", std::int64_t{0});
  o.topk_alone = row.value("only", false) || row.value("advantages", false);
  TokenCounts counts;
  counts.s = tokens;
  o.samples = row.value("samples", 1);
  o.context = row.value("context", false);
  const std::int64_t rows = tokens / o.samples;
  counts.k = rows / (o.context ? 2 : 1);
  if (chunk > 0) {
    o.chunks = static_cast<int>((rows - 1) / chunk + 1);
    counts.m = (rows + o.chunks - 1) / o.chunks;
  }
  Eager g;
  g.grad_enabled = !row["forward_only"].get<bool>();
  const Dim columns(row["vocab"].get<std::int64_t>());
  Tensor hidden = g.scalar(DType::bf16);
  hidden.shape = {axis::S, axis::B, Dim(row["hidden"].get<std::int64_t>())};
  hidden.grad_fn = std::make_shared<Node>();
  hidden.grad_fn->apply = [](const Gradients&) { return Gradients{}; };
  Tensor narrow = g.make("logits", {axis::S, axis::B, columns}, DType::bf16, Category::logits);
  const Shape in = hidden.shape;
  g.record(narrow, "MmBackward0", {&hidden},
           [&g, in](const Gradients&) { return Gradients{g.make("hidden_gradient", in, DType::bf16)}; });
  Tensor logits = ops::to(g, std::move(narrow), DType::fp32, "logits.fp32");
  Tensor loss = actor_loss(g, o, std::move(logits), [](int) {});
  play_backward(g, loss);
  return levels_of(g, counts);
}

/// Of Relax's divergences the reverse one with a tail is described; what others keep more or less is a few numbers for each of
/// the k tokens.
double other_divergence(const Json& row) {
  if (!row.contains("divergence") || row["advantages"].get<bool>() || row["checkpoint"].get<bool>()) return 0;
  const bool described = row["divergence"] == "reverse_kl" && row["norm"] == "tail" && !row["gate"].get<bool>();
  if (described && !row["union"].get<bool>() && !row["clamp"].get<bool>()) return 0;
  constexpr double kNumbers = 5.5;
  return kNumbers * 4 * row["tokens"].get<double>() * row["topk"].get<double>();
}

int judge(const char* file) {
  std::ifstream in(std::string(OOMPLAN_SOURCE_DIR "/tests/data/") + file);
  REQUIRE(in.good());
  int judged = 0;
  for (std::string line; std::getline(in, line); ++judged) {
    const Json row = Json::parse(line);
    CAPTURE(line);
    const Levels got = predicted(row);
    const auto near = [&](Bytes figure, const char* key) {
      CAPTURE(key);
      CHECK(static_cast<double>(figure) == doctest::Approx(row[key].get<double>()).epsilon(0.002));
    };
    near(got.forward, "forward");
    if (!row.contains("backward")) continue;
    if (const double more = other_divergence(row); more > 0) {
      CHECK(std::abs(static_cast<double>(got.kept) - row["kept"].get<double>()) < more);
    } else {
      near(got.kept, "kept");
    }
    near(got.backward, "backward");
  }
  return judged;
}

TEST_CASE("losses of actors behind Megatron's output layer reach what their own functions reached") {
  CHECK(judge("executed_actor_losses.jsonl") == 664);
  CHECK(judge("executed_topk_losses.jsonl") == 32);
  CHECK(judge("executed_relax_topk.jsonl") == 408);
}

}  // namespace
