#include "report/frame_text.hpp"

#include <fmt/format.h>

#include "report/format.hpp"

namespace oomplan {
namespace {

/// The last two parts of a path: a table has no room for more.
std::string short_path(const std::string& path) {
  const auto name = path.find_last_of("/\\");
  if (name == std::string::npos || name == 0) return path;
  const auto folder = path.find_last_of("/\\", name - 1);
  return folder == std::string::npos ? path : path.substr(folder + 1);
}

}  // namespace

std::string frame_text(const snapshot::Frame* frame) {
  if (frame == nullptr) return "not recorded";
  if (frame->line == 0 || frame->file.empty()) return printable(frame->function);
  return printable(fmt::format("{}:{} {}", short_path(frame->file), frame->line, frame->function));
}

}  // namespace oomplan
