#include "frontends/read_file.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "frontends/launch/launch.hpp"
#include "units/input_file.hpp"

namespace oomplan {
namespace {

constexpr std::size_t kMost = std::size_t{8} << 20;  // bytes; the longest job files seen have 40 kB

[[noreturn]] void refuse(const std::string& path, const std::string& found, const std::string& why) {
  Problem problem;
  problem.place.file = path;
  problem.found = found;
  problem.expected = found.empty() ? "" : "a job file";
  problem.why = why;
  throw InputError(problem);
}

}  // namespace

Source read_file(const std::string& path) {
  const std::string name = path == "-" ? "<stdin>" : path;
  try {
    return {InputFile(path).all(kMost, "8 MiB"), name};
  } catch (const FileRefused& refused) {
    refuse(name, refused.found, refused.why);
  }
}

namespace {

/// Without links and "..", as far as it exists.
std::filesystem::path true_path(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path out = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  if (error) return {};  // a loop of links, or a folder that may not be entered
  return out.has_filename() ? out : out.parent_path();
}

bool lies_below(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const auto at = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return !path.empty() && at.first == folder.end();
}

}  // namespace

std::optional<std::string> text_of_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  return read_file(path).text;
}

std::function<std::optional<std::string>(const std::string&)> files_beside(const std::string& job,
                                                                           const std::vector<std::string>& roots) {
  const std::filesystem::path beside = std::filesystem::path(job).parent_path();
  std::vector<std::filesystem::path> folders{true_path(beside.empty() ? "." : beside)};
  for (const std::string& root : roots) {
    std::error_code error;
    if (!std::filesystem::is_directory(root, error))
      throw InputError(Problem{{"", 0, 0, "config root"}, "'" + root + "'", "a folder", {}, {}});
    folders.push_back(true_path(root));
  }
  return [job, folders](const std::string& asked) -> std::optional<std::string> {
    if (asked.find("://") != std::string::npos) return std::nullopt;
    const std::filesystem::path path = true_path(asked);
    const bool allowed =
        std::any_of(folders.begin(), folders.end(), [&](const auto& folder) { return lies_below(path, folder); });
    if (!allowed)
      throw InputError(Problem{{job, 0, 0, {}},
                               "the name of '" + asked + "'",
                               "files in the folder of the job file, or below a config root (--config-root, config_roots=)",
                               {},
                               "it lies elsewhere, and was not looked at"});
    return text_of_file(path.string());
  };
}

bool is_script_file(const Source& source) { return launch::is_script(source.text, source.name); }

Source script_source(Source script, std::vector<std::string> arguments, std::map<std::string, std::string> environment,
                     std::vector<std::string> roots) {
  script.arguments = std::move(arguments);
  script.environment = std::move(environment);
  std::error_code error;
  script.folder = std::filesystem::current_path(error).string();
  roots.emplace_back(".");
  script.open = files_beside(script.name == "<stdin>" ? "./script" : script.name, roots);
  return script;
}

Source command_source(std::vector<std::string> command, std::map<std::string, std::string> environment,
                      std::vector<std::string> roots) {
  Source out;
  out.name = "command line";
  out.command = std::move(command);
  out.environment = std::move(environment);
  std::error_code error;
  out.folder = std::filesystem::current_path(error).string();
  out.open = [typed = out.command, roots](const std::string& path) {
    const auto named = [&](const std::string& word) { return word == path || word.ends_with("=" + path); };
    if (std::any_of(typed.begin(), typed.end(), named)) return text_of_file(path);
    for (const std::string& word : typed) {  // beside a file that is named
      const std::string file = word.substr(word.find('=') == std::string::npos ? 0 : word.find('=') + 1);
      std::error_code ignored;
      if (file.find('/') == std::string::npos || !std::filesystem::is_regular_file(file, ignored)) continue;
      try {
        if (std::optional<std::string> text = files_beside(file, roots)(path)) return text;
      } catch (const InputError&) {
        continue;  // not below this one
      }
    }
    return files_beside("./command", roots)(path);
  };
  return out;
}

}  // namespace oomplan
