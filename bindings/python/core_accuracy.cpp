// Figures for comparison with measured and executed runs (benchmarks/accuracy). Cases go in as JSON, numbers come out.
#include "catalog/parameters.hpp"
#include "core.hpp"
#include "estimate/figures.hpp"
#include "estimate/fit_probability.hpp"
#include "report/model_card.hpp"

namespace oomplan::python {

namespace {

py::dict dict_of(const TrainingFigures& f) {
  py::dict out;
  out["forward"] = f.forward;
  out["backward"] = f.backward;
  out["optimizer"] = f.optimizer;
  out["peak"] = f.peak;
  out["parameters"] = f.parameters;
  out["states"] = f.states;
  return out;
}

}  // namespace

void bind_accuracy(py::module_& module) {
  module.def(
      "training_figures",
      [](const std::string& job, const std::string& config) {
        return dict_of(freed([&] { return training_figures(read_training_case(job, config, Catalog::builtin())); }));
      },
      py::arg("job"), py::arg("config") = "");
  module.def(
      "training_figures_of",
      [](const JobHandle& job, const std::string& apart) {
        return dict_of(freed([&] { return training_figures(training_case(*job.job, apart, Catalog::builtin())); }));
      },
      py::arg("job"), py::arg("apart") = "{}");
  module.def(
      "serving_figures",
      [](const std::string& job, const std::string& config) {
        const ServingFigures all =
            freed([&] { return serving_figures(read_serving_case(job, config, Catalog::builtin()), Catalog::builtin()); });
        const ServerFigures& f = all.logged;
        py::dict out;
        out["weights"] = f.weights;
        out["largest_weights"] = f.largest_weights;
        out["non_kv"] = f.non_kv;
        out["kv_pool"] = f.kv_pool;
        out["kv_tokens"] = f.kv_tokens;
        out["profile_peak"] = f.profile_peak;
        out["graphs"] = f.graphs;
        out["requested"] = f.requested;
        out["request_bytes"] = f.request_bytes;
        out["longest"] = f.longest;
        out["refusal"] = f.refusal;
        out["device"] = all.device;
        return out;
      },
      py::arg("job"), py::arg("config") = "");
  module.def(
      "colocated_figures",
      [](const JobHandle& job, int iterations) {
        const ColocatedFigures all = freed([&] { return colocated_figures(*job.job, iterations, Catalog::builtin()); });
        py::dict phases;
        for (const auto& p : all.phases) {
          py::dict row;
          row["allocated"] = p.allocated;
          row["reserved"] = p.reserved;
          row["device"] = p.device;
          phases[py::str(p.phase)] = row;
        }
        py::dict out;
        out["phases"] = phases;
        out["asleep"] = all.asleep;
        out["kept_back"] = all.kept_back;
        return out;
      },
      py::arg("job"), py::arg("iterations") = 2);
  module.def(
      "parameter_figures",
      [](const std::string& config, const std::string& name) {
        const ParameterCounts n = freed([&] { return count(read_config(config, name)); });
        py::dict out;
        out["language"] = n.language;
        out["active"] = n.active;
        out["tower"] = n.tower;
        out["mtp"] = n.mtp;
        out["mtp_copies"] = n.mtp_copies;
        out["embedding"] = n.embedding;
        return out;
      },
      py::arg("config"), py::arg("name") = "model");
  module.def(
      "model_card",
      [](const std::string& config, const std::string& name) {
        return freed([&] { return model_card_json(read_config(config, name), true); });
      },
      py::arg("config"), py::arg("name") = "model");
  module.def(
      "fit_probability",
      [](const std::vector<double>& log_ratios, Bytes needed, Bytes usable) {
        return MeasuredErrors(log_ratios).fit_probability(needed, usable);
      },
      py::arg("log_ratios"), py::arg("needed_bytes"), py::arg("usable_bytes"));
}

}  // namespace oomplan::python
