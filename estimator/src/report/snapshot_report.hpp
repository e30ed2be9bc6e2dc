// What a memory snapshot holds, as text and as JSON (schema "oomplan.snapshot/1").
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "snapshot/history.hpp"

namespace oomplan {

struct SnapshotReport {
  std::string file;
  snapshot::Snapshot snapshot;
  std::vector<snapshot::DeviceHistory> devices;
  std::int64_t top = 12;  ///< rows of live blocks that are shown
  bool replay = false;    ///< show recorded against replayed
};
std::string to_text(const SnapshotReport&, const TextStyle&);
std::string to_json(const SnapshotReport&);

}  // namespace oomplan
