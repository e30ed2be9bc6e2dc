#include <algorithm>
#include <optional>

#include "command.hpp"
#include "input.hpp"
#include "job/names.hpp"
#include "progress.hpp"

namespace oomplan::cli {
namespace {

std::vector<std::string> pieces(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) out.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return out;
}

/// The job from the file, or the default one for --model and --gpus.
Reading reading_of(const Call& call, std::vector<Problem>& problems) {
  if (!call.positional.empty() || !call.has("model")) {
    if (call.has("model"))
      problems.push_back({.place = {"", 0, 0, "--model"},
                          .found = "together with a job file",
                          .expected = "one of them",
                          .nearest = {},
                          .why = {}});
    if (call.positional.empty())
      problems.push_back({.place = {},
                          .found = "no job",
                          .expected = "oomplan search FILE, or oomplan search --model NAME --gpus N",
                          .nearest = {},
                          .why = {}});
    if (!problems.empty()) throw InputError(problems);
    return read(source_of(call), call.catalog);
  }
  if (!call.has("gpus"))
    problems.push_back({.place = {},
                        .found = "--model without --gpus",
                        .expected = "the number of GPUs, such as --gpus 8",
                        .nearest = {},
                        .why = {}});
  if (!problems.empty()) throw InputError(problems);
  return default_job(call.text("model"), call.number("gpus", 1, 1 << 17, 8), call.has("gpu") ? call.text("gpu") : "H100-80GB",
                     call.catalog);
}

}  // namespace

int run_search(const Call& call) {
  std::vector<Problem> problems;
  Space space;
  for (const auto& word : pieces(call.text("allow"))) {
    const std::optional<Effect> effect = parse<Effect>(word);
    if (!effect)
      problems.push_back(unknown("--allow", word, spellings<Effect>()));
    else
      space.allow = std::max(space.allow, *effect);
  }
  space.maximise = call.text("max");
  const std::vector<std::string> aims{"tokens", "fraction", "concurrency", "length"};
  if (call.has("max") && std::find(aims.begin(), aims.end(), space.maximise) == aims.end())
    problems.push_back(unknown("--max", space.maximise, aims));
  space.fixed = pieces(call.text("fix"));
  std::int64_t keep = 10, show = 0;
  const auto number = [&](const char* option, std::int64_t most, std::int64_t otherwise) {
    try {
      return call.number(option, 1, most, otherwise);
    } catch (const InputError& error) {
      problems.insert(problems.end(), error.problems.begin(), error.problems.end());
      return otherwise;
    }
  };
  keep = number("keep", 10'000, 10);
  show = number("job", 10'000, 0);
  space.threads = static_cast<int>(number("threads", 256, 1));
  const std::int64_t gpus = number("gpus", std::int64_t{1} << 17, 0);
  if (gpus > 0) space.gpus = gpus;

  const Reading reading = reading_of(call, problems);
  const Found found = [&] {
    const Progress progress("searching");
    return search(reading.job, space, static_cast<int>(std::max(keep, show)), call.catalog, progress.token());
  }();
  if (show > 0) {
    if (static_cast<std::size_t>(show) > found.best.size())
      throw InputError(Problem{.place = {"", 0, 0, "--job"},
                               .found = std::to_string(show),
                               .expected = "at most " + std::to_string(found.best.size()) + ": so many configurations were found",
                               .nearest = {},
                               .why = {}});
    print(found.best[static_cast<std::size_t>(show - 1)].job_file);
    return kFits;
  }
  print(call.json ? to_json(found, reading.job) : to_text(found, reading.job, call.style));
  return found.best.empty() ? kDoesNotFit : kFits;
}

}  // namespace oomplan::cli
