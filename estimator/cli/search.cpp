#include <algorithm>
#include <array>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "command.hpp"
#include "frontends/described.hpp"
#include "frontends/dialect.hpp"
#include "input.hpp"
#include "job/limits.hpp"
#include "job/names.hpp"
#include "progress.hpp"

namespace oomplan::cli {
namespace {

constexpr std::array<const char*, 10> kOfStart{"framework", "algorithm", "prompt-tokens", "response-tokens", "samples",
                                               "batch",     "lora",      "reference",     "nodes",           "launch"};

/// Options that say a job need none beside them.
void refuse_beside_a_job(const Call& call, std::vector<Problem>& problems) {
  const auto refuse = [&](const char* option) {
    problems.push_back({{"", 0, 0, std::string("--") + option}, "together with a job", "one of them", {}, {}});
  };
  if (call.has("model") && !names_script(call) && !is_command(call)) refuse("model");
  for (const char* const option : kOfStart)
    if (call.has(option)) refuse(option);
}

/// What is said of a framework's job beside its file.
constexpr std::array<const char*, 3> kBesideFile{"sequence-tokens", "image-size", "linear-attention"};

void refuse_beside_a_model(const Call& call) {
  std::vector<Problem> problems;
  for (const char* const option : kBesideFile)
    if (call.has(option))
      problems.push_back({{"", 0, 0, std::string("--") + option},
                          "together with --model",
                          "FILE, or a command behind --",
                          {},
                          "it says of a framework's own file what that leaves open"});
  if (!problems.empty()) throw InputError(std::move(problems));
}

/// The job that --model, --gpus and their like describe.
Described described_by(const Call& call) {
  refuse_beside_a_model(call);
  StartAsked asked;
  asked.model = call.text("model");
  const GpusAsked gpus = gpus_of(call, 8);
  asked.gpus = gpus.count;
  asked.gpu = gpus.kind;
  const std::string framework(call.has("framework") ? call.text("framework") : "");
  if (call.has("algorithm")) asked.algorithm = algorithm_named(std::string(call.text("algorithm")));
  asked.prompt_tokens = call.number("prompt-tokens", 1, kTokenLimit.most, 0);
  asked.response_tokens = call.number("response-tokens", 1, kTokenLimit.most, 0);
  asked.samples = call.number("samples", 1, 1 << 20, 0);
  asked.batch = call.number("batch", 1, 1 << 24, 0);
  asked.lora = call.number("lora", 1, 4096, 0);
  asked.reference = call.has("reference");
  asked.nodes = call.number("nodes", 1, 1 << 16, 0);
  asked.release = call.text("framework-version");
  if (is_own(framework) || (gpus.count == 1 && framework.empty())) {
    std::vector<Problem> problems;
    for (const char* const option : kOfStart)
      if (call.has(option) && std::string_view(option) != "framework")
        problems.push_back({{"", 0, 0, std::string("--") + option},
                            "without a framework",
                            "--framework areal",
                            {},
                            "our own job file says it by its keys"});
    if (!problems.empty()) throw InputError(std::move(problems));
  }
  return described(framework, asked, *call.catalog);
}

Described begin_of(const Call& call, std::vector<Problem>& problems) {
  if (is_command(call) || !call.positional.empty()) {
    refuse_beside_a_job(call, problems);
    if (!problems.empty()) throw InputError(problems);
    Source source = source_of(call);
    Job job = read(source, call.catalog).job;
    return {std::move(source), std::move(job), {}};
  }
  if (!call.has("model"))
    problems.push_back({{}, "no job", "oomplan search FILE, or oomplan search --model NAME --gpus N", {}, {}});
  else if (!call.has("gpus"))
    problems.push_back({{}, "--model without --gpus", "the number of GPUs, such as --gpus 8", {}, {}});
  if (!problems.empty()) throw InputError(problems);
  return described_by(call);
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

  const std::int64_t diff = number("diff", 10'000, 0), launch = number("launch", 10'000, 0);
  const Described begin = begin_of(call, problems);
  const std::optional<Source>& source = begin.source;
  const Dialect* dialect = source ? &dialect_of(*source) : nullptr;
  if (dialect != nullptr) refuse_server(*dialect);
  // of a command line, and of a job that was described, it is part of the job
  const bool of_the_job = dialect != nullptr && (dialect->command || dialect->takes_gpus);
  if (gpus > 0 && begin.told.empty() && !of_the_job) space.gpus = gpus;
  const Job& job = begin.job;
  Found found = [&] {
    const Progress progress("searching");
    const int most = static_cast<int>(std::max({keep, show, diff, launch}));
    return source ? search(*source, space, most, call.catalog, progress.token())
                  : search(job, space, most, call.catalog, progress.token());
  }();
  if (dialect != nullptr && dialect->words_of_change != nullptr)
    for (auto& candidate : found.best) candidate.overrides = dialect->words_of_change(job, candidate.job);
  for (const auto& [option, n] : {std::pair("--job", show), std::pair("--diff", diff), std::pair("--launch", launch)}) {
    if (n == 0) continue;
    const auto refuse = [&](std::string expected) {
      throw InputError(Problem{{"", 0, 0, option}, std::to_string(n), std::move(expected), {}, {}});
    };
    if (static_cast<std::size_t>(n) > found.best.size())
      refuse("at most " + std::to_string(found.best.size()) + ": so many configurations were found");
    const Candidate& candidate = found.best[static_cast<std::size_t>(n - 1)];
    const std::string& text = option == std::string_view("--diff") ? candidate.diff : candidate.job_file;
    if (text.empty()) refuse("a configuration of a file whose text can be edited so; its overrides say the same");
    print(text);
    return kFits;
  }
  if (!call.json && !begin.told.empty()) print(begin.told + "\n");
  print(call.json ? to_json(found, job) : to_text(found, job, call.style));
  if (!call.json && source && !begin.told.empty() && !found.best.empty())
    print(fmt::format("With `--launch N > {}` the same command writes the file that starts row N.\n",
                      source->script ? source->script->name : source->name));
  if (found.interrupted) return kInterrupted;
  return found.best.empty() ? kDoesNotFit : kFits;
}

}  // namespace oomplan::cli
