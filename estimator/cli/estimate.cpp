#include <utility>

#include "command.hpp"
#include "frontends/rewrite.hpp"
#include "input.hpp"

namespace oomplan::cli {
namespace {

int answer(const Call& call, Estimate (*judge)(const Job&, const Catalog*)) {
  const Source source = source_of(call);
  Reading reading = read(source, call.catalog);
  Estimate estimate = judge(reading.job, call.catalog);
  estimate.notes.insert(estimate.notes.begin(), reading.notes.begin(), reading.notes.end());
  const bool told = !estimate.remedies.empty();
  if (is_areal(source) && (told || !estimate.fits()))
    estimate.remedies = advise(source, Effect::speed, call.catalog).remedies;  // in the words of the file
  else if (!told && !estimate.fits())
    estimate.remedies = advise(reading.job, Effect::speed, call.catalog);
  print(call.json ? to_json(estimate, reading.job) : to_text(estimate, reading.job, call.style));
  return estimate.fits() ? kFits : kDoesNotFit;
}

}  // namespace

int run_estimate(const Call& call) { return answer(call, estimate); }
int run_explain(const Call& call) { return answer(call, explain); }

}  // namespace oomplan::cli
