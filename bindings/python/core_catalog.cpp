#include "core.hpp"
#include "report/model_card.hpp"
#include "report/report.hpp"

namespace oomplan::python {

py::object loaded(const std::string& json) { return py::module_::import("json").attr("loads")(json); }

void bind_catalog(py::module_& module) {
  using Handle = std::shared_ptr<Catalog>;
  const auto of = [](const Handle& catalog) -> const Catalog& { return catalog ? *catalog : Catalog::builtin(); };
  py::class_<Catalog, Handle>(module, "Catalog")
      .def(py::init([](const std::string& directory) {
             return freed([&] { return std::make_shared<Catalog>(Catalog::with_directory(directory)); });
           }),
           py::arg("directory"))
      .def("model_ids", &Catalog::model_ids)
      .def("__repr__",
           [](const Catalog& c) { return "<oomplan.Catalog of " + std::to_string(c.model_ids().size()) + " models>"; });
  // An item is taken as an owner: an accessor would outlive what it points into.
  const auto item = [](const std::string& json, const char* key) { return py::object(loaded(json)[key]); };
  module.def(
      "gpus", [of, item](const Handle& catalog) { return item(gpus_to_json(of(catalog)), "gpus"); },
      py::arg("catalog") = Handle());
  module.def(
      "facts",
      [of, item](const std::string& engine, const std::string& version, const Handle& catalog) {
        return item(facts_to_json(of(catalog), engine, version), "facts");
      },
      py::arg("engine") = "", py::arg("version") = "", py::arg("catalog") = Handle());
  module.def(
      "model",
      [of](const std::string& name, bool parameters, const Handle& catalog) {
        const std::string json = freed([&] { return model_card_json(*of(catalog).model(name).architecture, parameters); });
        return loaded(json);
      },
      py::arg("name"), py::arg("parameters") = false, py::arg("catalog") = Handle());
}

}  // namespace oomplan::python
