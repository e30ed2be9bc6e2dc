#include "frontends/areal/devices.hpp"

#include <array>

#include <fmt/format.h>

namespace oomplan::areal {
namespace {

/// HCCL is their NCCL, Ascend their maker (areal/infra/platforms/npu.py).
bool only_of_npus(std::string_view key) {
  constexpr std::array<std::string_view, 3> kPrefixes{"HCCL_", "ASCEND_", "PYTORCH_NPU_"};
  for (const std::string_view prefix : kPrefixes)
    if (key.starts_with(prefix)) return true;
  return false;
}

struct Found {
  Place place;
  std::string key;
};
std::optional<Found> sign_in(const compose::Node& n, const std::string& path) {
  for (const auto& entry : n.entries) {
    const std::string here = path.empty() ? entry.key : path + "." + entry.key;
    if (only_of_npus(entry.key)) {
      Place place = entry.place;
      place.path = here;
      return Found{std::move(place), entry.key};
    }
    if (auto below = sign_in(entry.value, here)) return below;
  }
  for (std::size_t i = 0; i < n.items.size(); ++i)
    if (auto below = sign_in(n.items[i], fmt::format("{}.{}", path, i))) return below;
  return std::nullopt;
}

}  // namespace

std::optional<Note> npu_note(const compose::Node& composed, const std::string& file, const std::string& gpu) {
  std::optional<Found> found = sign_in(composed, "");
  std::string by;
  if (found) {
    by = found->key;
  } else if (file.find("npu") != std::string::npos) {
    found = Found{{file, 0, 0, {}}, {}};
    by = "its name";
  } else {
    return std::nullopt;
  }
  if (found->place.file.empty()) found->place.file = file;
  return Note{
      Note::Level::warning, std::move(found->place),
      fmt::format("{} says that the file is for NPUs: the answer is for {}, with CUDA's kernels and AReaL's compiled loss, "
                  "neither of which NPUs have",
                  by, gpu)};
}

}  // namespace oomplan::areal
