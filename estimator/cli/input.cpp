#include "input.hpp"

#include <filesystem>
#include <system_error>

#include "frontends/read_file.hpp"

namespace oomplan::cli {

Source source_of(const Call& call) {
  const auto& positional = call.positional;
  Problem problem;
  if (positional.empty()) {
    problem.found = "no job file";
    problem.expected = "oomplan COMMAND FILE [key=value ...], or - for standard input";
    throw InputError(problem);
  }
  const std::string& path = positional[0];
  std::error_code error;
  if (path.find('=') != std::string::npos && !std::filesystem::exists(path, error)) {
    problem.found = "'" + path + "' first";
    problem.expected = "the job file before the overrides";
    throw InputError(problem);
  }
  Source source = read_file(path);
  source.overrides.assign(positional.begin() + 1, positional.end());
  source.framework_version = call.text("framework-version");
  source.gpu = call.text("gpu");
  source.open = text_of_file;
  return source;
}

}  // namespace oomplan::cli
