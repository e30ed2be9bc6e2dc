// verl's fused output layers against their own code, executed by PyTorch: tests/data/executed_fused_heads.jsonl, made by
// benchmarks/oracle/execute_fused_heads.py; executed_fused_heads_sharded.jsonl likewise.
#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "estimate/figures.hpp"
#include "executed_rows.hpp"
#include "layers/heads.hpp"
#include "layers/heads_verl_fused.hpp"

namespace {

using namespace oomplan;

/// Every figure of the file's rows with what PyTorch executed: f(case, predicted, executed).
std::size_t judge(const std::string& file, const std::function<void(const TrainingCase&, Bytes, Bytes)>& f) {
  std::size_t figures = 0;
  for (const auto& [row, made] : executed_rows(file)) {
    const TrainingFigures all = training_figures(made);
    const std::map<std::string, Bytes> got{{"forward", all.forward}, {"backward", all.backward}};
    for (const auto& [phase, bytes] : row["peaks"].items()) {
      CAPTURE(row["id"].get<std::string>());
      CAPTURE(phase);
      f(made, got.at(phase), bytes.get<Bytes>());
      ++figures;
    }
  }
  return figures;
}

TEST_CASE("verl's fused output layers: every peak is the executed one, to the byte") {
  const std::size_t figures =
      judge("executed_fused_heads.jsonl", [](const TrainingCase&, Bytes got, Bytes executed) { CHECK(got == executed); });
  CHECK(figures >= 243);
}

TEST_CASE("verl's fused output layers under FSDP: to the byte, but where a layer's own peak is a number or two a token off") {
  std::size_t exact = 0;
  const std::size_t figures = judge("executed_fused_heads_sharded.jsonl", [&](const TrainingCase& c, Bytes got, Bytes executed) {
    CHECK(std::abs(got - executed) <= 8 * c.trainer.sequence_tokens);
    exact += got == executed ? 1 : 0;
  });
  CHECK(figures >= 108);
  CHECK(exact >= 84);
  MESSAGE(exact << " of " << figures << " figures to the byte");
}

TEST_CASE("verl's fused output layers: torch's takes 512 rows at a time, Triton's all of them") {
  for (const LossHead head :
       {LossHead::verl_fused, LossHead::verl_fused_entropy, LossHead::verl_fused_log_softmax,
        LossHead::verl_fused_log_softmax_entropy, LossHead::verl_fused_triton, LossHead::verl_fused_triton_entropy}) {
    const auto how = verl_fused(head);
    REQUIRE(how.has_value());
    CHECK(takes_hidden(head));
    CHECK(inside_model(head));
    CHECK(runs_in_chunks(head) == !how->triton);
    CHECK(chunk_rows(head, 1000) == (how->triton ? 0 : kVerlFusedRows));
  }
  CHECK_FALSE(verl_fused(LossHead::verl_flash_ce).has_value());
}

}  // namespace
