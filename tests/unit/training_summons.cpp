// How FSDP1's parameters are read for a weight update against what verl's own functions reached on PyTorch
// (tests/data/executed_summons.jsonl, made by benchmarks/oracle/execute_summons.py).
#include <doctest/doctest.h>

#include "executed_rows.hpp"
#include "training/fsdp1.hpp"
#include "training/passes.hpp"

namespace {

using namespace oomplan;

struct Read {
  Bytes highest = 0, kept = 0;
};

Read read(const ExecutedRow& row) {
  const TrainingCase& c = row.made;
  TrainTapes tapes;
  tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false, 32, false));
  const TrainPlan plan = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, 1);
  PeakRecorder r;
  Fsdp1<PeakRecorder> engine(r, plan, "");
  const std::string id = row.row["id"];
  if (id.ends_with("state"))
    engine.read_state(true);
  else
    engine.summon(id.ends_with("whole")                   ? Summon::whole
                  : id.find("/0.9.") != std::string::npos ? Summon::through_host
                                                          : Summon::unit_by_unit);
  const Span span = r.span();
  return {span.peak, span.net};
}

TEST_CASE("parameters and adapters of FSDP1 are read as verl reads them") {
  int judged = 0;
  for (const ExecutedRow& row : executed_rows("executed_summons.jsonl")) {
    CAPTURE(row.row["id"].get<std::string>());
    const Read got = read(row);
    CHECK(got.highest == row.row["summon"].get<Bytes>());
    CHECK(got.kept == row.row["kept"].get<Bytes>());
    ++judged;
  }
  CHECK(judged == 102);
}

}  // namespace
