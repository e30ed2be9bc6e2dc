// Linear layers in 8 bits against what Transformer Engine's own saved and held when they ran
// (tests/data/executed_megatron_fp8.jsonl, made by benchmarks/oracle/execute_megatron_fp8.py).
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "job/names.hpp"
#include "layers/te_fp8.hpp"
#include "layers/te_fp8_tensors.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

constexpr Bytes kSmallest = 64;  // the rows leave smaller blocks out

TeOptions options_of(const Json& row) {
  TeOptions o;
  o.tensor = row["ranks"];
  o.sequence_parallel = o.tensor > 1;
  o.fused_gradients = row["fused"];
  for (const auto& [recipe, name] : kNames<Fp8Recipe>)
    if (name == row["recipe"].get<std::string>()) o.fp8 = recipe;
  o.fp8_on_blackwell = row["blackwell"];
  o.fp8_transposes = !o.fp8_on_blackwell;
  return o;
}

struct Levels {
  Bytes forward = 0, backward = 0;
  std::map<Bytes, std::int64_t> saved;
};

/// Levels of a module over those before it.
class Meter {
 public:
  explicit Meter(const Json& row) : row_(row), o_(options_of(row)) {
    counts_.s = row["tokens"];
    module_ = row["module"];
  }
  Levels run() {
    Tensor x = g_.make("x", input(), DType::bf16);
    auto node = std::make_shared<Node>();
    node->name = "AccumulateGrad";
    node->sequence = kAccumulates;
    node->apply = [](Gradients) { return Gradients{}; };
    x.grad_fn = std::move(node);
    const Bytes before = bytes(0);
    Levels out;
    const Tensor y = module(x);
    out.forward = highest(0) - before;
    for (const auto& s : g_.storages)
      if (s.saved && s.name != "x" && size(s) >= kSmallest) ++out.saved[size(s)];
    const std::size_t forward = g_.events.size();
    g_.in_backward = true;
    Tensor gradient = g_.make("gradient", y.shape, DType::bf16);
    g_.in_backward = false;
    g_.backward(y, std::move(gradient));
    out.backward = highest(forward) - before;
    return out;
  }

 private:
  Shape input() const {
    const std::int64_t in = row_["in"];
    if (module_.starts_with("grouped")) return {Dim(4) * axis::S, Dim(in)};
    if (module_.starts_with("row")) return {o_.whole(), axis::B, Dim(in / o_.tensor)};
    return {axis::S, axis::B, Dim(in)};
  }
  Tensor module(const Tensor& x) {
    const std::int64_t in = row_["in"], out = row_["out"];
    if (module_ == "norm_column") return te_fp8_norm_column_linear(g_, x, NormKind::rms, out / o_.tensor, o_, "m");
    if (module_.starts_with("column")) return te_fp8_column_linear(g_, x, out / o_.tensor, original(), o_, "m");
    if (module_.starts_with("row")) return te_fp8_row_linear(g_, x, out, original(), o_, "m");
    GroupedMatrices m{out, in, std::stoi(module_.substr(7)), false};
    return te_fp8_grouped_linear(g_, x, {x.shape[0], Dim(out)}, m, original(), o_, "m");
  }
  bool original() const { return module_.ends_with("_original"); }
  Bytes size(const Storage& s) const { return elements(s.shape).value(counts_) * row(s.dtype).bits / 8; }
  Bytes bytes(int storage) const {
    const Bytes b = size(g_.storages[static_cast<std::size_t>(storage)]);
    return b < kSmallest ? 0 : b;
  }
  Bytes highest(std::size_t from) const {
    Bytes level = 0, out = 0;
    for (std::size_t i = 0; i < g_.events.size(); ++i) {
      const EagerEvent& e = g_.events[i];
      if (e.kind == EagerEvent::Kind::alloc) level += bytes(e.storage);
      if (e.kind == EagerEvent::Kind::free) level -= bytes(e.storage);
      if (i >= from) out = std::max(out, level);
    }
    return out;
  }

  const Json& row_;
  TeOptions o_;
  TokenCounts counts_;
  std::string module_;
  Eager g_;
};

Bytes sum(const std::map<Bytes, std::int64_t>& tensors) {
  Bytes out = 0;
  for (const auto& [bytes, count] : tensors) out += bytes * count;
  return out;
}

TEST_CASE("te fp8: linear layers save and hold what Transformer Engine's did") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_fp8.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    CAPTURE(line);
    const Json row = Json::parse(line);
    std::map<Bytes, std::int64_t> want;
    for (const auto& tensor : row["saved"]) want[tensor[0].get<Bytes>()] += tensor[1].get<std::int64_t>();
    const Levels got = Meter(row).run();
    // with a scale for each tensor every expert's rows are a block of their own
    const bool apart =
        row["module"].get<std::string>().starts_with("grouped4") && (row["recipe"] == "delayed" || row["recipe"] == "tensorwise");
    if (!apart) CHECK(got.saved == want);
    CHECK(sum(got.saved) == sum(want));
    CHECK(got.forward == row["highest"][0].get<Bytes>());
    CHECK(got.backward == row["highest"][1].get<Bytes>());
  }
  CHECK(rows == 106);
}

/// Copies of a module's matrices in 8 bits: data along both sides where it needs both, and scales.
std::map<Bytes, std::int64_t> copies_of(const Json& row) {
  const TeOptions o = options_of(row);
  const std::string module = row["module"];
  const bool split_columns = module.starts_with("row");
  const std::int64_t out = row["out"].get<std::int64_t>() / (split_columns ? 1 : o.tensor);
  const std::int64_t in = row["in"].get<std::int64_t>() / (split_columns ? o.tensor : 1);
  const std::int64_t matrices = module.starts_with("grouped") ? std::stoi(module.substr(7)) : 1;
  std::map<Bytes, std::int64_t> copies;
  copies[out * in] += matrices * (scaled_in_blocks(o) || o.fp8_transposes ? 2 : 1);
  for (const bool columns : {false, true})
    if (const Bytes scales = scales_of_matrix(out, in, columns, o.fp8); scales >= kSmallest) copies[scales] += matrices;
  return copies;
}

TEST_CASE("te fp8: modules keep copies of their matrices as Transformer Engine's did") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_fp8.jsonl");
  REQUIRE(in.good());
  for (std::string line; std::getline(in, line);) {
    CAPTURE(line);
    const Json row = Json::parse(line);
    std::map<Bytes, std::int64_t> want;
    for (const auto& tensor : row["copies"]) want[tensor[0].get<Bytes>()] += tensor[1].get<std::int64_t>();
    CHECK(copies_of(row) == want);
  }
}

}  // namespace
