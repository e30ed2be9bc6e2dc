#include "core.hpp"
#include "job/names.hpp"
#include "report/report.hpp"

namespace oomplan::python {
namespace {

py::tuple shape_of(const LiveTensor& live) {
  py::tuple shape(live.shape.size());
  for (std::size_t i = 0; i < live.shape.size(); ++i) shape[i] = live.shape[i];
  return shape;
}

py::dict by_category(const Moment& moment) {
  py::dict out;
  for (std::size_t i = 0; i < moment.usage.by_category.size() && i < static_cast<std::size_t>(kCategories); ++i)
    if (moment.usage.by_category[i] != 0) out[py::str(std::string(name(static_cast<Category>(i))))] = moment.usage.by_category[i];
  return out;
}

py::object to_frame(const Answer& answer) {
  py::object pandas;
  try {
    pandas = py::module_::import("pandas");
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError)) throw;
    throw py::import_error("to_frame() needs pandas: pip install pandas");
  }
  py::list rows;
  for (const auto& gpu : answer.estimate.gpus)
    for (const auto& phase : gpu.phases) {
      py::dict row;
      row["ranks"] = gpu.ranks;
      row["gpu"] = gpu.gpu;
      row["phase"] = phase.phase;
      row["allocated_bytes"] = phase.usage.allocated;
      row["reserved_bytes"] = phase.usage.reserved;
      row["device_bytes"] = phase.usage.device;
      row["capacity_needed_bytes"] = phase.usage.capacity_needed;
      row["usable_bytes"] = gpu.usable;
      rows.append(row);
    }
  return pandas.attr("DataFrame")(rows);
}

