#include "frontends/compose/files.hpp"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>

namespace oomplan::compose {
namespace {

constexpr std::size_t kMostFiles = 200;
constexpr std::string_view kEnding = ".yaml";

}  // namespace

Files in_memory(std::map<std::string, std::string> texts) {
  const auto shared = std::make_shared<const std::map<std::string, std::string>>(std::move(texts));
  Files out;
  out.read = [shared](const std::string& path) -> std::optional<std::string> {
    const auto it = shared->find(path);
    return it == shared->end() ? std::nullopt : std::optional(it->second);
  };
  out.list = [shared](const std::string& folder) -> std::optional<std::vector<std::string>> {
    const std::string prefix = folder.empty() || folder == "." ? "" : folder + "/";
    std::set<std::string> names;
    for (const auto& [path, text] : *shared)
      if (path.starts_with(prefix)) names.insert(path.substr(prefix.size(), path.find('/', prefix.size()) - prefix.size()));
    if (names.empty()) return std::nullopt;
    return std::vector<std::string>(names.begin(), names.end());
  };
  return out;
}

std::string join_path(const std::string& folder, const std::string& name) {
  const std::size_t scheme = folder.find("://");
  if (scheme != std::string::npos) return folder.substr(0, scheme + 3) + join_path(folder.substr(scheme + 3), name);
  std::string out = (std::filesystem::path(folder) / name).lexically_normal().generic_string();
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out == "." ? "" : out;
}

const Document* Repository::load(const std::string& config) {
  const auto [it, fresh] = loaded_.try_emplace(config);
  if (!fresh) return it->second.get();
  const std::string name = config.ends_with(kEnding) ? config : config + std::string(kEnding);
  for (const auto& folder : folders_) {
    const std::string path = join_path(folder, name);
    const auto text = files_.read ? files_.read(path) : std::nullopt;
    if (!text) continue;
    opened_.push_back(path);
    if (opened_.size() > kMostFiles)
      throw InputError({{path, 0, 0, {}}, fmt::format("more than {} files", kMostFiles), "a configuration", {}, {}});
    it->second =
        documents_ != nullptr ? documents_->get(*text, path) : std::make_shared<const Document>(read_document(*text, path));
    return it->second.get();
  }
  return nullptr;
}

bool Repository::has_group(const std::string& group, const std::vector<std::string>& options) {
  for (const auto& folder : folders_) {
    if (files_.list) {
      if (files_.list(join_path(folder, group))) return true;
      continue;
    }
    for (const auto& option : options)
      if (files_.read && files_.read(join_path(folder, group + "/" + option + std::string(kEnding)))) return true;
  }
  return false;
}

std::vector<std::string> Repository::options(const std::string& group) const {
  std::set<std::string> out;
  for (const auto& folder : folders_) {
    const auto names = files_.list ? files_.list(join_path(folder, group)) : std::nullopt;
    if (!names) continue;
    for (const auto& name : *names)
      if (name.ends_with(kEnding)) out.insert(name.substr(0, name.size() - kEnding.size()));
  }
  return {out.begin(), out.end()};
}

}  // namespace oomplan::compose
