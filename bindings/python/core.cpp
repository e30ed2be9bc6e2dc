#include "core.hpp"

PYBIND11_MODULE(_core, module) {
  using namespace oomplan::python;
  module.doc() = "The C++ core of oomplan; use the package oomplan.";
  module.attr("__version__") = std::string(oomplan::version());
  bind_errors(module);
  bind_catalog(module);
  bind_job(module);
  bind_answers(module);
  bind_calls(module);
  bind_program(module);
  bind_operator(module);
  bind_accuracy(module);
}
