#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <stop_token>
#include <thread>

#include <oomplan/guide.hpp>

#include "core.hpp"
#include "frontends/described.hpp"
#include "job/names.hpp"
#include "report/report.hpp"
#include "search/watched.hpp"
#include "units/interruption.hpp"
#include "units/sizes.hpp"

namespace oomplan::python {
namespace {

using CatalogHandle = std::shared_ptr<Catalog>;

struct FoundHandle {
  std::shared_ptr<const Job> job;
  CatalogHandle catalog;
  std::shared_ptr<const Found> found;
};

/// Without the GIL.
Answer judged(const JobHandle& job, const std::shared_ptr<const Catalog>& catalog,
              Estimate (*judge)(const Job&, const Catalog*)) {
  Answer out{job.job, catalog, judge(*job.job, catalog.get())};
  out.estimate.notes.insert(out.estimate.notes.begin(), job.notes.begin(), job.notes.end());
  return out;
}

/// Runs `work` beside Python, without the GIL. Python looks for signals meanwhile: Ctrl-C stops it and is raised as
/// KeyboardInterrupt.
void interruptible(const std::function<void(const std::stop_token&)>& work) {
  bool raised = false;
  freed([&] {
    watched(work, [&] {
      const py::gil_scoped_acquire held;
      raised = PyErr_CheckSignals() != 0;
      return !raised;
    });
    return 0;
  });
  if (raised) throw py::error_already_set();
}

/// What "estimate" means everywhere: the allocator is replayed unless quick.
auto verdict(bool quick) { return quick ? estimate_quick : estimate; }

std::vector<Answer> estimate_many(const std::vector<JobHandle>& jobs, int threads, const CatalogHandle& catalog, bool quick) {
  std::vector<Answer> out(jobs.size());
  std::atomic<std::size_t> next = 0;
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(std::clamp(threads, 1, 256)));
  interruptible([&](const std::stop_token& stop) {
    const auto work = [&](std::size_t worker) {
      try {
        until_interrupted(stop, [&] {
          for (std::size_t i = 0; !stop.stop_requested() && (i = next++) < jobs.size();)
            out[i] = judged(jobs[i], catalog, verdict(quick));
        });
      } catch (...) {
        thrown[worker] = std::current_exception();
      }
    };
    std::vector<std::jthread> others;
    for (std::size_t worker = 1; worker < thrown.size(); ++worker) others.emplace_back(work, worker);
    work(0);
  });
  for (const auto& error : thrown)
    if (error) std::rethrow_exception(error);
  return out;
}

Effect effect_of(const std::string& word) {
  if (const auto effect = parse<Effect>(word)) return *effect;
  Problem problem;
  problem.place.path = "allow";
  problem.found = "'" + word + "'";
  problem.expected = list_of(spellings<Effect>());
  problem.nearest = nearest(word, spellings<Effect>());
  throw InputError(problem);
}

Space space_of(std::optional<std::int64_t> gpus, const std::vector<std::string>& allow, const std::string& maximise,
               const std::vector<std::string>& fixed, double min_probability, int threads) {
  Space space;
  space.gpus = gpus;
  for (const auto& word : allow) space.allow = std::max(space.allow, effect_of(word));
  space.maximise = maximise;
  space.fixed = fixed;
  if (!(min_probability >= 0 && min_probability <= 1))
    throw InputError(Problem{{"", 0, 0, "min_probability"}, number_text(min_probability), "0 to 1, such as 0.9", {}, {}});
  space.min_probability = min_probability;
  space.threads = threads;
  return space;
}

}  // namespace

Answer answer(const JobHandle& job, const std::shared_ptr<const Catalog>& catalog,
              Estimate (*judge)(const Job&, const Catalog*)) {
  return freed([&] { return judged(job, catalog, judge); });
}

