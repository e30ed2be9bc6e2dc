// The module oomplan._core: the library's own types and calls, nothing computed on the way. One file a topic, each with a bind
// function that is called once. Every call into the library gives up the GIL.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"

namespace oomplan::python {

namespace py = pybind11;

/// A job as Python holds it: never changed, so an answer can share it.
struct JobHandle {
  std::shared_ptr<const Job> job;
  std::vector<Note> notes;
  std::shared_ptr<const Source> source = {};  ///< of a framework's file: advice and search answer in its words
};
/// An answer together with what was asked.
struct Answer {
  std::shared_ptr<const Job> job;
  std::shared_ptr<const Catalog> catalog;  ///< null: the built-in one
  Estimate estimate;
  const Moment* worst() const;
};

/// Runs `call` without the GIL.
template <class Call>
auto freed(Call&& call) {
  const py::gil_scoped_release release;
  return call();
}
/// JSON text as Python objects.
py::object loaded(const std::string& json);
Answer answer(const JobHandle&, const std::shared_ptr<const Catalog>&, Estimate (*judge)(const Job&, const Catalog*));

void bind_errors(py::module_&);    // InputError, Defect, Problem
void bind_catalog(py::module_&);   // Catalog, gpus, facts, models
void bind_job(py::module_&);       // Job, read
void bind_answers(py::module_&);   // Estimate and its parts
void bind_calls(py::module_&);     // estimate, explain, search, advise
void bind_program(py::module_&);   // Program and its readers
void bind_operator(py::module_&);  // one operator by itself
void bind_accuracy(py::module_&);  // figures for comparison with measured runs

}  // namespace oomplan::python
