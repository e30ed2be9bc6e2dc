// How AReaL's scripts read their arguments: `script.py --config FILE override...`.
#pragma once
#include <string>
#include <vector>

#include "frontends/compose/compose.hpp"

namespace oomplan::compose {

/// Arguments of parse_cli_args (areal/api/cli_args.py, AReaL v1.0.4): --config FILE, everything else is an override; a script
/// (a first argument that ends in .py) is skipped. Throws InputError without --config.
struct Launch {
  std::string config_file;
  std::vector<std::string> overrides;
};
Launch read_launch(const std::vector<std::string>& arguments);

/// The request that AReaL makes of it: the file's folder is the search path, its name up to the first ".yaml" the config.
Request request_of(const Launch& launch, Files files, Environment environment, std::string working_folder = {});

}  // namespace oomplan::compose
