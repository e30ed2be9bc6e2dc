#include "frontends/launch/launch.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/launch/commands_json.hpp"
#include "frontends/launch/parser.hpp"
#include "frontends/launch/paths.hpp"
#include "frontends/launch/quote.hpp"
#include "units/json_depth.hpp"

namespace oomplan::launch {
namespace {

std::optional<std::int64_t> count_in(std::string_view text) {
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || out < 1 || out > (std::int64_t{1} << 17))
    return std::nullopt;
  return out;
}

/// "gpu:8", "gpu:h100:8", "8": the last number.
std::optional<std::int64_t> last_count_in(std::string_view text) {
  text = text.substr(0, text.find(','));
  const std::size_t colon = text.rfind(':');
  return count_in(colon == std::string_view::npos ? text : text.substr(colon + 1));
}

/// What an option of a wrapper says.
enum class Says : std::uint8_t { nodes, gpus_per_node, all_processes };
struct FactRow {
  std::string_view wrapper;  ///< "slurm" stands for srun, sbatch, salloc and #SBATCH
  std::string_view option;
  Says says;
};
constexpr std::array<FactRow, 26> kFacts{{
    {"slurm", "--nodes", Says::nodes},
    {"slurm", "-N", Says::nodes},
    {"slurm", "--gpus-per-node", Says::gpus_per_node},
    {"slurm", "--gres", Says::gpus_per_node},
    {"torchrun", "--nnodes", Says::nodes},
    {"torchrun", "--nproc-per-node", Says::gpus_per_node},
    {"torchrun", "--nproc_per_node", Says::gpus_per_node},
    {"torch.distributed.run", "--nnodes", Says::nodes},
    {"torch.distributed.run", "--nproc-per-node", Says::gpus_per_node},
    {"torch.distributed.run", "--nproc_per_node", Says::gpus_per_node},
    {"accelerate launch", "--num_machines", Says::nodes},
    {"accelerate launch", "--num-machines", Says::nodes},
    {"accelerate launch", "--num_processes", Says::all_processes},
    {"accelerate launch", "--num-processes", Says::all_processes},
    {"deepspeed", "--num_nodes", Says::nodes},
    {"deepspeed", "--num_gpus", Says::gpus_per_node},
    {"mpirun", "-np", Says::all_processes},
    {"mpirun", "-n", Says::all_processes},
    {"mpirun", "--np", Says::all_processes},
    {"mpiexec", "-n", Says::all_processes},
    {"mpiexec", "-np", Says::all_processes},
    {"mpiexec", "--np", Says::all_processes},
    {"mpiexec", "--ppn", Says::gpus_per_node},
    {"mpiexec", "-ppn", Says::gpus_per_node},
    {"docker run", "--gpus", Says::gpus_per_node},
    {"podman run", "--gpus", Says::gpus_per_node},
}};

bool is_slurm(std::string_view wrapper) {
  return wrapper == "srun" || wrapper == "sbatch" || wrapper == "salloc" || wrapper == "#SBATCH";
}

/// Gathers facts, the outermost wrapper first: an inner one knows better.
class Facts {
 public:
  void option(const std::string& wrapper, const std::string& name, const Text& value) {
    for (const FactRow& row : kFacts) {
      if ((row.wrapper != wrapper && !(row.wrapper == "slurm" && is_slurm(wrapper))) || row.option != name) continue;
      const std::string text = is_known(value) ? bytes_of(value) : "";
      const auto n =
          row.says == Says::gpus_per_node
              ? last_count_in(text)
              : count_in(row.says == Says::nodes ? text.substr(text.rfind(':') == std::string::npos ? 0 : text.rfind(':') + 1)
                                                 : text);
      if (!n) continue;
      Stated stated{*n, wrapper + " " + name};
      if (row.says == Says::nodes) nodes = stated;
      if (row.says == Says::gpus_per_node) per_node = stated;
      if (row.says == Says::all_processes) processes = stated;
    }
  }
  void finish() {
    if (!processes) return;
    const std::int64_t machines = nodes ? nodes->value : 1;
    if (processes->value % machines == 0) per_node = Stated{processes->value / machines, processes->by};
  }
  std::optional<Stated> nodes, per_node, processes;
};

/// A=1 of docker -e, singularity --env, mpirun -x and sbatch --export.
void environment_option(const Wrapper& w, const std::string& name, const Text& value, std::map<std::string, Text>& out) {
  const bool container = w.name.starts_with("docker") || w.name.starts_with("podman") || w.name.starts_with("apptainer") ||
                         w.name.starts_with("singularity") || w.name == "enroot start";
  const bool single = (container && (name == "-e" || name == "--env")) || (w.name.starts_with("mpi") && name == "-x");
  const bool list = (is_slurm(w.name) && name == "--export") || (container && name == "--env");
  if (!single && !list) return;
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t end = list ? std::min(value.find(U',', at), value.size()) : value.size();
    const Text part = value.substr(at, end - at);
    const std::size_t sign = part.find(U'=');
    const std::string variable = bytes_of(part.substr(0, sign));
    if (sign != Text::npos && is_name(variable)) out[variable] = part.substr(sign + 1);
    at = end + 1;
  }
}

