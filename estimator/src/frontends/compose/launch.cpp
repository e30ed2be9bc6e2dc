#include "frontends/compose/launch.hpp"

#include <string_view>

namespace oomplan::compose {
namespace {

/// argparse takes unambiguous beginnings of its only option (and --help, which starts differently): --c, --co, ... --config.
bool is_config_option(std::string_view name) {
  constexpr std::string_view kOption = "--config";
  return name.size() > 2 && kOption.starts_with(name);
}

}  // namespace

Launch read_launch(const std::vector<std::string>& arguments) {
  Launch out;
  bool found = false;
  for (std::size_t i = !arguments.empty() && arguments[0].ends_with(".py") ? 1 : 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto equals = argument.find('=');
    if (!is_config_option(std::string_view(argument).substr(0, equals))) {
      out.overrides.push_back(argument);
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size())
      throw InputError({{"command line", 0, 0, "--config"}, "nothing", "a file behind --config", {}, {}});
    out.config_file = equals == std::string::npos ? arguments[++i] : argument.substr(equals + 1);
    found = true;
  }
  if (!found) throw InputError({{"command line", 0, 0, {}}, "no --config", "--config FILE", {}, "AReaL's scripts require it"});
  return out;
}

Request request_of(const Launch& launch, Files files, Environment environment, std::string working_folder) {
  Request out;
  const auto slash = launch.config_file.rfind('/');
  out.folder = slash == std::string::npos ? "" : launch.config_file.substr(0, slash);
  const std::string name = launch.config_file.substr(slash == std::string::npos ? 0 : slash + 1);
  out.config = name.substr(0, name.find(".yaml"));
  out.overrides = launch.overrides;
  out.working_folder = std::move(working_folder);
  out.files = std::move(files);
  out.environment = std::move(environment);
  return out;
}

}  // namespace oomplan::compose
