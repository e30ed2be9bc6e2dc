#include "report/serve_report.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/format.hpp"
#include "report/in_service.hpp"
#include "report/report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

double gib(Bytes b) { return static_cast<double>(b) / static_cast<double>(kGiB); }

/// One line: the name that the engine's log has for the figure, and the figure.
std::string line(const char* what, const std::string& figure) { return fmt::format("  {:<38} {}\n", what, figure); }
std::string size(Bytes b) { return fmt::format("{:.2f} GiB", gib(b)); }

std::string vllm_lines(const ServeAnswer& a) {
  const ServerFigures& f = a.figures;
  std::string out = line("Model loading", size(f.weights));
  out += line("peak activation of the profile run", size(f.profile_peak));
  if (a.plan[ServerTensor::graphs] > 0) out += line("CUDA graphs", size(f.graphs));
  out += line("Available KV cache memory", size(f.kv_pool));
  out += line("GPU KV cache size", grouped(f.kv_tokens) + " tokens");
  if (f.request_bytes > 0)
    out += line(fmt::format("Maximum concurrency at {}", grouped(a.plan.max_model_len)).c_str(),
                fmt::format("{:.2f}x", static_cast<double>(f.kv_pool) / static_cast<double>(f.request_bytes)));
  return out;
}

std::string sglang_lines(const ServeAnswer& a) {
  const ServerFigures& f = a.figures;
  std::string out = line("Load weight: mem usage", size(f.weights));
  out += line("mem_fraction_static", fmt::format("{:.3f}", a.plan.fraction));
  out += line("KV cache", size(a.plan[ServerTensor::kv_cache]));
  if (a.plan.state_slots > 0)
    out += line("recurrent states", fmt::format("{} in {} slots", size(a.plan[ServerTensor::state_cache]), a.plan.state_slots));
  out += line("max_total_num_tokens", grouped(f.kv_tokens));
  out += line("max_running_requests", grouped(a.plan.max_running));
  if (a.plan[ServerTensor::graphs] > 0) out += line("CUDA graphs", size(f.graphs));
  return out;
}

}  // namespace

std::string to_text(const ServeAnswer& a, const ServeCommand& c, const TextStyle& style) {
  const Job& job = c.reading.job;
  const Server& s = job.roles.at(0).server;
  const char* const name = c.engine == EngineKind::vllm ? "vLLM" : "SGLang";
  std::string out =
      printable(fmt::format("{} {} on {} x {}, per GPU", name, s.version, job.cluster.gpus, job.cluster.gpu)) + "\n";
  out += c.engine == EngineKind::vllm ? vllm_lines(a) : sglang_lines(a);
  if (const GpuAnswer* worst = tightest(a.estimate); worst != nullptr && !worst->phases.empty())
    out += line("most that the device needs",
                fmt::format("{:.2f} of {:.2f} GiB", gib(worst->phases[worst->worst].usage.capacity_needed), gib(worst->usable)));
  const std::size_t columns_wide = style.width > 0 ? static_cast<std::size_t>(style.width) : 100;
  if (!a.estimate.servers.empty() && a.estimate.servers.front().in_service)
    out += in_service_lines(*a.estimate.servers.front().in_service, 2, columns_wide);
  out += "\n" + paint(a.fits() ? "starts and " : "does not start or does not fit: ", a.fits() ? Colour::good : Colour::bad,
                      style.colour);
  out += (a.figures.refusal.empty() ? verdict(a.estimate) : printable(a.figures.refusal)) + "\n";
  if (a.estimate.fit_probability && a.figures.refusal.empty())
    out += "probability that it fits: " + probability_text(*a.estimate.fit_probability) + "\n";
  const std::size_t width = columns_wide;
  for (const ServeChange& change : a.changes) {
    std::vector<std::string> words;
    for (const std::string& word : change.words) words.push_back(printable(word));
    out += "\nwith " + printable(change.what) + ":\n  " + shell_lines(words, width, 4) + "\n";
  }
  for (const Note& note : a.estimate.notes) {
    const bool warning = note.level == Note::Level::warning;
    if (warning || note.place.path == "--engine-version")
      out += printable(fmt::format("{}: {} {}", warning ? "warning" : "note", note.place.path, note.text)) + "\n";
  }
  return out;
}

std::string to_json(const ServeAnswer& a, const ServeCommand& c) {
  using Json = nlohmann::ordered_json;
  const Job& job = c.reading.job;
  const ServerFigures& f = a.figures;
  Json changes = Json::array(), notes = Json::array();
  for (const ServeChange& change : a.changes) changes.push_back({{"change", change.what}, {"command", change.words}});
  for (const Note& note : a.estimate.notes)
    notes.push_back(
        {{"level", note.level == Note::Level::warning ? "warning" : "info"}, {"flag", note.place.path}, {"text", note.text}});
  const GpuAnswer* worst = tightest(a.estimate);
  const bool known = worst != nullptr && !worst->phases.empty();
  const Json out{
      {"schema", "oomplan.serve/1"},
      {"oomplan_version", std::string(version())},
      {"engine", c.engine == EngineKind::vllm ? "vllm" : "sglang"},
      {"engine_version", job.roles.at(0).server.version},
      {"gpu", job.cluster.gpu},
      {"gpus", job.cluster.gpus},
      {"fits", a.fits()},
      {"fit_probability", a.estimate.fit_probability ? Json(*a.estimate.fit_probability) : Json(nullptr)},
      {"refusal", f.refusal},
      {"weights_bytes", f.weights},
      {"profile_peak_bytes", f.profile_peak},
      {"graphs_bytes", f.graphs},
      {"kv_pool_bytes", f.kv_pool},
      {"kv_tokens", f.kv_tokens},
      {"state_slots", a.plan.state_slots},
      {"request_bytes", f.request_bytes},
      {"longest_request_tokens", f.longest},
      {"memory_fraction", a.plan.fraction},
      {"max_model_len", a.plan.max_model_len},
      {"max_running_requests", a.plan.max_running},
      {"device_bytes", known ? worst->phases[worst->worst].usage.capacity_needed : 0},
      {"usable_bytes", known ? worst->usable : 0},
      {"in_service", a.estimate.servers.empty() || !a.estimate.servers.front().in_service
                         ? Json(nullptr)
                         : in_service_json(*a.estimate.servers.front().in_service)},
      {"changes", changes},
      {"notes", notes},
  };
  return json_text(out) + "\n";
}

}  // namespace oomplan
