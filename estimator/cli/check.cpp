#include "estimate/check.hpp"

#include "command.hpp"
#include "input.hpp"
#include "report/check_report.hpp"

namespace oomplan::cli {

int run_check(const Call& call) {
  refuse_without_command(call);
  const Reading reading = read(source_of(call), call.catalog);
  const Check found = check(reading.job, call.catalog);
  print(call.json ? to_json(found) : to_text(found) + "\n");
  return found.fits() ? kFits : kDoesNotFit;
}

}  // namespace oomplan::cli
