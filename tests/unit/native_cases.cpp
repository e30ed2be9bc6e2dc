// Reads every tests/cases/*.case whose command is `read` and compares the messages, without the program.
// The format is described in tests/cases/README.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include <oomplan/oomplan.hpp>

using namespace oomplan;

namespace {

struct Case {
  std::vector<std::string> command;
  std::map<std::string, std::string> files;
  int exit = 0;
  std::string errors;
};

std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && text[i + 1] == 'x') {
      out += static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

Case read_case(const std::filesystem::path& path) {
  Case out;
  std::ifstream in(path, std::ios::binary);
  std::string line, section, mode, name;
  const auto finish = [&] {
    if (section != "file") return;
    std::string& text = out.files[name];
    if (!mode.empty() && text.ends_with('\n')) text.pop_back();
    if (mode == "escaped") text = unescaped(text);
  };
  while (std::getline(in, line)) {
    if (line.starts_with("--- ")) {
      finish();
      std::istringstream words(line.substr(4));
      section = name = mode = {};
      words >> section >> name >> mode;
      if (section == "file") out.files[name];
    } else if (section == "command") {
      std::istringstream words(line);
      out.command.assign(std::istream_iterator<std::string>(words), {});
    } else if (section == "file") {
      out.files[name] += line + "\n";
    } else if (section == "exit") {
      out.exit = std::stoi(line);
    } else if (section == "stderr") {
      out.errors += line + "\n";
    }
  }
  finish();
  return out;
}

}  // namespace

TEST_CASE("wrong input is answered with exactly the expected words") {
  int checked = 0;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(OOMPLAN_SOURCE_DIR) / "tests/cases"))
    if (entry.path().extension() == ".case") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const auto& path : paths) {
    const Case c = read_case(path);
    if (c.command.size() < 2 || c.command[0] != "read" || !c.files.contains(c.command[1])) continue;
    CAPTURE(path.filename().string());
    Source source{c.files.at(c.command[1]), c.command[1], {}, {c.command.begin() + 2, c.command.end()}};
    std::string errors;
    int status = 0;
    try {
      read(source);
    } catch (const InputError& e) {
      status = 2;
      for (const auto& problem : e.problems) errors += "oomplan: " + to_text(problem) + "\n";
    }
    CHECK(status == c.exit);
    if (c.exit != 0) CHECK(errors == c.errors);  // of a job that is taken it is the notes that are written there
    ++checked;
  }
  CHECK(checked >= 100);
}
