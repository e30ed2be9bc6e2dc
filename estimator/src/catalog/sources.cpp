#include "catalog/sources.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "catalog/embedded.hpp"
#include "catalog/fields.hpp"
#include "units/input_file.hpp"

namespace oomplan {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, std::string found, std::string expected) {
  throw InputError(Problem{{path, 0, 0, ""}, std::move(found), std::move(expected), "", ""});
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Hub ids are letters, digits and "-_."; nothing else may reach a path.
std::string config_in_snapshots(const fs::path& repository) {
  std::error_code error;
  if (const auto revision = file_text((repository / "refs" / "main").string())) {
    std::string name = *revision;
    name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) == 0; }),
               name.end());
    const fs::path config = repository / "snapshots" / name / "config.json";
    if (!name.empty() && fs::is_regular_file(config, error)) return config.string();
  }
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(repository / "snapshots", error)) {
    const fs::path config = entry.path() / "config.json";
    if (fs::is_regular_file(config, error)) found.push_back(config.string());
  }
  return found.empty() ? "" : *std::min_element(found.begin(), found.end());
}

}  // namespace

std::optional<std::string> file_text(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  const auto size = fs::file_size(path, error);
  if (error) fail(path, error.message(), "a readable file");
  if (size > kMaxJsonBytes) fail(path, fmt::format("{} bytes", size), fmt::format("at most {} bytes", kMaxJsonBytes));
  try {
    return InputFile(path).all(kMaxJsonBytes, fmt::format("{} bytes", kMaxJsonBytes));
  } catch (const FileRefused& refused) {
    throw InputError(Problem{{path, 0, 0, ""}, refused.found, "a readable file", "", refused.why});
  }
}

std::vector<std::string> embedded_paths(std::string_view prefix) {
  std::vector<std::string> out;
  for (const EmbeddedFile* file = kEmbeddedFiles; file->path != nullptr; ++file)
    if (std::string_view(file->path).starts_with(prefix)) out.emplace_back(file->path);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> directory_paths(const std::string& directory, std::string_view prefix) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(directory) / prefix, error))
    if (entry.path().extension() == ".json") out.push_back(std::string(prefix) + entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

std::string id_of_path(std::string_view path) {
  std::string out(path.substr(path.rfind('/') + 1));
  if (out.ends_with(".json")) out.resize(out.size() - 5);
  const std::size_t at = out.find("--");
  if (at != std::string::npos) out.replace(at, 2, "/");
  return out;
}

std::string path_of_id(std::string_view id) {
  std::string name(id);
  const std::size_t at = name.find('/');
  if (at != std::string::npos) name.replace(at, 1, "--");
  return "architectures/" + name + ".json";
}

std::string normalised(std::string_view name) {
  std::string out(name);
  for (char& c : out) c = c == '_' || c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool plain_id(std::string_view id) {
  const bool plain = std::all_of(id.begin(), id.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' || c == '/';
  });
  return plain && !id.empty() && id.size() <= 200 && id.find("..") == std::string_view::npos &&
         std::count(id.begin(), id.end(), '/') <= 1;
}

std::string config_of_cached(const std::string& folder) { return config_in_snapshots(folder); }

std::string cached_config(std::string_view id) {
  if (!plain_id(id)) return "";
  std::string folder = "models--" + std::string(id);
  const std::size_t slash = folder.find('/');
  if (slash != std::string::npos) folder.replace(slash, 1, "--");
  const std::string hub = environment("HF_HUB_CACHE"), home = environment("HF_HOME"), user = environment("HOME");
  std::vector<fs::path> places;
  if (!hub.empty()) places.emplace_back(hub);
  if (!home.empty()) places.push_back(fs::path(home) / "hub");
  if (!user.empty()) places.push_back(fs::path(user) / ".cache" / "huggingface" / "hub");
  for (const fs::path& place : places) {
    std::string config = config_in_snapshots(place / folder);
    if (!config.empty()) return config;
  }
  return "";
}

}  // namespace oomplan
