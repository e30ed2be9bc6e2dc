#include "catalog/catalog.hpp"
#include "command.hpp"
#include "report/serve_report.hpp"

namespace oomplan::cli {

int run_serve(const Call& call) {
  if (call.positional.empty()) {
    Problem problem;
    problem.found = "no command of a server";
    problem.expected = "oomplan serve -- vllm serve MODEL ...";
    throw InputError(problem);
  }
  const ServeCommand command = read_serve_command(call.positional, call.text("engine-version"), call.text("gpu"), *call.catalog);
  const ServeAnswer found = answer(command, *call.catalog);
  print(call.json ? to_json(found, command) : to_text(found, command, call.style));
  return found.fits() ? kFits : kDoesNotFit;
}

}  // namespace oomplan::cli
