#include "catalog/catalog.hpp"
#include "command.hpp"
#include "frontends/read_file.hpp"
#include "job/limits.hpp"
#include "report/serve_report.hpp"

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

}  // namespace

int run_serve(const Call& call) {
  if (call.positional.empty()) {
    Problem problem;
    problem.found = "no command of a server";
    problem.expected = "oomplan serve -- vllm serve MODEL ...";
    throw InputError(problem);
  }
  const ServeCommand command = read_serve_command(call.positional, options_of(call), *call.catalog);
  const ServeAnswer found = answer(command, *call.catalog);
  print(call.json ? to_json(found, command) : to_text(found, command, call.style));
  return found.fits() ? kFits : kDoesNotFit;
}

}  // namespace oomplan::cli
