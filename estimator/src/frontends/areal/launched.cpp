#include "frontends/areal/launched.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/areal/words.hpp"
#include "frontends/compose/launch.hpp"

namespace oomplan::areal {
namespace {

using launch::EntryPoint;
using EntryKind = launch::Entry::Kind;

/// AReaL v0.3.4 to v1.0.4, docs/tutorial/quickstart.md: a launcher starts a script; later releases start the script itself.
constexpr std::array kPrograms{
    EntryPoint{EntryKind::module, "areal.launcher.*", "", "AReaL", "its launcher", "areal"},
    EntryPoint{EntryKind::module, "areal.infra.launcher.*", "", "AReaL", "its launcher", "areal"},
    EntryPoint{EntryKind::module, "areal.launcher", "", "AReaL", "its launcher", "areal"},
    // whether the file is one of AReaL's is seen when it is read
    EntryPoint{EntryKind::script, "*", "--config", "AReaL", "an entry script of it", "areal", true, true},
};

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

Source take(Handing& handing) {
  const auto& words = handing.words();
  const auto first = words.begin() + static_cast<std::ptrdiff_t>(std::min(handing.first_argument(), words.size()));
  const compose::Launch said = compose::read_launch({first, words.end()});
  std::optional<std::string> text = handing.text_of(said.config_file);
  if (!text) handing.fail(fmt::format("no file {}", said.config_file), "the file that --config names", {});
  Source out = handing.asked();
  out.text = std::move(*text);
  out.name = said.config_file;
  out.overrides.insert(out.overrides.begin(), said.overrides.begin(), said.overrides.end());
  const std::string& script = handing.launch().entry.name;
  if (const std::string other = handing.other_framework(out.text); !other.empty())
    handing.fail(
        {}, {},
        fmt::format("this starts {} with {}, a configuration of {}, which oomplan does not read yet", script, out.name, other));
  if (handing.launch().starts->last_resort && !recognises(out))
    handing.fail({}, {},
                 fmt::format("this starts the script {} with {}, which is no file of AReaL; oomplan does not read it yet", script,
                             out.name));
  out.dialect = "areal";
  return out;
}

}  // namespace oomplan::areal
