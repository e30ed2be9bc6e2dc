// A prediction beside the snapshots of it that were recorded, as text and as JSON (`recorded` of schema "oomplan.estimate/1").
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "snapshot/beside.hpp"

namespace oomplan {

struct BesideReport {
  std::string file;  ///< of the record
  snapshot::Snapshot snapshot;
  std::vector<snapshot::Beside> devices;  ///< their frames are the snapshot's
  std::int64_t top = 12;                  ///< rows of a table
  bool stated = false;                    ///< the phase was, otherwise it was found
};
std::string to_text(const BesideReport&, const TextStyle&);
/// to_json(estimate, job) with `recorded`.
std::string to_json(const Estimate&, const Job&, const BesideReport&);

}  // namespace oomplan
