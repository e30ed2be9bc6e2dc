// One operator by itself.
#include <oomplan/operators.hpp>

#include "catalog/catalog.hpp"
#include "core.hpp"

namespace oomplan::python {
namespace {

DType format_of(const std::string& text) {
  for (const DTypeRow& r : kDTypes)
    if (r.name == text) return r.value;
  throw InputError(Problem{{"", 0, 0, "dtype"}, "'" + text + "'", "a format such as bf16 or fp32", "", ""});
}

OperatorPass pass_of(const std::string& text) {
  for (const auto pass : {OperatorPass::full, OperatorPass::forward, OperatorPass::backward})
    if (text == name(pass)) return pass;
  throw InputError(Problem{{"", 0, 0, "pass"}, "'" + text + "'", "forward, backward or full", "", ""});
}

}  // namespace

void bind_operator(py::module_& module) {
  module.def(
      "op",
      [](const std::string& operator_name, const std::map<std::string, std::int64_t>& sizes, const std::string& by,
         const std::string& dtype, const std::string& weights, const std::string& pass, bool retain_graph, bool gradient_held,
         std::int64_t modules, const std::string& gpu) {
        OperatorCall call;
        call.name = operator_name;
        call.by = by;
        call.sizes.insert(sizes.begin(), sizes.end());
        call.dtype = format_of(dtype);
        call.weights = weights.empty() ? call.dtype : format_of(weights);
        call.pass = pass_of(pass);
        call.retain_graph = retain_graph;
        call.gradient_held = gradient_held;
        call.modules = modules;
        call.gpu = gpu;
        const OperatorAnswer answer = freed([&] { return ask(call, Catalog::builtin()); });
        py::dict out;
        out["allocated"] = answer.allocated;
        out["resident"] = answer.resident;
        out["reserved"] = answer.reserved;
        out["live"] = answer.live;
        return out;
      },
      py::arg("name"), py::arg("sizes"), py::arg("by") = "", py::arg("dtype") = "bf16", py::arg("weights") = "",
      py::arg("pass_") = "full", py::arg("retain_graph") = false, py::arg("gradient_held") = true, py::arg("modules") = 1,
      py::arg("gpu") = "H100-80GB");
}

}  // namespace oomplan::python
