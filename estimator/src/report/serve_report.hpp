// The answer to a server's command line: the figures that the engine would log, whether it starts, and the commands that would.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/servers/serve_command.hpp"
#include "inference/server.hpp"

namespace oomplan {

/// A change of the command line with which the server starts and runs.
struct ServeChange {
  std::string what;                ///< "gpu_memory_utilization 0.95 -> 0.9"
  std::vector<std::string> words;  ///< the whole command
};

struct ServeAnswer {
  ServerFigures figures;  ///< of the first rank
  ServerPlan plan;        ///< of the first rank
  Estimate estimate;      ///< of the job
  std::vector<ServeChange> changes;
  bool fits() const { return estimate.fits(); }
};

/// Milliseconds. Changes are looked for only where the command does not fit; each was estimated.
ServeAnswer answer(const ServeCommand&, const Catalog&);

std::string to_text(const ServeAnswer&, const ServeCommand&, const TextStyle&);
/// Schema "oomplan.serve/1".
std::string to_json(const ServeAnswer&, const ServeCommand&);

}  // namespace oomplan
