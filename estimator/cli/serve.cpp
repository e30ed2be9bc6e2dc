#include "catalog/catalog.hpp"
#include "command.hpp"
#include "frontends/read_file.hpp"
#include "input.hpp"
#include "job/limits.hpp"
#include "report/serve_report.hpp"
#include "report/serve_search.hpp"

namespace oomplan::cli {
namespace {

ServeOptions options_of(const Call& call) {
  ServeOptions out;
  out.version = call.text("engine-version");
  out.gpu = call.text("gpu");
  out.requests = call.number("requests", 1, kRequestLimit.most, 0);
  out.prompt = call.number("prompt", 1, kTokenLimit.most, 0);
  out.response = call.number("response", 1, kTokenLimit.most, 0);
  out.samples = call.number("samples", 1, kRequestLimit.most, 0);
  out.open = [](const std::string& path) { return text_of_file(path); };
  return out;
}

int run_search_of(const Call& call, const ServeCommand& command) {
  Space space;
  space.allow = effects_of(call);
  space.fixed = pieces(call.text("fix"));
  space.min_probability = call.share("min-probability", space.min_probability);
  const ServeFound found = search_command(command, space, static_cast<int>(call.number("keep", 1, 1000, 5)), *call.catalog);
  print(call.json ? to_json(found, command) : to_text(found, command, call.style));
  return found.found.best.empty() ? kDoesNotFit : kFits;
}

/// Words of a search that is not asked for.
void refuse_alone(const Call& call) {
  std::vector<Problem> problems;
  for (const char* const option : {"keep", "allow", "fix", "min-probability"})
    if (call.has(option)) {
      Problem problem;
      problem.place.path = std::string("--") + option;
      problem.found = "without --search";
      problem.expected = "both or neither";
      problems.push_back(problem);
    }
  if (!problems.empty()) throw InputError(problems);
}

}  // namespace

int run_serve(const Call& call) {
  if (call.positional.empty()) {
    Problem problem;
    problem.found = "no command of a server";
    problem.expected = "oomplan serve -- vllm serve MODEL ...";
    throw InputError(problem);
  }
  const ServeCommand command = read_serve_command(call.positional, options_of(call), *call.catalog);
  if (call.has("search")) return run_search_of(call, command);
  refuse_alone(call);
  const ServeAnswer found = answer(command, *call.catalog);
  print(call.json ? to_json(found, command) : to_text(found, command, call.style));
  return found.fits() ? kFits : kDoesNotFit;
}

}  // namespace oomplan::cli
