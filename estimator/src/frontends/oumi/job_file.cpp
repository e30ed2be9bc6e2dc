#include "frontends/oumi/job_file.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "frontends/compose/compose.hpp"
#include "frontends/keys_of_lines.hpp"
#include "frontends/oumi/escapes.hpp"
#include "units/sizes.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

/// SkyPilot's names of GPUs that mean another kind for us (skypilot-org/skypilot-catalog: catalogs/v7, AcceleratorName). The
/// others are aliases of ours.
struct GpuRow {
  std::string_view sky, ours;
};
constexpr std::array<GpuRow, 2> kGpus{{{"A100", "A100-40GB"}, {"V100", "V100-16GB"}}};

bool is_job(const Source& source) {
  if (!source.dialect.empty() && source.dialect != "oumi") return false;
  const std::vector<std::string> keys = keys_of_lines(source.text);
  const auto has = [&](std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  return has("run") && has("resources") && !has("oomplan") && source.text.find("oumi ") != std::string::npos;
}

/// The text of a block begins on the line behind its "|".
std::string on_its_lines(const std::string& run, const std::string& file, int line) {
  std::size_t at = 0;
  for (int i = 1; i < line && at != std::string::npos; ++i) {
    at = file.find('\n', at);
    if (at != std::string::npos) ++at;
  }
  const std::size_t end = at == std::string::npos ? at : file.find('\n', at);
  const std::string_view written = at == std::string::npos ? std::string_view() : std::string_view(file).substr(at, end - at);
  const bool block = written.find('|') != std::string_view::npos || written.find('>') != std::string_view::npos;
  return std::string(static_cast<std::size_t>(std::max(0, line - (block ? 0 : 1))), '\n') + run;
}

std::string text_at(const Node& root, std::string_view path) {
  const Node* n = root.at(path);
  return n != nullptr && !n->is_container() && n->kind != Node::Kind::null ? compose::python_text(*n) : std::string();
}

void take_machines(const Node& root, Source& out) {
  const std::string nodes = text_at(root, "num_nodes");
  out.environment["SKYPILOT_NUM_NODES"] = nodes.empty() ? "1" : nodes;
  out.environment["SKYPILOT_NODE_RANK"] = "0";
  const auto count = read_count(out.environment["SKYPILOT_NUM_NODES"]);
  std::string addresses = "10.0.0.1";  // one a line; only how many there are is looked at
  for (std::int64_t i = 1; count && i < std::min<std::int64_t>(*count.value, 4096); ++i) addresses += "\n10.0.0.2";
  out.environment["SKYPILOT_NODE_IPS"] = addresses;
  const Node* stated = root.at("resources.accelerators");
  const std::string text = text_at(root, "resources.accelerators");
  if (text.empty()) return;
  const auto colon = text.find(':');
  const std::string kind = text.substr(0, colon), number = colon == std::string::npos ? "1" : text.substr(colon + 1);
  Place place = stated->origin.place;
  place.path = "resources.accelerators";
  const auto said = read_count(number);
  if (!said || *said.value < 1) throw InputError(Problem{place, fmt::format("'{}'", text), "a GPU and how many: A100:4", {}, {}});
  out.environment["SKYPILOT_NUM_GPUS_PER_NODE"] = fmt::format("{}", *said.value);
  if (!out.gpu.empty()) return;
  const auto row = std::find_if(kGpus.begin(), kGpus.end(), [&](const GpuRow& r) { return r.sky == kind; });
  out.gpu = row == kGpus.end() ? kind : std::string(row->ours);
}

}  // namespace

std::string name_in_jobs(std::string_view gpu) {
  const auto row = std::find_if(kGpus.begin(), kGpus.end(), [&](const GpuRow& r) { return r.ours == gpu; });
  return std::string(row == kGpus.end() ? gpu : row->sky);
}

std::optional<Source> script_in(const Source& source) {
  if (!is_job(source)) return std::nullopt;
  compose::Composed read = compose::load_with_dotlist(escaped(source.text), source.name, {}, source.environment);
  if (!read.problems.empty()) throw InputError(std::move(read.problems));
  const Node* run = read.root.at("run");
  const std::string script = run == nullptr ? "" : unescaped(run->text);
  if (script.empty()) throw InputError(Problem{{source.name, 0, 0, "run"}, "no script", "run: | and what the job runs", {}, {}});
  Source out = source;
  out.text = on_its_lines(script, source.text, run->origin.place.line);
  out.dialect = "launch";
  if (const Node* variables = read.root.at("envs"); variables != nullptr)
    for (const auto& entry : variables->entries)
      if (!entry.value.is_container()) out.environment.emplace(entry.key, unescaped(compose::python_text(entry.value)));
  take_machines(read.root, out);
  return out;
}

}  // namespace oomplan::oumi
