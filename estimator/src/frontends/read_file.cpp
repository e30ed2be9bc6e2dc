#include "frontends/read_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

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

std::string drained(std::FILE* file, const std::string& path) {
  std::string text;
  std::array<char, 65536> block;
  for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), file)) > 0;) {
    text.append(block.data(), n);
    if (text.size() > kMost) refuse(path, "more than 8 MiB", "");
  }
  if (std::ferror(file) != 0) refuse(path, "", "cannot be read: " + std::generic_category().message(errno));
  return text;
}

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

Source read_file(const std::string& path) {
  if (path == "-") return {drained(stdin, "<stdin>"), "<stdin>"};
  if (path.empty()) refuse("", "an empty file name", "");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse(path, "a folder", "");
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) refuse(path, "", "cannot be opened: " + std::generic_category().message(errno));
  return {drained(file.get(), path), path};
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

}  // namespace oomplan
