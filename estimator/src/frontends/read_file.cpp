#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>

#include "frontends/native.hpp"
#include "frontends/yaml.hpp"

namespace oomplan {
namespace {

[[noreturn]] void refuse(const std::string& path, std::string found, std::string why = {}) {
  throw InputError({{path, 0, 0, {}}, std::move(found), "a job file", {}, std::move(why)});
}

/// At most one byte more than a job file may have: reading stops there, whatever the file is.
std::string all_of(std::istream& in) {
  std::string out;
  char buffer[1 << 16];
  while (out.size() <= yaml::kMostBytes && in.read(buffer, sizeof buffer)) out.append(buffer, sizeof buffer);
  if (out.size() <= yaml::kMostBytes) out.append(buffer, static_cast<std::size_t>(in.gcount()));
  return out;
}

}  // namespace

Source read_file(const std::string& path) {
  if (path == "-") return {all_of(std::cin), "standard input", {}, {}};
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (path.empty() || !std::filesystem::exists(status)) refuse(path.empty() ? "''" : path, "no such file");
  if (std::filesystem::is_directory(status)) refuse(path, "a directory");
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, "a file that cannot be opened");
  return {all_of(in), path, {}, {}};
}

}  // namespace oomplan
