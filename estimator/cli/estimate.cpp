#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "advice/remedies.hpp"
#include "command.hpp"
#include "estimate/explain.hpp"
#include "frontends/dialect.hpp"
#include "input.hpp"
#include "output_file.hpp"
#include "report/beside_report.hpp"
#include "report/format.hpp"
#include "snapshot/beside.hpp"
#include "snapshot/predicted.hpp"
#include "snapshot/read.hpp"
#include "snapshot/write.hpp"

namespace oomplan::cli {
namespace {

/// The run of the fullest GPU, for PyTorch's viewer.
void save_snapshot(const Job& job, const Call& call) {
  const std::string path(call.text("save-snapshot"));
  const ProcessRun run = fullest_run(job, *call.catalog, TapeStore::shared());
  const auto predicted = snapshot::predicted_snapshot(run.program, run.settings);
  write_file(path, snapshot::to_pickle(predicted), "a memory snapshot");
  std::fprintf(stderr, "%s\n",
               printable(fmt::format("{}: the predicted run of {}, {} events; pytorch.org/memory_viz opens it", path, run.ranks,
                                     predicted.traces[0].size()))
                   .c_str());
}

/// The predicted processes beside a snapshot that was recorded.
BesideReport beside_record(const Job& job, const Call& call) {
  BesideReport report;
  report.file = call.text("recorded");
  report.top = call.number("top", 1, 1'000'000, 12);
  report.stated = call.has("phase");
  report.snapshot = snapshot::parse_snapshot(snapshot::snapshot_bytes(report.file), report.file);
  std::vector<snapshot::PredictedRun> runs;
  for (const ProcessRun& run : all_runs(job, *call.catalog, TapeStore::shared()))
    runs.push_back({run.ranks, snapshot::predicted_snapshot(run.program, run.settings)});
  for (const int device : report.snapshot.devices())
    if (auto found = snapshot::beside(report.snapshot, device, runs, call.text("phase")))
      report.devices.push_back(std::move(*found));
  return report;
}

void add_remedies(Estimate& estimate, Remedies found) {
  estimate.remedies = std::move(found.all);
  if (found.replayed) return;
  estimate.notes.push_back({Note::Level::info,
                            {},
                            "some changes are judged by what lives, without what the allocator adds: to replay them all takes "
                            "long; `oomplan advise` does"});
}

int answer(const Call& call, Estimate (*judge)(const Job&, const Catalog*)) {
  refuse_without_command(call);
  const Source source = source_of(call);
  Reading reading = read(source, call.catalog);
  Estimate estimate = judge(reading.job, call.catalog);
  estimate.notes.insert(estimate.notes.begin(), reading.notes.begin(), reading.notes.end());
  if (call.has("quick") && !estimate.fits())  // every change that is offered is replayed
    estimate.notes.push_back(
        {Note::Level::info, {}, "--quick tries no changes; `oomplan advise` tries them and says what each gains"});
  else if (!estimate.fits())
    add_remedies(estimate, dialect_of(source).rewords ? remedies_of(source, Effect::speed, call.catalog, estimate)
                                                      : remedies_of(reading.job, Effect::speed, call.catalog, estimate));
  if (call.has("save-snapshot")) save_snapshot(reading.job, call);
  if (call.has("recorded")) {
    const BesideReport report = beside_record(reading.job, call);
    print(call.json ? to_json(estimate, reading.job, report)
                    : to_text(estimate, reading.job, call.style) + to_text(report, call.style));
  } else {
    print(call.json ? to_json(estimate, reading.job) : to_text(estimate, reading.job, call.style));
  }
  return estimate.fits() ? kFits : kDoesNotFit;
}

}  // namespace

int run_estimate(const Call& call) { return answer(call, call.has("quick") ? estimate_quick : estimate); }
int run_explain(const Call& call) {
  for (const char* option : {"phase", "top"})
    if (call.has(option) && !call.has("recorded"))
      throw InputError(Problem{{"", 0, 0, fmt::format("--{}", option)}, "no --recorded", "--recorded FILE beside it", "", ""});
  return answer(call, explain);
}

}  // namespace oomplan::cli
