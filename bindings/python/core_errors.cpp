#include "core.hpp"
#include "report/report.hpp"

namespace oomplan::python {
namespace {

py::object* input_error = nullptr;  // lives as long as the process

/// The Python exception of a C++ one.
py::object exception_of(const InputError& error) {
  py::object value = (*input_error)(std::string(error.what()));
  value.attr("problems") = py::cast(error.problems);
  value.attr("kind") = std::string(name(error.kind()));
  return value;
}

}  // namespace

void bind_errors(py::module_& module) {
  py::class_<Problem>(module, "Problem")
      .def_property_readonly("file", [](const Problem& p) { return p.place.file; })
      .def_property_readonly("line", [](const Problem& p) { return p.place.line; })
      .def_property_readonly("column", [](const Problem& p) { return p.place.column; })
      .def_property_readonly("path", [](const Problem& p) { return p.place.path; })
      .def_readonly("found", &Problem::found)
      .def_readonly("expected", &Problem::expected)
      .def_readonly("nearest", &Problem::nearest)
      .def_readonly("why", &Problem::why)
      .def_property_readonly("kind", [](const Problem& p) { return std::string(name(p.kind)); })
      .def("__str__", [](const Problem& p) { return to_text(p); })
      .def("__repr__", [](const Problem& p) { return "<Problem " + to_text(p) + ">"; });

  input_error = new py::object(py::reinterpret_steal<py::object>(PyErr_NewExceptionWithDoc(
      "oomplan.InputError", "The job is wrong; .problems lists everything that is, .kind says what that means for a gate.",
      PyExc_ValueError, nullptr)));
  input_error->attr("problems") = py::list();
  input_error->attr("kind") = "malformed";
  module.attr("InputError") = *input_error;
  module.def("refusal", [](const std::string& file, const std::string& found, const std::string& expected) {
    Problem problem;
    problem.place.file = file;
    problem.found = found;
    problem.expected = expected;
    return exception_of(InputError(problem));
  });
  py::register_exception<Defect>(module, "Defect", PyExc_RuntimeError);
  module.attr("Defect").attr("__module__") = "oomplan";
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const InputError& error) {
      const py::object value = exception_of(error);
      PyErr_SetObject(input_error->ptr(), value.ptr());
    }
  });
}

}  // namespace oomplan::python