void bind_parts(py::module_& module) {
  py::class_<LiveTensor>(module, "LiveTensor")
      .def_readonly("name", &LiveTensor::name)
      .def_property_readonly("shape", &shape_of)
      .def_property_readonly("dtype", [](const LiveTensor& l) { return std::string(name(l.dtype)); })
      .def_readonly("bytes", &LiveTensor::bytes)
      .def_readonly("count", &LiveTensor::count)
      .def_property_readonly("category", [](const LiveTensor& l) { return std::string(name(l.category)); })
      .def_property_readonly("pool", [](const LiveTensor& l) { return std::string(name(l.pool)); })
      .def_property_readonly("kept_by", [](const LiveTensor& l) { return std::string(name(l.holder)); })
      .def_readonly("allocated_in", &LiveTensor::phase)
      .def("__repr__", [](const LiveTensor& l) {
        return py::str("LiveTensor(name={!r}, shape={!r}, dtype={!r}, bytes={}, count={})")
            .format(l.name, shape_of(l), std::string(name(l.dtype)), l.bytes, l.count);
      });
  py::class_<Moment>(module, "Moment")
      .def_readonly("phase", &Moment::phase)
      .def_readonly("role", &Moment::role)
      .def_readonly("step", &Moment::step)
      .def_property_readonly("allocated_bytes", [](const Moment& m) { return m.usage.allocated; })
      .def_property_readonly("reserved_bytes", [](const Moment& m) { return m.usage.reserved; })
      .def_property_readonly("device_bytes", [](const Moment& m) { return m.usage.device; })
      .def_property_readonly("capacity_needed_bytes", [](const Moment& m) { return m.usage.capacity_needed; })
      .def_property_readonly("by_category_bytes", &by_category)
      .def_readonly("upper_bound", &Moment::bound)
      .def_readonly("live", &Moment::live)
      .def_readonly("allocator_retries_per_step", &Moment::allocator_retries)
      .def("__repr__", [](const Moment& m) {
        return "<Moment " + m.phase + ": " + std::to_string(m.usage.capacity_needed) + " bytes needed>";
      });
  py::class_<GpuAnswer>(module, "GpuAnswer")
      .def_readonly("ranks", &GpuAnswer::ranks)
      .def_readonly("gpu", &GpuAnswer::gpu)
      .def_readonly("gpus", &GpuAnswer::gpus)
      .def_readonly("usable_bytes", &GpuAnswer::usable)
      .def_readonly("phases", &GpuAnswer::phases)
      .def_property_readonly(
          "worst", [](const GpuAnswer& g) { return g.phases.empty() ? py::object(py::none()) : py::cast(g.phases[g.worst]); })
      .def_property_readonly("fits", &GpuAnswer::fits)
      .def_readonly("fit_probability", &GpuAnswer::fit_probability)
      .def("__repr__", [](const GpuAnswer& g) { return "<GpuAnswer " + g.ranks + (g.fits() ? " fits>" : " does not fit>"); });
  py::class_<HostAnswer>(module, "HostAnswer")
      .def_readonly("nodes", &HostAnswer::nodes)
      .def_property_readonly(
          "usable_bytes",
          [](const HostAnswer& h) { return h.usable > 0 ? py::object(py::int_(h.usable)) : py::object(py::none()); })
      .def_property_readonly("phases_bytes", [](const HostAnswer& h) { return py::dict(py::cast(h.phases)); })
      .def_property_readonly("worst",
                             [](const HostAnswer& h) { return h.phases.empty() ? std::string() : h.phases[h.worst].first; })
      .def("__repr__", [](const HostAnswer& h) {
        const Bytes most = h.phases.empty() ? 0 : h.phases[h.worst].second;
        return "<HostAnswer node " + h.nodes + ": " + std::to_string(most) + " bytes at most>";
      });
  py::class_<InService>(module, "InService")
      .def_readonly("prompt_tokens", &InService::prompt)
      .def_readonly("response_tokens", &InService::response)
      .def_readonly("samples_per_prompt", &InService::samples)
      .def_readonly("shared_tokens", &InService::shared_tokens)
      .def_readonly("at_once", &InService::at_once)
      .def_readonly("to_the_end", &InService::to_the_end)
      .def_readonly("given_up", &InService::given_up)
      .def_readonly("waiting", &InService::waiting)
      .def_readonly("full_at_token", &InService::full_at)
      .def_readonly("recomputed_tokens", &InService::recomputed_tokens)
      .def_readonly("tokens_wanted", &InService::tokens_wanted)
      .def_readonly("cause", &InService::cause)
      .def("__repr__", [](const InService& s) {
        return "<InService " + std::to_string(s.at_once) + " requests at once, " + std::to_string(s.waiting) + " wait, " +
               std::to_string(s.given_up) + " given up>";
      });
  py::class_<ServerAnswer>(module, "ServerAnswer")
      .def_readonly("role", &ServerAnswer::role)
      .def_readonly("weights_bytes", &ServerAnswer::weights)
      .def_readonly("kv_pool_bytes", &ServerAnswer::kv_pool)
      .def_readonly("other_bytes", &ServerAnswer::non_kv)
      .def_readonly("kv_bytes_per_token", &ServerAnswer::kv_bytes_per_token)
      .def_readonly("kv_tokens_per_replica", &ServerAnswer::kv_tokens)
      .def_readonly("tokens_per_request", &ServerAnswer::tokens_per_request)
      .def_readonly("requests_of_full_length_per_replica", &ServerAnswer::requests_of_full_length)
      .def_readonly("requests_asked_per_replica", &ServerAnswer::requests_asked)
      .def_readonly("in_service", &ServerAnswer::in_service)
      .def_readonly("refused", &ServerAnswer::refused)
      .def_readonly("shortage", &ServerAnswer::shortage)
      .def("__repr__", [](const ServerAnswer& s) {
        return "<ServerAnswer " + s.role + ": " + std::to_string(s.kv_tokens) + " tokens cached by a replica" +
               (s.refused ? ", does not start>" : ">");
      });
  py::class_<Evidence>(module, "Evidence")
      .def_readonly("like", &Evidence::like)
      .def_readonly("measurements", &Evidence::measurements)
      .def_readonly("error_p50_percent", &Evidence::error_p50_percent)
      .def_readonly("error_p95_percent", &Evidence::error_p95_percent)
      .def("__repr__", [](const Evidence& e) {
        return "<Evidence " + std::to_string(e.measurements) + " measurements" + (e.like.empty() ? ">" : ": " + e.like + ">");
      });
  py::class_<Remedy>(module, "Remedy")
      .def_readonly("key", &Remedy::key)
      .def_readonly("from_", &Remedy::from)
      .def_readonly("to", &Remedy::to)
      .def_readonly("text", &Remedy::text)
      .def_property_readonly("effect", [](const Remedy& r) { return std::string(spelling(r.effect)); })
      .def_readonly("gain_bytes", &Remedy::gain)
      .def_readonly("fits", &Remedy::fits)
      .def_property_readonly("override",
                             [](const Remedy& r) {
                               std::string words;
                               for (const auto& word : r.patch.overrides) words += (words.empty() ? "" : " ") + word;
                               return words.empty() ? r.key + "=" + r.to : words;
                             })
      .def_property_readonly(
          "overrides",
          [](const Remedy& r) { return r.patch.overrides.empty() ? std::vector{r.key + "=" + r.to} : r.patch.overrides; })
      .def_property_readonly("diff", [](const Remedy& r) { return r.patch.diff; })
      .def("__repr__", [](const Remedy& r) { return "<Remedy " + r.key + "=" + r.to + (r.fits ? " fits>" : ">"); });
}

}  // namespace

