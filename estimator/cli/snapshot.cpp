#include "command.hpp"
#include "report/snapshot_report.hpp"
#include "snapshot/read.hpp"

namespace oomplan::cli {

int run_snapshot(const Call& call) {
  if (call.positional.empty()) {
    Problem problem;
    problem.found = "no snapshot";
    problem.expected = "oomplan snapshot FILE, or - for standard input";
    throw InputError(problem);
  }
  SnapshotReport report;
  report.top = call.number("top", 1, 1'000'000, 12);
  report.replay = call.has("replay");
  report.file = call.positional[0] == "-" ? "<stdin>" : call.positional[0];
  report.snapshot = snapshot::parse_snapshot(snapshot::snapshot_bytes(call.positional[0]), report.file);
  for (const int device : report.snapshot.devices()) report.devices.push_back(snapshot::history_of(report.snapshot, device));
  print(call.json ? to_json(report) : to_text(report, call.style));
  return kFits;
}

}  // namespace oomplan::cli
