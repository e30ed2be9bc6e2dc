#include <utility>

#include "command.hpp"
#include "input.hpp"

namespace oomplan::cli {
namespace {

int answer(const Call& call, Estimate (*judge)(const Job&, const Catalog*)) {
  Reading reading = read(source_of(call), call.catalog);
  Estimate estimate = judge(reading.job, call.catalog);
  estimate.notes.insert(estimate.notes.begin(), reading.notes.begin(), reading.notes.end());
  if (!estimate.fits() && estimate.remedies.empty()) estimate.remedies = advise(reading.job, Effect::speed, call.catalog);
  print(call.json ? to_json(estimate, reading.job) : to_text(estimate, reading.job, call.style));
  return estimate.fits() ? kFits : kDoesNotFit;
}

}  // namespace

int run_estimate(const Call& call) { return answer(call, estimate); }
int run_explain(const Call& call) { return answer(call, explain); }

}  // namespace oomplan::cli