void bind_calls(py::module_& module) {
  module.def(
      "estimate",
      [](const JobHandle& job, const CatalogHandle& catalog, bool quick) { return answer(job, catalog, verdict(quick)); },
      py::arg("job"), py::arg("catalog") = CatalogHandle(), py::arg("quick") = false);
  module.def(
      "explain", [](const JobHandle& job, const CatalogHandle& catalog) { return answer(job, catalog, explain); }, py::arg("job"),
      py::arg("catalog") = CatalogHandle());
  module.def("estimate_many", &estimate_many, py::arg("jobs"), py::arg("threads") = 1, py::arg("catalog") = CatalogHandle(),
             py::arg("quick") = false);
  module.def(
      "advise",
      [](const JobHandle& job, const std::string& allow, const CatalogHandle& catalog) {
        const Effect effect = effect_of(allow);
        std::vector<Remedy> found;
        interruptible([&](const std::stop_token& stop) {
          until_interrupted(stop, [&] {
            found = job.source ? advise(*job.source, effect, catalog.get()).remedies : advise(*job.job, effect, catalog.get());
          });
        });
        return found;
      },
      py::arg("job"), py::arg("allow") = "speed", py::arg("catalog") = CatalogHandle());

  py::class_<GuidePoint>(module, "GuidePoint")
      .def_readonly("section", &GuidePoint::section)
      .def_readonly("text", &GuidePoint::text)
      .def_readonly("overrides", &GuidePoint::overrides)
      .def_readonly("why", &GuidePoint::why)
      .def_readonly("gain_bytes", &GuidePoint::gain)
      .def_readonly("phase", &GuidePoint::phase)
      .def_readonly("phase_gain_bytes", &GuidePoint::phase_gain)
      .def_readonly("fits", &GuidePoint::fits)
      .def("__repr__", [](const GuidePoint& p) { return "<GuidePoint " + p.section + ": " + p.text + ">"; });
  py::class_<Guide>(module, "Guide")
      .def_readonly("source", &Guide::source)
      .def_readonly("points", &Guide::points)
      .def("to_json", [](const Guide& g) { return freed([&] { return to_json(g); }); })
      .def("to_dict", [](const Guide& g) { return loaded(to_json(g)); })
      .def("__str__", [](const Guide& g) { return to_text(g); })
      .def("__repr__",
           [](const Guide& g) { return "<oomplan.Guide " + g.source + ": " + std::to_string(g.points.size()) + " points>"; });
  module.def(
      "guide",
      [](const JobHandle& job, const CatalogHandle& catalog) {
        if (!job.source)
          throw InputError(Problem{
              {"", 0, 0, "guide"}, "a job whose framework has no guide that is known", "RL of verl", {}, "not supported yet"});
        Guide found;
        interruptible(
            [&](const std::stop_token& stop) { until_interrupted(stop, [&] { found = guide(*job.source, catalog.get()); }); });
        return found;
      },
      py::arg("job"), py::arg("catalog") = CatalogHandle());

  py::class_<Change>(module, "Change")
      .def_readonly("key", &Change::key)
      .def_readonly("from_", &Change::from)
      .def_readonly("to", &Change::to)
      .def_property_readonly("effect", [](const Change& c) { return std::string(spelling(c.effect)); })
      .def("__repr__", [](const Change& c) { return "<Change " + c.key + ": " + c.from + " -> " + c.to + ">"; });
  py::class_<Limit>(module, "Limit")
      .def_readonly("phase", &Limit::phase)
      .def_readonly("axis", &Limit::axis)
      .def_readonly("missing_bytes", &Limit::missing)
      .def_readonly("text", &Limit::text)
      .def("__repr__", [](const Limit& l) {
        return "<Limit " + (l.axis.empty() ? l.phase : l.axis) + ": " + std::to_string(l.missing) + " bytes missing>";
      });
  py::class_<Candidate>(module, "Candidate")
      .def_property_readonly("job", [](const Candidate& c) { return JobHandle{std::make_shared<const Job>(c.job), {}}; })
      .def_property_readonly("estimate",
                             [](const Candidate& c) { return Answer{std::make_shared<const Job>(c.job), nullptr, c.estimate}; })
      .def_readonly("changes", &Candidate::changes)
      .def_readonly("overrides", &Candidate::overrides)
      .def_readonly("job_file", &Candidate::job_file)
      .def_readonly("relative_step_time", &Candidate::relative_step_time)
      .def_readonly("relative_throughput", &Candidate::relative_throughput)
      .def("__repr__", [](const Candidate& c) {
        std::string words;
        for (const auto& word : c.overrides) words += " " + word;
        return "<Candidate" + (words.empty() ? " the job as it is" : words) + ">";
      });
  py::class_<FoundHandle>(module, "Found")
      .def_property_readonly("best", [](const FoundHandle& f) { return f.found->best; })
      .def_property_readonly("judged", [](const FoundHandle& f) { return f.found->judged; })
      .def_property_readonly("fitting", [](const FoundHandle& f) { return f.found->fitting; })
      .def_property_readonly("min_probability", [](const FoundHandle& f) { return f.found->min_probability; })
      .def_property_readonly("unlikely", [](const FoundHandle& f) { return f.found->unlikely; })
      .def_property_readonly("interrupted", [](const FoundHandle& f) { return f.found->interrupted; })
      .def_property_readonly("limits", [](const FoundHandle& f) { return f.found->limits; })
      .def_property_readonly("smallest_gpus", [](const FoundHandle& f) { return f.found->smallest_gpus; })
      .def("to_json", [](const FoundHandle& f) { return freed([&] { return to_json(*f.found, *f.job); }); })
      .def("to_dict", [](const FoundHandle& f) { return loaded(to_json(*f.found, *f.job)); })
      .def("__bool__", [](const FoundHandle& f) { return !f.found->best.empty(); })
      .def("__repr__",
           [](const FoundHandle& f) {
             return "<oomplan.Found " + std::to_string(f.found->best.size()) + " of " + std::to_string(f.found->fitting) +
                    " that fit, " + std::to_string(f.found->judged) + " judged>";
           })
      .def("_repr_html_", [](const FoundHandle& f) { return freed([&] { return to_html(*f.found, *f.job); }); })
      .def("__str__", [](const FoundHandle& f) { return to_text(*f.found, *f.job); });
  module.def(
      "search",
      [](const JobHandle& job, std::optional<std::int64_t> gpus, const std::vector<std::string>& allow,
         const std::string& maximise, const std::vector<std::string>& fixed, double min_probability, int keep, int threads,
         const CatalogHandle& catalog) {
        const Space space = space_of(gpus, allow, maximise, fixed, min_probability, threads);
        auto found = std::make_shared<Found>();
        interruptible([&](const std::stop_token& stop) {
          *found = job.source ? search(*job.source, space, keep, catalog.get(), stop)
                              : search(*job.job, space, keep, catalog.get(), stop);
        });
        return FoundHandle{job.job, catalog, std::move(found)};
      },
      py::arg("job"), py::kw_only(), py::arg("gpus") = py::none(), py::arg("allow") = std::vector<std::string>(),
      py::arg("maximise") = "", py::arg("fixed") = std::vector<std::string>(), py::arg("min_probability") = 0.9,
      py::arg("keep") = 10, py::arg("threads") = 1, py::arg("catalog") = CatalogHandle());
  module.def(
      "describe",
      [](const std::string& start, const CatalogHandle& catalog) {
        Described begin = freed([&] { return described(start, catalog ? *catalog : Catalog::builtin()); });
        JobHandle job{std::make_shared<const Job>(std::move(begin.job)), {}};
        if (begin.source) job.source = std::make_shared<const Source>(std::move(*begin.source));
        return std::pair(std::move(job), std::move(begin.told));
      },
      py::arg("start"), py::arg("catalog") = CatalogHandle());
}

}  // namespace oomplan::python
