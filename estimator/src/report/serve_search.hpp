// A search around a server's command line: the settings that fit on the same GPUs, each as a whole command.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/servers/serve_command.hpp"

namespace oomplan {

/// The settings of `job` (of one server) in the command's own flags.
struct ServeRewrite {
  std::int64_t servers = 1;        ///< so many of this command, on GPUs of their own
  std::string what;                ///< "tensor 4, gpu_memory_utilization 0.95"; "" where nothing changes
  std::vector<std::string> words;  ///< the whole command; empty where a setting has no flag
};
ServeRewrite rewritten(const ServeCommand&, const Job& job);

struct ServeFound {
  Found found;
  std::vector<ServeRewrite> commands;  ///< of found.best, one for each
};
/// Best first, at most `keep`.
ServeFound search_command(const ServeCommand&, const Space&, int keep, const Catalog&);

std::string to_text(const ServeFound&, const ServeCommand&, const TextStyle&);
/// Schema "oomplan.serve_search/1".
std::string to_json(const ServeFound&, const ServeCommand&);

}  // namespace oomplan
