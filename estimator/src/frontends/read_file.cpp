#include "frontends/read_file.hpp"

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

std::optional<std::string> text_of_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  return read_file(path).text;
}

}  // namespace oomplan
