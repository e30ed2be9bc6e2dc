// Doors of files that say a job.
#include <map>

#include <nlohmann/json.hpp>

#include "checks.hpp"
#include "frontends/compose/launch.hpp"
#include "frontends/write.hpp"
#include "job/knobs.hpp"

namespace oomplan::fuzz {
namespace {

/// What was read can be written, and is read again as the same.
void check_reading(const Reading& reading) {
  for (const Note& note : reading.notes) require(!note.text.empty(), "a note without words");
  const std::string yaml = to_yaml(reading.job);
  check_text(yaml);
  check_text(to_annotated_yaml(reading.job));
  check_json(to_json(reading.job));
  require(same_settings(read(Source{yaml, "again.yaml"}).job, reading.job), "a job that is another one when it is read again");
}

}  // namespace

void put_job(std::string_view text) {
  const auto parts = parts_of(text, 2);
  Source source{parts[0], "job.yaml"};
  source.overrides = lines_of(parts[1]);
  answers([&] { check_reading(read(source)); });
}

void put_framework(std::string_view text) {
  const auto parts = parts_of(text, 3);
  Source source{parts[0], "job.yaml"};
  source.overrides = lines_of(parts[1]);
  // a first override such as "version=1.0.4" says the release
  if (!source.overrides.empty() && source.overrides[0].starts_with("version=")) {
    source.framework_version = source.overrides[0].substr(8);
    source.overrides.erase(source.overrides.begin());
  }
  source.environment = {{"HOME", "/home/me"}, {"N", "8"}};
  source.open = [&](const std::string& path) {
    return path.find("beside") == std::string::npos ? std::nullopt : std::optional(parts[2]);
  };
  answers([&] { check_json(facts_json(source)); });
  answers([&] {
    const Reading reading = read(source);
    check_reading(reading);
    check_json(to_json(reading.job));
  });
}

void put_compose(std::string_view text) {
  const auto parts = parts_of(text, 3);
  compose::Request request;
  request.config = "main";
  request.overrides = lines_of(parts[1]);
  request.files = compose::in_memory({{"main.yaml", parts[0]}, {"group/beside.yaml", parts[2]}, {"beside.yaml", parts[2]}});
  const compose::Environment environment{{"A", "1"}, {"B", "text"}};
  const auto check = [](const std::vector<Problem>& problems) {
    if (!problems.empty()) check_problems(InputError(problems).problems);
  };
  const compose::Composed composed = compose::compose(request);
  check(composed.problems);
  check(composed.warnings);
  check(compose::resolve(composed.root, environment).problems);
  check(compose::load_with_dotlist(parts[0], "main.yaml", request.overrides, environment).problems);
}

}  // namespace oomplan::fuzz
