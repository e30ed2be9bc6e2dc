// The door of memory snapshots.
#include <nlohmann/json.hpp>

#include "checks.hpp"
#include "report/snapshot_report.hpp"
#include "snapshot/read.hpp"
#include "snapshot/write.hpp"

namespace oomplan::fuzz {

void put_snapshot(std::string_view text) {
  answers([&] {
    SnapshotReport report;
    report.file = "snapshot";
    report.replay = true;
    report.snapshot = snapshot::parse_snapshot(std::string(text), report.file);
    for (const int device : report.snapshot.devices()) {
      report.devices.push_back(snapshot::history_of(report.snapshot, device));
      require(report.devices.back().now.allocated >= 0, "less than nothing is allocated");
    }
    check_json(to_json(report));
    check_text(to_text(report, {}));
    const auto again = snapshot::parse_snapshot(snapshot::to_pickle(report.snapshot), "again");
    require(again.segments.size() == report.snapshot.segments.size(), "a snapshot that is another one when it is read again");
  });
}

}  // namespace oomplan::fuzz
