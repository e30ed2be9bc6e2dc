// verl's fused output layers against their own code, executed by PyTorch: tests/data/executed_fused_heads.jsonl, made by
// benchmarks/oracle/execute_fused_heads.py.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "estimate/figures.hpp"
#include "executed_rows.hpp"
#include "layers/heads.hpp"
#include "layers/heads_verl_fused.hpp"

namespace {

using namespace oomplan;

TEST_CASE("verl's fused output layers: every peak is the executed one, to the byte") {
  std::size_t figures = 0;
  const std::vector<ExecutedRow> rows = executed_rows("executed_fused_heads.jsonl");
  for (const auto& [row, made] : rows) {
    CAPTURE(row["id"].get<std::string>());
    const TrainingFigures f = training_figures(made);
    const std::map<std::string, Bytes> got{{"forward", f.forward}, {"backward", f.backward}};
    for (const auto& [phase, bytes] : row["peaks"].items()) {
      CAPTURE(phase);
      CHECK(got.at(phase) == bytes.get<Bytes>());
      ++figures;
    }
  }
  CHECK(rows.size() >= 135);
  MESSAGE(rows.size() << " rows, " << figures << " figures");
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
