#include "input.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>

#include "command.hpp"

namespace oomplan::cli {
namespace {

constexpr std::size_t kMost = std::size_t{8} << 20;  // bytes; the longest job files seen have 40 kB

[[noreturn]] void refuse(const std::string& path, const std::string& found, const std::string& expected, const std::string& why) {
  Problem problem;
  problem.place.file = path;
  problem.found = found;
  problem.expected = expected;
  problem.why = why;
  throw InputError(problem);
}

std::string drained(std::FILE* file, const std::string& path) {
  std::string text;
  std::array<char, 65536> block;
  for (std::size_t n = 0; (n = std::fread(block.data(), 1, block.size(), file)) > 0;) {
    text.append(block.data(), n);
    if (text.size() > kMost) refuse(path, "more than 8 MiB", "a job file", "");
  }
  if (std::ferror(file) != 0) refuse(path, "", "", "cannot be read: " + std::generic_category().message(errno));
  return text;
}

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

std::string file_text(const std::string& path) {
  if (path.empty()) refuse(path, "an empty file name", "the path of a job file", "");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse(path, "a folder", "a file", "");
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) refuse(path, "", "", "cannot be opened: " + std::generic_category().message(errno));
  return drained(file.get(), path);
}

Source source_of(const std::vector<std::string>& positional) {
  if (positional.empty()) refuse("", "no job file", "oomplan COMMAND FILE [key=value ...], or - for standard input", "");
  Source source;
  const std::string& path = positional[0];
  std::error_code error;
  if (path.find('=') != std::string::npos && !std::filesystem::exists(path, error))
    refuse("", "'" + path + "' first", "the job file before the overrides", "");
  source.name = path == "-" ? "<stdin>" : path;
  source.text = path == "-" ? drained(stdin, source.name) : file_text(path);
  source.overrides.assign(positional.begin() + 1, positional.end());
  return source;
}

}  // namespace oomplan::cli
