#include <algorithm>
#include <optional>
#include <thread>

#include "command.hpp"
#include "frontends/dialect.hpp"
#include "input.hpp"
#include "job/names.hpp"
#include "progress.hpp"

namespace oomplan::cli {
namespace {

/// Without a file: the default job for --model and --gpus.
std::optional<Job> default_of(const Call& call, std::vector<Problem>& problems) {
  if (is_command(call)) return std::nullopt;
  if (!call.positional.empty() || !call.has("model")) {
    if (call.has("model") && !names_script(call))
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
    return std::nullopt;
  }
  if (!call.has("gpus"))
    problems.push_back({.place = {},
                        .found = "--model without --gpus",
                        .expected = "the number of GPUs, such as --gpus 8",
                        .nearest = {},
                        .why = {}});
  if (!problems.empty()) throw InputError(problems);
  const GpusAsked asked = gpus_of(call, 8);
  return default_job(call.text("model"), asked.count, asked.kind.empty() ? "H100-80GB" : asked.kind, call.catalog).job;
}

/// The flags of a server are searched by another command, which writes them into its words.
void refuse_server(const Dialect& dialect) {
  if (dialect.command && dialect.words_of_change == nullptr)
    throw InputError(Problem{{"", 0, 0, "--"}, "a server's command", "oomplan serve --search -- COMMAND", {}, {}});
}

}  // namespace

int run_search(const Call& call) {
  std::vector<Problem> problems;
  Space space;
  try {
    space.allow = effects_of(call);
  } catch (const InputError& error) {
    problems = error.problems;
  }
  space.maximise = call.text("max");
  const std::vector<std::string> aims{"tokens", "fraction", "concurrency", "length"};
  if (call.has("max") && std::find(aims.begin(), aims.end(), space.maximise) == aims.end())
    problems.push_back(unknown("--max", space.maximise, aims));
  space.fixed = pieces(call.text("fix"));
  try {
    space.min_probability = call.share("min-probability", space.min_probability);
  } catch (const InputError& error) {
    problems.insert(problems.end(), error.problems.begin(), error.problems.end());
  }
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
  space.threads = static_cast<int>(number("threads", 256, std::clamp<std::int64_t>(std::thread::hardware_concurrency(), 1, 256)));
  std::int64_t gpus = 0;
  try {
    gpus = gpus_of(call, 0).count;
  } catch (const InputError& error) {
    problems.insert(problems.end(), error.problems.begin(), error.problems.end());
  }

  const std::int64_t diff = number("diff", 10'000, 0);
  const std::optional<Job> start = default_of(call, problems);
  const std::optional<Source> source = start ? std::nullopt : std::optional(source_of(call));
  const Dialect* dialect = source ? &dialect_of(*source) : nullptr;
  if (dialect != nullptr) refuse_server(*dialect);
  if (gpus > 0 && !(dialect != nullptr && dialect->command)) space.gpus = gpus;  // of a command line it is part of the job
  const Job job = start ? *start : read(*source, call.catalog).job;
  Found found = [&] {
    const Progress progress("searching");
    const int most = static_cast<int>(std::max({keep, show, diff}));
    return source ? search(*source, space, most, call.catalog, progress.token())
                  : search(job, space, most, call.catalog, progress.token());
  }();
  if (dialect != nullptr && dialect->words_of_change != nullptr)
    for (auto& candidate : found.best) candidate.overrides = dialect->words_of_change(job, candidate.job);
  for (const auto& [option, n] : {std::pair("--job", show), std::pair("--diff", diff)}) {
    if (n == 0) continue;
    const auto refuse = [&](std::string expected) {
      throw InputError(Problem{{"", 0, 0, option}, std::to_string(n), std::move(expected), {}, {}});
    };
    if (static_cast<std::size_t>(n) > found.best.size())
      refuse("at most " + std::to_string(found.best.size()) + ": so many configurations were found");
    const Candidate& candidate = found.best[static_cast<std::size_t>(n - 1)];
    const std::string& text = option == std::string_view("--job") ? candidate.job_file : candidate.diff;
    if (text.empty()) refuse("a configuration of a file whose text can be edited so; its overrides say the same");
    print(text);
    return kFits;
  }
  print(call.json ? to_json(found, job) : to_text(found, job, call.style));
  if (found.interrupted) return kInterrupted;
  return found.best.empty() ? kDoesNotFit : kFits;
}

}  // namespace oomplan::cli
