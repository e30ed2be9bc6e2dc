// The door of launch scripts.
#include <nlohmann/json.hpp>

#include "checks.hpp"
#include "frontends/launch/commands_json.hpp"
#include "frontends/launched.hpp"

namespace oomplan::fuzz {

void put_script(std::string_view text) {
  const auto parts = parts_of(text, 3);
  Source source{parts[0], "run.sh", "launch"};
  source.arguments = lines_of(parts[1]);
  source.environment = {{"HOME", "/root"}, {"MODEL", "Qwen/Qwen3-8B"}};
  source.open = [&](const std::string& path) -> std::optional<std::string> {
    require(path.find('\0') == std::string::npos, "a path with a zero byte");
    return path.ends_with(".sh") || path.ends_with(".yaml") ? std::optional(parts[2]) : std::nullopt;
  };
  answers([&] {
    const launch::ScriptReading found = commands_of(source);
    check_json(launch::commands_json(found));
    check_text(launch::commands_text(found));
  });
  answers([&] {
    const Reading reading = read(source);
    check_json(to_json(reading.job));
    check_text(to_yaml(reading.job));
  });
}

}  // namespace oomplan::fuzz
