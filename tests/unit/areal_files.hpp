// Examples of AReaL files, with arguments, and what is said of them.
#pragma once
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <oomplan/oomplan.hpp>

namespace oomplan::areal_files {

inline std::string file(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(std::string(OOMPLAN_SOURCE_DIR) + "/examples/areal/" + name).rdbuf();
  return text.str();
}

inline Source source(const std::string& name, std::string release, std::vector<std::string> overrides = {}) {
  Source s;
  s.text = file(name);
  s.name = name;
  s.framework_version = std::move(release);
  s.overrides = std::move(overrides);
  s.gpu = "H100-80GB";
  s.open = [](const std::string& path) -> std::optional<std::string> {
    std::string text = file(path);
    return text.empty() ? std::nullopt : std::optional(text);
  };
  return s;
}

/// Everything that is wrong, one line each.
inline std::string refusal(const Source& s) {
  try {
    read(s);
  } catch (const InputError& e) {
    std::string out;
    for (const auto& p : e.problems) out += to_text(p) + "\n";
    return out;
  }
  return "";
}

/// Highest need of a phase over all GPUs.
inline Bytes need(const Estimate& e, std::string_view phase) {
  Bytes most = 0;
  for (const auto& gpu : e.gpus)
    for (const auto& m : gpu.phases)
      if (m.phase == phase) most = std::max(most, m.usage.capacity_needed);
  return most;
}

inline std::string worst_phase(const Estimate& e) { return e.gpus.at(0).phases.at(e.gpus.at(0).worst).phase; }

inline bool notes_say(const std::vector<Note>& notes, std::string_view words) {
  for (const auto& n : notes)
    if (n.text.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace oomplan::areal_files
