#include "frontends/handing.hpp"

#include <algorithm>
#include <utility>

#include "frontends/dialect.hpp"
#include "frontends/launch/paths.hpp"

namespace oomplan {

Place shown_place(Place place) {
  if (place.file == kCommandName) place.line = 0;
  return place;
}

Handing::Handing(const launch::Launch& launch, const Source& asked, const launch::ScriptReading& reading, const std::string& salt)
    : launch_(launch), asked_(asked), reading_(reading), placeholders_(reading.unknowns, salt) {
  first_ = launch.first;
  for (std::size_t i = 0; i < launch.argv.size(); ++i) {
    if (!launch.argv[i].vanishes) {
      words_.push_back(placeholders_.text(launch.argv[i].text));
      continue;
    }
    gone_.push_back(launch.argv[i].text);
    if (i < launch.first) --first_;
  }
}

bool Handing::has(std::string_view flag) const {
  return std::any_of(words_.begin(), words_.end(), [&](const std::string& word) {
    std::string name = word.substr(0, word.find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    return name == flag;
  });
}

std::vector<std::string> Handing::variables(const std::vector<std::string_view>& wanted) {
  std::vector<std::string> out;
  for (const auto& [name, value] : launch_.environment) {
    const bool asked = std::any_of(wanted.begin(), wanted.end(),
                                   [&](std::string_view w) { return w.ends_with('_') ? name.starts_with(w) : name == w; });
    if (asked) out.push_back(name + "=" + placeholders_.text(value));
  }
  return out;
}

std::optional<std::string> Handing::text_of(const std::string& path) const {
  const std::string folder = launch_.place.file == kCommandName ? std::string() : launch::bytes_of(launch_.folder);
  const auto made = reading_.written.find(launch::text_of(launch::joined_path(folder, path)));
  if (made != reading_.written.end()) return launch::bytes_of(made->second);
  if (!asked_.open) return std::nullopt;
  return asked_.open(folder.empty() || folder == asked_.folder ? path : launch::joined_path(folder, path));
}

std::string Handing::other_framework(std::string_view text) const { return unread_framework_of(text); }

Place Handing::place() const { return shown_place(launch_.place); }

void Handing::fail(std::string found, std::string expected, std::string why) const {
  throw InputError(Problem{place(), std::move(found), std::move(expected), {}, std::move(why)});
}

Source Handing::asked() const {
  Source out;
  out.overrides = asked_.overrides;
  out.gpu = asked_.gpu;
  out.framework_version = asked_.framework_version;
  out.host_memory = asked_.host_memory;
  out.sequence_tokens = asked_.sequence_tokens;
  out.image_size = asked_.image_size;
  out.linear_attention = asked_.linear_attention;
  out.open = asked_.open;
  out.name = asked_.command.empty() ? asked_.name : kCommandName;
  for (const auto& [name, value] : launch_.environment)
    if (launch::is_known(value)) out.environment[name] = launch::bytes_of(value);
  for (const auto& [name, value] : asked_.environment) out.environment.emplace(name, value);
  return out;
}

bool Handing::states_gpus() const {
  return std::any_of(asked_.overrides.begin(), asked_.overrides.end(),
                     [](const std::string& o) { return o.starts_with("gpus="); });
}

}  // namespace oomplan
