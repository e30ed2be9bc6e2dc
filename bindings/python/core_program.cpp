#include "core.hpp"

namespace oomplan::python {

void bind_program(py::module_& module) {
  py::class_<Trace>(module, "Trace")
      .def_property_readonly("peak_bytes", [](const Trace& t) { return t.span.peak; })
      .def_property_readonly("host_peak_bytes", [](const Trace& t) { return t.span.host_peak; })
      .def_property_readonly("events", [](const Trace& t) { return t.span.events; })
      .def_readonly("phase", &Trace::phase)
      .def_readonly("live", &Trace::live)
      .def_readonly("left", &Trace::left)
      .def("__repr__", [](const Trace& t) {
        return "<Trace peak " + std::to_string(t.span.peak) + " bytes in " + t.phase + ", " + std::to_string(t.span.events) +
               " events>";
      });
  py::class_<Program>(module, "Program")
      .def("trace", [](const Program& p) { return freed([&] { return trace(p); }); })
      .def(
          "timeline", [](const Program& p, std::int64_t stride) { return freed([&] { return timeline(p, stride); }); },
          py::arg("stride") = 1)
      .def_property_readonly("sites", [](const Program& p) { return p.sites.size(); })
      .def_property_readonly("labels", [](const Program& p) { return p.labels; })
      .def("__repr__", [](const Program& p) {
        return "<Program of " + std::to_string(p.sites.size()) + " sites, " + std::to_string(p.labels.size()) + " labels>";
      });
  module.def(
      "program",
      [](const JobHandle& job, const std::string& role, const std::shared_ptr<Catalog>& catalog) {
        return freed([&] { return program(*job.job, role, catalog.get()); });
      },
      py::arg("job"), py::arg("role"), py::arg("catalog") = std::shared_ptr<Catalog>());
}

}  // namespace oomplan::python