const Moment* Answer::worst() const {
  const GpuAnswer* gpu = tightest(estimate);
  return gpu == nullptr ? nullptr : &gpu->phases[gpu->worst];
}

void bind_answers(py::module_& module) {
  bind_parts(module);
  const auto worst = [](const Answer& a) { return a.worst() == nullptr ? py::object(py::none()) : py::cast(*a.worst()); };
  const auto part = [](auto Estimate::* field) { return [field](const Answer& a) { return a.estimate.*field; }; };
  py::class_<Answer>(module, "Estimate")
      .def_property_readonly("fits", [](const Answer& a) { return a.estimate.fits(); })
      .def_property_readonly("verdict", [](const Answer& a) { return verdict(a.estimate); })
      .def_property_readonly("fit_probability", part(&Estimate::fit_probability))
      .def_property_readonly("worst", worst)
      .def_property_readonly("worst_gpus",
                             [](const Answer& a) {
                               const GpuAnswer* gpu = tightest(a.estimate);
                               return gpu == nullptr ? py::object(py::none()) : py::cast(*gpu);
                             })
      .def_property_readonly("live",
                             [](const Answer& a) { return a.worst() == nullptr ? std::vector<LiveTensor>() : a.worst()->live; })
      .def_property_readonly("gpus", part(&Estimate::gpus))
      .def_property_readonly("hosts", part(&Estimate::hosts))
      .def_property_readonly("servers", part(&Estimate::servers))
      .def_property_readonly("evidence", part(&Estimate::evidence))
      .def_property_readonly("notes", part(&Estimate::notes))
      .def_property_readonly("remedies", part(&Estimate::remedies))
      .def_property_readonly("explained", part(&Estimate::explained))
      .def_property_readonly("replayed", part(&Estimate::replayed))
      .def_property_readonly("job", [](const Answer& a) { return JobHandle{a.job, {}}; })
      .def("explain", [](const Answer& a) { return answer(JobHandle{a.job, {}}, a.catalog, explain); })
      .def(
          "to_text",
          [](const Answer& a, bool colour, bool unicode, int width) {
            return freed(
                [&] { return to_text(a.estimate, *a.job, TextStyle{.colour = colour, .unicode = unicode, .width = width}); });
          },
          py::kw_only(), py::arg("colour") = false, py::arg("unicode") = false, py::arg("width") = 100)
      .def("to_json", [](const Answer& a) { return freed([&] { return to_json(a.estimate, *a.job); }); })
      .def("to_dict", [](const Answer& a) { return loaded(to_json(a.estimate, *a.job)); })
      .def("to_frame", &to_frame)
      .def("__str__", [](const Answer& a) { return to_text(a.estimate, *a.job); })
      .def("__repr__", [](const Answer& a) { return "<oomplan.Estimate " + verdict(a.estimate) + ">"; })
      .def("_repr_html_", [](const Answer& a) { return to_html(a.estimate, *a.job); });
}

}  // namespace oomplan::python