/// "env_vars" of ray job submit --runtime-env-json.
void ray_environment(const Text& value, std::map<std::string, Text>& out) {
  const std::string text = bytes_of(value);
  if (!too_deep(text).empty()) return;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("env_vars") || !json["env_vars"].is_object()) return;
  for (const auto& [name, said] : json["env_vars"].items())
    if (said.is_string() && is_name(name)) out[name] = text_of(said.get<std::string>());
}

void take_wrappers(const std::vector<Wrapper>& wrappers, Facts& facts, std::map<std::string, Text>& environment) {
  for (const Wrapper& w : wrappers) {
    for (const auto& [name, value] : w.environment) environment[name] = value;
    for (const auto& [name, value] : w.options) {
      facts.option(w.name, name, value);
      environment_option(w, name, value, environment);
      if (w.name == "ray job submit" && name == "--runtime-env-json") ray_environment(value, environment);
    }
  }
}

/// #SBATCH lines: they stand in front of the first command.
void take_batch_lines(const std::string& script, Facts& facts) {
  for (std::size_t at = 0; at < script.size();) {
    const std::size_t end = std::min(script.find('\n', at), script.size());
    std::string_view line = std::string_view(script).substr(at, end - at);
    at = end + 1;
    if (!line.empty() && line.front() != '#' && line.find_first_not_of(" \t\r") != std::string_view::npos) break;
    if (!line.starts_with("#SBATCH")) continue;
    line.remove_prefix(7);
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
    line = line.substr(0, line.find(" #"));
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) line.remove_suffix(1);
    const std::size_t cut = line.find_first_of("= ");
    if (cut == std::string_view::npos) continue;
    std::string_view value = line.substr(cut + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    facts.option("#SBATCH", std::string(line.substr(0, cut)), text_of(value));
  }
}

bool launches_python(const Wrapper& w) {
  return w.name == "torchrun" || w.name == "accelerate launch" || w.name == "deepspeed" || w.name == "torch.distributed.run";
}

std::string shortened(const Started& s, const std::vector<Unknown>& unknowns) {
  std::vector<std::string> words;
  for (const StartedWord& w : s.words)
    if (!w.vanishes) words.push_back(shown_text(w.text, unknowns));
  const std::size_t all = words.size();
  if (all > 8) words.resize(8);
  std::string out = command_text(words) + (all > 8 ? " ..." : "");
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out.size() > 160 ? out.substr(0, 157) + "..." : out;
}

