#include "frontends/launch/paths.hpp"

#include <vector>

namespace oomplan::launch {

std::string joined_path(std::string_view folder, std::string_view path) {
  std::string whole(path);
  if (!path.starts_with('/') && !folder.empty()) whole = std::string(folder) + "/" + whole;
  const bool absolute = whole.starts_with('/');
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at < whole.size();) {
    const std::size_t end = std::min(whole.find('/', at), whole.size());
    const std::string_view part = std::string_view(whole).substr(at, end - at);
    at = end + 1;
    if (part.empty() || part == ".") continue;
    if (part == ".." && (absolute ? parts.empty() : false)) continue;
    if (part == ".." && !parts.empty() && parts.back() != "..")
      parts.pop_back();
    else
      parts.push_back(part);
  }
  std::string out = absolute ? "/" : "";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += '/';
    out += parts[i];
  }
  return out.empty() ? "." : out;
}

namespace {

std::string_view without_slashes(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

}  // namespace

std::string folder_of(std::string_view path) {
  path = without_slashes(path);
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(without_slashes(path.substr(0, slash == 0 ? 1 : slash)));
}

std::string last_part(std::string_view path) {
  path = without_slashes(path);
  const std::size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos || path.size() == 1 ? path : path.substr(slash + 1));
}

}  // namespace oomplan::launch
