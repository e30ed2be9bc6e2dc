#include "frontends/start.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "catalog/parameters.hpp"
#include "job/limits.hpp"
#include "layout/rules.hpp"
#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

constexpr std::array<std::string_view, 5> kAlgorithms{"grpo", "ppo", "dapo", "sft", "dpo"};

std::string thousands(std::int64_t n) {
  std::string out = fmt::format("{}", n);
  for (std::ptrdiff_t at = std::ssize(out) - 3; at > 0; at -= 3) out.insert(static_cast<std::size_t>(at), ",");
  return out;
}

/// A number that was not said.
void fill(std::int64_t& number, std::int64_t usual, std::string_view unit, std::vector<std::string>& assumed) {
  if (number > 0) return;
  number = usual;
  assumed.push_back(fmt::format("{} {}", thousands(usual), unit));
}

[[noreturn]] void wrong(const char* option, std::string found, std::string expected) {
  throw InputError(Problem{{"command line", 0, 0, option}, std::move(found), std::move(expected), {}, {}});
}

void place_gpus(Start& s) {
  const StartAsked& a = s.asked;
  if (!kGpuLimit.holds(a.gpus))
    wrong("--gpus", fmt::format("{}", a.gpus), fmt::format("{} to {}", kGpuLimit.least, kGpuLimit.most));
  std::int64_t nodes = a.nodes;
  if (nodes == 0) nodes = a.gpus <= 8 ? 1 : (a.gpus + 7) / 8;
  if (nodes > a.gpus || a.gpus % nodes != 0)
    wrong("--nodes", fmt::format("{} GPUs on {} machines", a.gpus, nodes), "as many GPUs on each");
  s.asked.nodes = nodes;
  s.gpus_per_node = a.gpus / nodes;
}

bool generates(Algorithm a) { return a != Algorithm::sft && a != Algorithm::dpo; }

/// What a framework is told: a name of the hub, or the folder that holds the config.json.
std::string path_of_model(const std::string& id) {
  constexpr std::string_view kConfig = "config.json";
  if (!id.ends_with(kConfig)) return id;
  const std::string folder = id.substr(0, id.size() - kConfig.size());
  return folder.empty() ? "." : folder.size() > 1 && folder.ends_with('/') ? folder.substr(0, folder.size() - 1) : folder;
}

}  // namespace

std::string_view spelling(Algorithm a) { return kAlgorithms[static_cast<std::size_t>(a)]; }

Algorithm algorithm_named(const std::string& name) {
  const auto found = std::find(kAlgorithms.begin(), kAlgorithms.end(), name);
  if (found != kAlgorithms.end()) return static_cast<Algorithm>(found - kAlgorithms.begin());
  const std::vector<std::string> known(kAlgorithms.begin(), kAlgorithms.end());
  throw InputError(Problem{{"command line", 0, 0, "--algorithm"}, "'" + name + "'", list_of(known), nearest(name, known), {}});
}

std::int64_t server_tensor_degree(const Architecture& a, const Gpu& gpu, std::int64_t gpus) {
  constexpr double kShare = 0.6;
  std::int64_t heads = 0, kv_heads = 0;
  for (const auto& run : a.runs)
    if (run.layer.mixer.heads > 0) heads = run.layer.mixer.heads, kv_heads = run.layer.mixer.kv_heads;
  std::int64_t last = 1;
  for (const std::int64_t t : tensor_degrees(gpus, {heads, kv_heads, 0, a.layers()})) {
    last = t;
    if (static_cast<double>(2 * count(a).language / t) <= kShare * static_cast<double>(gpu.usable)) break;
  }
  return last;
}

Start start_of(const StartAsked& asked, bool shares, const Catalog& catalog) {
  Start s{asked, {}, 8, 0, 0, 1, {}};
  const ModelFound model = catalog.model(asked.model);
  s.model_id = path_of_model(model.id);
  place_gpus(s);
  StartAsked& a = s.asked;
  if (a.gpu.empty()) a.gpu = "H100-80GB";
  const Gpu& kind = catalog.gpu(a.gpu);
  a.gpu = kind.name;
  const bool rl = generates(a.algorithm);
  if (rl && !shares && a.gpus < 2) wrong("--gpus", "1", "2 or more: servers and trainers have GPUs of their own");
  s.servers = !rl ? 0 : shares ? a.gpus : a.gpus / 2;
  s.trainers = shares ? a.gpus : a.gpus - s.servers;
  if (rl) s.server_tensor = server_tensor_degree(*model.architecture, kind, std::min(s.servers, s.gpus_per_node));
  if (rl) {
    fill(a.prompt_tokens, 1024, "tokens a prompt", s.assumed);
    fill(a.response_tokens, 8192, "a response", s.assumed);
    fill(a.samples, 8, "responses to a prompt", s.assumed);
    fill(a.batch, 128, "prompts a step", s.assumed);
  } else {
    if (a.response_tokens > 0) a.prompt_tokens += a.response_tokens;
    fill(a.prompt_tokens, 4096, "tokens a sequence", s.assumed);
    fill(a.batch, 128, "sequences a step", s.assumed);
  }
  return s;
}

}  // namespace oomplan
