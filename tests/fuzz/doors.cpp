#include "doors.hpp"

#include <algorithm>
#include <array>

namespace oomplan::fuzz {
namespace {

constexpr std::array<Door, 10> kDoors{{
    {"job", put_job},
    {"framework", put_framework},
    {"compose", put_compose},
    {"config", put_config},
    {"serve", put_serve},
    {"megatron", put_megatron},
    {"script", put_script, nullptr, 2},  // it is read twice
    {"snapshot", put_snapshot},
    {"c", put_c},
    {"answers", put_answers, change_answers, 6},  // it estimates up to six times
}};

}  // namespace

std::span<const Door> doors() { return kDoors; }

const Door& door(std::string_view name) {
  const auto found = std::find_if(kDoors.begin(), kDoors.end(), [&](const Door& d) { return d.name == name; });
  if (found == kDoors.end()) throw std::out_of_range("no door '" + std::string(name) + "'");
  return *found;
}

}  // namespace oomplan::fuzz