std::optional<Launch> launch_of(const Started& s, const ScriptReading& reading, const std::string& script,
                                std::span<const std::span<const EntryPoint>> programs) {
  const Unwrapped found = unwrap(s.words);
  const bool python = found.entry.kind == Entry::Kind::script || found.entry.kind == Entry::Kind::module;
  const auto argument = [&](std::size_t i) {
    while (i < s.words.size() && s.words[i].vanishes) ++i;
    return i < s.words.size() ? bytes_of(s.words[i].text) : std::string();
  };
  const auto has = [&](std::string_view flag) {
    return std::any_of(s.words.begin() + static_cast<std::ptrdiff_t>(std::min(found.entry.first, s.words.size())), s.words.end(),
                       [&](const StartedWord& w) {
                         const std::string text = bytes_of(w.text);
                         return flag.ends_with('.') ? text.starts_with(flag) || text.starts_with("+" + std::string(flag))
                                                    : text == flag || text.starts_with(std::string(flag) + "=");
                       });
  };
  const EntryPoint* row = entry_point(programs, found.entry, argument(found.entry.first), has);
  if (row == nullptr && !python) return std::nullopt;
  Launch out;
  Facts facts;
  take_batch_lines(script, facts);
  for (const Unwrapped& outer : {unwrap(s.outer)}) take_wrappers(outer.wrappers, facts, out.environment);
  for (const auto& [name, value] : s.environment) out.environment[name] = value;
  take_wrappers(found.wrappers, facts, out.environment);
  facts.finish();
  out.nodes = facts.nodes;
  out.gpus_per_node = facts.per_node;
  std::size_t begin = found.entry.at;
  for (const Wrapper& w : found.wrappers)
    if (launches_python(w)) {
      begin = w.begin;
      break;
    }
  if (python && begin == found.entry.at && begin > 0) {  // the interpreter itself
    begin = found.wrappers.empty() ? 0 : found.wrappers.back().end;
  }
  out.argv.assign(s.words.begin() + static_cast<std::ptrdiff_t>(begin), s.words.end());
  out.entry = found.entry;
  out.entry.at -= begin;
  out.entry.first -= std::min(begin, out.entry.first);
  out.first = out.entry.first;
  out.starts = row;
  out.condition = s.condition;
  out.background = s.background;
  out.folder = s.folder;
  out.place = {s.file, s.line, 0, {}};
  out.written = shortened(s, reading.unknowns);
  return out;
}

}  // namespace

std::vector<Launch> launches_of(const ScriptReading& reading, const std::string& script_text,
                                std::span<const std::span<const EntryPoint>> programs) {
  std::vector<Launch> out;
  for (const Started& s : reading.started)
    if (std::optional<Launch> launch = launch_of(s, reading, script_text, programs)) out.push_back(std::move(*launch));
  return out;
}

bool is_script(std::string_view text, std::string_view name) {
  for (const std::string_view end : {".sh", ".bash", ".slurm", ".sbatch", ".ksh"})
    if (name.ends_with(end)) return true;
  for (const std::string_view end : {".yaml", ".yml", ".json"})
    if (name.ends_with(end)) return false;
  constexpr std::size_t kBeginning = 16 * 1024;  // comments before the first command
  text = text.substr(0, kBeginning);
  if (text.starts_with("#!")) return text.substr(0, text.find('\n')).find("sh") != std::string_view::npos;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') continue;
    const std::string_view rest = line.substr(begin);
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r;|&(="));
    if (word.find(':') != std::string_view::npos || rest.starts_with('{') || rest.starts_with('-')) return false;
    if (rest.substr(word.size()).starts_with('=') && is_name(word)) return true;
    static constexpr std::array<std::string_view, 17> kFirst{"set",      "export", "source", "cd",      "if",   "for",
                                                             "function", "vllm",   "python", "python3", "bash", "echo",
                                                             "oumi",     "unset",  "exec",   "sglang",  "trl"};
    if (std::find(kFirst.begin(), kFirst.end(), last_part(word)) != kFirst.end()) return true;
    const std::string line_text(line);
    std::vector<StartedWord> words;
    for (std::size_t at = begin; at < line_text.size();) {
      const std::size_t end = std::min(line_text.find(' ', at), line_text.size());
      if (end > at) words.push_back({text_of(std::string_view(line_text).substr(at, end - at)), false});
      at = end + 1;
    }
    return !unwrap(words).wrappers.empty();
  }
  return false;
}

}  // namespace oomplan::launch
