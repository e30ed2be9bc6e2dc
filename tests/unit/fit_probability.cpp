// P(fit): Student's distribution against tables, the predictive distribution by hand, and what every example says.
#include <doctest/doctest.h>

#include <cmath>

#include <oomplan/oomplan.hpp>

#include "estimate/fit_probability.hpp"
#include "estimate/student_t.hpp"
#include "estimate_jobs.hpp"

using namespace oomplan;

namespace {

constexpr Bytes kNeeded = 100'000'000'000;

/// Of a card that is `log_ratio` larger than what is needed, in ln.
double probability(const MeasuredErrors& errors, double log_ratio) {
  return errors.fit_probability(kNeeded, static_cast<Bytes>(std::llround(static_cast<double>(kNeeded) * std::exp(log_ratio))));
}

}  // namespace

TEST_CASE("P(fit): Student's distribution is that of the tables") {
  // One-sided quantiles, e.g. NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
  CHECK(student_t_below(0, 7) == doctest::Approx(0.5));
  CHECK(student_t_below(6.314, 1) == doctest::Approx(0.95).epsilon(1e-4));
  CHECK(student_t_below(2.920, 2) == doctest::Approx(0.95).epsilon(1e-4));
  CHECK(student_t_below(3.747, 4) == doctest::Approx(0.99).epsilon(1e-4));
  CHECK(student_t_below(1.812, 10) == doctest::Approx(0.95).epsilon(1e-4));
  CHECK(student_t_below(-1.729, 19) == doctest::Approx(0.05).epsilon(1e-3));
  CHECK(student_t_below(1.960, 100'000) == doctest::Approx(0.975).epsilon(1e-4));
}

TEST_CASE("P(fit): within the measured cases their share, outside it Student's tail") {
  const MeasuredErrors errors({0.02, -0.03, 0.10, 0.0});
  CHECK(probability(errors, -0.01) == doctest::Approx(1.5 / 5));
  CHECK(probability(errors, 0.01) == doctest::Approx(2.5 / 5));
  CHECK(probability(errors, 0.05) == doctest::Approx(3.5 / 5));
  // Past the largest error a tenth is left; mean 0.0225, deviation 0.05560, with four cases 0.06216: t(0.1) = 1.2467 and
  // t(0.4) = 6.0731, three degrees of freedom.
  const double beyond = student_t_below(-6.0731, 3) / student_t_below(-1.2467, 3);
  CHECK(probability(errors, 0.4) == doctest::Approx(1 - 0.1 * beyond).epsilon(1e-4));
  CHECK(probability(errors, 0.1001) == doctest::Approx(0.9).epsilon(1e-3));
  CHECK(probability(errors, -0.0301) == doctest::Approx(0.1).epsilon(1e-2));
}

TEST_CASE("P(fit): equal errors have no tail") {
  const MeasuredErrors equal({0.01, 0.01, 0.01});
  CHECK(probability(equal, 0) == doctest::Approx(0.5 / 4));
  CHECK(probability(equal, 0.5) == doctest::Approx(3.5 / 4));
}

TEST_CASE("P(fit): it grows with the card and stays a probability") {
  const MeasuredErrors far_out({-0.001, 0.0, 0.0005, 0.001, 0.002, 0.7}), few({-0.05, 0.15});
  for (const auto* errors : {&far_out, &few}) {
    double before = 0;
    for (int step = -300; step <= 300; ++step) {
      const double p = probability(*errors, step / 100.0);
      CHECK(p >= before);
      CHECK(p <= 1);
      before = p;
    }
    CHECK(before > 0.9);
  }
}

TEST_CASE("P(fit): a role without measurements of its own has those of its engine, or of all") {
  Role role;
  role.engine = EngineKind::fsdp2;
  role.trainer.kernels = Kernels::torchtitan;
  const Bytes little_more = kNeeded / 100 * 102;
  const auto own = fit_probability(role, kNeeded, little_more);
  role.trainer.kernels = Kernels::hf_sdpa;
  const auto of_engine = fit_probability(role, kNeeded, little_more);
  role.engine = EngineKind::ddp;
  const auto of_all = fit_probability(role, kNeeded, little_more);
  REQUIRE(own.has_value());
  REQUIRE(of_engine.has_value());
  REQUIRE(of_all.has_value());
  CHECK(*own == *of_engine);  // torchtitan's are all there are under FSDP2
  CHECK(*of_all < *own);      // other engines were missed by more
  CHECK(fit_probability(role, kNeeded, 0) == 0.0);
  CHECK(!fit_probability(role, 0, kNeeded).has_value());
}

TEST_CASE("P(fit): every example that is replayed has one, on the side of its verdict") {
  for (const auto& example : example_jobs()) {
    CAPTURE(example.name);
    const Job job = job_of(example.text);
    const Estimate e = estimate(job);
    if (!e.replayed) continue;
    REQUIRE(e.fit_probability.has_value());
    CHECK(*e.fit_probability >= 0);
    CHECK(*e.fit_probability <= 1);
    for (const auto& gpu : e.gpus) CHECK(gpu.fit_probability.value_or(2) >= *e.fit_probability);
    if (!e.fits()) CHECK(*e.fit_probability < 0.7);
    CHECK(!estimate_quick(job).fit_probability.has_value());
  }
}
