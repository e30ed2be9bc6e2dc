#include "search/megatron_search.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "estimate/explain.hpp"
#include "job/follow.hpp"
#include "job/knobs.hpp"
#include "job/names.hpp"
#include "job/validate.hpp"
#include "layout/letters.hpp"
#include "search/admit.hpp"
#include "search/solve.hpp"
#include "units/interruption.hpp"

namespace oomplan {
namespace {

constexpr int kTriesOfALayout = 3;  ///< estimates of one layout before the next one has its turn
constexpr int kTriesInAll = 48;     ///< an estimate takes milliseconds a stage

Job on_gpus(const Job& job, const Space& space) {
  Job out = job;
  if (!space.gpus) return out;
  out.cluster.gpus = *space.gpus;
  if (!written(job, "gpus_per_node")) out.cluster.gpus_per_node = std::min<std::int64_t>(8, *space.gpus);
  return out;
}

class MegatronSearcher {
 public:
  MegatronSearcher(const Job& from, const Space& space, const Catalog& catalog, const std::stop_token& stop)
      : from_(from),
        job_(on_gpus(from, space)),
        catalog_(catalog),
        stop_(stop),
        role_(job_.roles.front()),
        bound_(job_, role_, catalog),
        axes_(megatron_axes(job_, role_, space)),
        batch_(megatron_batch(job_, role_, space)),
        usable_(catalog.gpu(job_.cluster.gpu).usable - job_.cluster.others),
        min_probability_(space.min_probability) {}

  Found run(int keep) {
    const MegatronJudged judged = judge_megatron(axes_, bound_, job_.cluster.gpus, batch_, usable_, stop_);
    Found found;
    found.judged = judged.points;
    until_interrupted(stop_, [&] { take_best(judged.candidates, keep, found); });
    if (fastest_ > 0) found.unlikely_step_time = left_out_ / fastest_;
    if (found.best.empty() && !stop_.stop_requested()) explain_nothing(judged, found);
    return found;
  }

 private:
  Job job_of(const MegatronCandidate& c) const {
    Job out = job_;
    put_megatron(axes_.splits[c.split], axes_.ranks[c.ranks], axes_.recompute[c.recompute], c.data, batch_,
                 out.roles.front().trainer);
    return out;
  }
  /// Fastest first; a layout that was taken, or failed often enough, makes room for the others.
  void take_best(const std::vector<MegatronCandidate>& candidates, int keep, Found& found) {
    using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
    std::map<Shape, int> tries;
    std::set<Shape> taken;
    for (const auto& c : candidates) {
      if (static_cast<int>(found.best.size()) >= keep || found.estimated >= kTriesInAll || stop_.stop_requested()) return;
      const MegatronRanks& r = axes_.ranks[c.ranks];
      const Shape layout{r.tensor, r.context, r.expert, r.expert_tensor, axes_.splits[c.split].pipeline};
      if (taken.contains(layout) || tries[layout] >= kTriesOfALayout) continue;
      ++tries[layout];
      ++found.estimated;
      if (take(c, found)) taken.insert(layout);
    }
  }
  bool take(const MegatronCandidate& c, Found& found) {
    Candidate out;
    out.job = job_of(c);
    try {
      if (!problems(out.job, catalog_).empty()) return false;
      auto e = explain_worst_if_it_fits(out.job, catalog_, store_, processes_);
      if (!e || !e->fits()) return false;
      out.estimate = *std::move(e);
    } catch (const InputError&) {  // what the layers themselves refuse
      return false;
    }
    ++found.fitting;
    if (out.estimate.fit_probability.value_or(1) < min_probability_) {
      ++found.unlikely;
      left_out_ = left_out_ > 0 ? std::min(left_out_, c.seconds) : c.seconds;
      return false;
    }
    describe_changes(from_, out);
    if (found.best.empty()) fastest_ = c.seconds;
    out.relative_step_time = fastest_ > 0 ? c.seconds / fastest_ : 1;
    found.best.push_back(std::move(out));
    return true;
  }
  void explain_nothing(const MegatronJudged& judged, Found& found) const {
    const std::string key = role_.name + ".layout";
    if (judged.points == 0) {
      found.limits.push_back(
          {"", key, 0,
           "no layout of these GPUs divides the layers, heads, experts and batch as Megatron asks, or none that "
           "the engine describes"});
      return;
    }
    if (found.unlikely > 0) {
      found.limits.push_back(
          {"", key, 0, fmt::format("what was estimated fits with a probability below {:g}", min_probability_)});
      return;
    }
    const Bytes missing = judged.smallest.least - usable_;
    const std::string layout = letters(job_of(judged.smallest).roles.front().trainer.layout);
    const double gib = static_cast<double>(judged.smallest.least) / static_cast<double>(kGiB);
    found.limits.push_back({role_.name + ".backward", key, std::max<Bytes>(0, missing),
                            missing > 0 ? fmt::format("{} needs least, and at least {:.2f} GiB", layout, gib)
                                        : fmt::format("{} needs at least {:.2f} GiB, but no estimate of the fastest {} fits",
                                                      layout, gib, kTriesInAll)});
  }

