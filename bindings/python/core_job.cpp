#include "core.hpp"
#include "frontends/dialect.hpp"
#include "frontends/launched.hpp"
#include "frontends/read_file.hpp"

namespace oomplan::python {
namespace {

/// A file with what is told beside it; files that it names are looked for where it says.
Source file_source(const std::string& path, const std::string& dialect, const std::vector<std::string>& overrides,
                   const std::string& framework_version, const std::string& gpu, const std::vector<std::string>& config_roots) {
  Source source = read_file(path);
  source.dialect = dialect;
  source.overrides = overrides;
  source.framework_version = framework_version;
  source.gpu = gpu;
  source.open = files_beside(path, config_roots);
  return source;
}

using Environment = std::map<std::string, std::string>;

/// What no framework's text says.
struct Beside {
  std::string host_memory;
  std::int64_t sequence_tokens = 0;
  std::string image_size = {};
  std::string linear_attention = {};
};

/// The job of the source, which stays with it where answers are told in its words. Without the GIL.
JobHandle handle_of(Source given, const std::shared_ptr<Catalog>& catalog, const Beside& beside) {
  given.host_memory = beside.host_memory;
  given.sequence_tokens = beside.sequence_tokens;
  given.image_size = beside.image_size;
  given.linear_attention = beside.linear_attention;
  return freed([&] {
    const Source source = is_launch(given) ? resolved(given, catalog ? *catalog : Catalog::builtin()) : given;
    Reading reading = read(source, catalog.get());
    JobHandle out{std::make_shared<const Job>(std::move(reading.job)), std::move(reading.notes)};
    if (dialect_of(source).rewords) out.source = std::make_shared<const Source>(source);
    return out;
  });
}

void bind_launches(py::module_& module) {
  using CatalogHandle = std::shared_ptr<Catalog>;
  module.def(
      "is_script", [](const std::string& path) { return freed([&] { return is_script_file(read_file(path)); }); },
      py::arg("path"));
  module.def(
      "read_script",
      [](const std::string& path, const std::vector<std::string>& overrides, const std::vector<std::string>& arguments,
         const Environment& environment, const std::string& framework_version, const std::string& gpu,
         const std::vector<std::string>& config_roots, std::int64_t which, const CatalogHandle& catalog,
         const std::string& host_memory, std::int64_t sequence_tokens, const std::string& image_size,
         const std::string& linear_attention) {
        Source source = freed([&] { return script_source(read_file(path), arguments, environment, config_roots); });
        source.dialect = "launch";
        source.overrides = overrides;
        source.framework_version = framework_version;
        source.gpu = gpu;
        source.which = which;
        return handle_of(source, catalog, {host_memory, sequence_tokens, image_size, linear_attention});
      },
      py::arg("path"), py::arg("overrides"), py::arg("arguments"), py::arg("environment"), py::arg("framework_version") = "",
      py::arg("gpu") = "", py::arg("config_roots") = std::vector<std::string>(), py::arg("which") = 0,
      py::arg("catalog") = CatalogHandle(), py::arg("host_memory") = "", py::arg("sequence_tokens") = 0,
      py::arg("image_size") = "", py::arg("linear_attention") = "");
  module.def(
      "read_command",
      [](const std::vector<std::string>& command, const std::vector<std::string>& overrides, const Environment& environment,
         const std::string& framework_version, const std::string& gpu, const std::vector<std::string>& config_roots,
         std::int64_t which, const CatalogHandle& catalog, const std::string& host_memory, std::int64_t sequence_tokens,
         const std::string& image_size, const std::string& linear_attention) {
        Source source = freed([&] { return command_source(command, environment, config_roots); });
        source.overrides = overrides;
        source.framework_version = framework_version;
        source.gpu = gpu;
        source.which = which;
        return handle_of(source, catalog, {host_memory, sequence_tokens, image_size, linear_attention});
      },
      py::arg("command"), py::arg("overrides"), py::arg("environment"), py::arg("framework_version") = "", py::arg("gpu") = "",
      py::arg("config_roots") = std::vector<std::string>(), py::arg("which") = 0, py::arg("catalog") = CatalogHandle(),
      py::arg("host_memory") = "", py::arg("sequence_tokens") = 0, py::arg("image_size") = "", py::arg("linear_attention") = "");
}

}  // namespace

void bind_job(py::module_& module) {
  using CatalogHandle = std::shared_ptr<Catalog>;
  bind_launches(module);
  py::class_<Note>(module, "Note")
      .def_property_readonly("warning", [](const Note& n) { return n.level == Note::Level::warning; })
      .def_property_readonly("file", [](const Note& n) { return n.place.file; })
      .def_property_readonly("line", [](const Note& n) { return n.place.line; })
      .def_property_readonly("path", [](const Note& n) { return n.place.path; })
      .def_readonly("text", &Note::text)
      .def("__repr__", [](const Note& n) { return "<Note " + n.text + ">"; });

  py::class_<JobHandle>(module, "Job")
      .def_property_readonly("name", [](const JobHandle& j) { return j.job->name; })
      .def_readonly("notes", &JobHandle::notes)
      .def("to_yaml", [](const JobHandle& j) { return freed([&] { return to_yaml(*j.job); }); })
      .def("to_json", [](const JobHandle& j) { return freed([&] { return to_json(*j.job); }); })
      .def("to_dict", [](const JobHandle& j) { return loaded(to_json(*j.job)); })
      .def("__str__", [](const JobHandle& j) { return to_yaml(*j.job); })
      .def("__repr__", [](const JobHandle& j) {
        std::string out = "<oomplan.Job" + (j.job->name.empty() ? "" : " " + j.job->name) + " on " +
                          std::to_string(j.job->cluster.gpus) + " x " + j.job->cluster.gpu;
        for (const Role& role : j.job->roles) out += ", " + role.name + " " + role.model;
        return out + ">";
      });

  module.def(
      "read",
      [](const std::string& text, const std::string& name, const std::string& dialect, const std::vector<std::string>& overrides,
         const CatalogHandle& catalog, const std::string& gpu, const std::string& framework_version,
         const std::string& host_memory, std::int64_t sequence_tokens, const std::string& image_size,
         const std::string& linear_attention) {
        Source source{text, name, dialect, overrides};
        source.gpu = gpu;
        source.framework_version = framework_version;
        return handle_of(source, catalog, {host_memory, sequence_tokens, image_size, linear_attention});
      },
      py::arg("text"), py::arg("name") = "", py::arg("dialect") = "", py::arg("overrides") = std::vector<std::string>(),
      py::arg("catalog") = CatalogHandle(), py::arg("gpu") = "", py::arg("framework_version") = "", py::arg("host_memory") = "",
      py::arg("sequence_tokens") = 0, py::arg("image_size") = "", py::arg("linear_attention") = "");
  module.def(
      "read_file",
      [](const std::string& path, const std::string& dialect, const std::vector<std::string>& overrides,
         const std::string& framework_version, const std::string& gpu, const std::vector<std::string>& config_roots,
         const CatalogHandle& catalog, const std::string& host_memory, std::int64_t sequence_tokens,
         const std::string& image_size, const std::string& linear_attention) {
        return handle_of(freed([&] { return file_source(path, dialect, overrides, framework_version, gpu, config_roots); }),
                         catalog, {host_memory, sequence_tokens, image_size, linear_attention});
      },
      py::arg("path"), py::arg("dialect") = "", py::arg("overrides") = std::vector<std::string>(),
      py::arg("framework_version") = "", py::arg("gpu") = "", py::arg("config_roots") = std::vector<std::string>(),
      py::arg("catalog") = CatalogHandle(), py::arg("host_memory") = "", py::arg("sequence_tokens") = 0,
      py::arg("image_size") = "", py::arg("linear_attention") = "");
  module.def(
      "config_facts",
      [](const std::string& path, const std::vector<std::string>& overrides, const std::string& framework_version,
         const std::vector<std::string>& config_roots) {
        return loaded(freed([&] { return facts_json(file_source(path, "", overrides, framework_version, "", config_roots)); }));
      },
      py::arg("path"), py::arg("overrides") = std::vector<std::string>(), py::arg("framework_version") = "",
      py::arg("config_roots") = std::vector<std::string>());
}

}  // namespace oomplan::python