  const Job& from_;
  Job job_;
  const Catalog& catalog_;
  const std::stop_token& stop_;
  const Role& role_;
  MegatronBound bound_;
  MegatronAxes axes_;
  MegatronBatch batch_;
  Bytes usable_;
  double min_probability_;
  TapeStore store_;
  ProcessStore processes_;
  double fastest_ = 0, left_out_ = 0;  ///< seconds, of what is likely enough and of what is not
};

}  // namespace

MegatronJudged judge_megatron(const MegatronAxes& axes, MegatronBound& bound, std::int64_t gpus, const MegatronBatch& batch,
                              Bytes usable, const std::stop_token& stop) {
  MegatronJudged out;
  out.smallest.least = Bytes{1} << 60;
  for (std::size_t k = 0; k < axes.ranks.size(); ++k)
    for (std::size_t i = 0; i < axes.splits.size() && !stop.stop_requested(); ++i) {
      const auto& ranks = axes.ranks[k];
      const auto& split = axes.splits[i];
      const std::int64_t data = megatron_data(split, ranks, gpus, batch);
      const auto* stages = data > 0 ? bound.stages(split) : nullptr;
      if (stages == nullptr) continue;
      for (std::size_t r = 0; r < axes.recompute.size(); ++r) {
        const auto& recompute = axes.recompute[r];
        // more layers than a chunk has are all of them
        if (recompute.what == Recompute::full && recompute.layers > 1 && recompute.layers > stages->smallest.front()) continue;
        const auto& layers =
            bound.layers(ranks, recompute.what == Recompute::selective ? recompute.modules : std::vector<std::string>{});
        if (!layers.possible) continue;
        ++out.points;
        const std::int64_t micro_batches = micro_batches_of(batch, data);
        MegatronCandidate c{i, k, r, data, bound.need(split, *stages, ranks, recompute, layers, data, micro_batches), 0};
        if (c.least < out.smallest.least) out.smallest = c;
        if (c.least > usable) continue;
        c.seconds = bound.seconds(split, ranks, recompute, data, micro_batches);
        out.candidates.push_back(c);
      }
    }
  std::sort(out.candidates.begin(), out.candidates.end(), [](const MegatronCandidate& a, const MegatronCandidate& b) {
    return std::tuple(a.seconds, a.least, a.ranks, a.split, a.recompute) <
           std::tuple(b.seconds, b.least, b.ranks, b.split, b.recompute);
  });
  return out;
}

void refuse_what_is_not_searched(const Role& role, const Space& space) {
  const auto refuse = [](std::string at, std::string found, std::string expected, std::string_view what) {
    throw InputError(Problem{
        {"", 0, 0, std::move(at)}, std::move(found), std::move(expected), "", fmt::format("not supported yet: {}", what)});
  };
  const Megatron& m = role.trainer.megatron;
  if (!space.maximise.empty())
    refuse("--max", fmt::format("'{}'", space.maximise), "nothing", "the largest value of a setting of Megatron");
  if (m.fsdp != MegatronFsdpStrategy::off)
    refuse(role.name + ".megatron_fsdp", std::string(spelling(m.fsdp)), "off", "a search over Megatron-FSDP");
  if (m.fp8 != Fp8Recipe::none)
    refuse(role.name + ".fp8_recipe", std::string(spelling(m.fp8)), "none", "a search over Megatron with fp8");
  if (role.trainer.lora.rank > 0)
    refuse(role.name + ".lora.rank", fmt::format("{}", role.trainer.lora.rank), "none", "a search over Megatron with adapters");
}

Found search_megatron(const Job& job, const Space& space, int keep, const Catalog& catalog, const std::stop_token& stop) {
  refuse_what_is_not_searched(job.roles.front(), space);
  return MegatronSearcher(job, space, catalog, stop).run(keep);
}

}  // namespace oomplan
