#include "report/serve_search.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/format.hpp"
#include "report/report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

class Rewriter {
 public:
  Rewriter(const ServeCommand& command, const Job& job)
      : c_(command),
        role_(job.roles.at(0)),
        s_(role_.server),
        own_(command.reading.job.roles.at(0).server),
        vllm_(command.engine == EngineKind::vllm) {}

  ServeRewrite run() {
    layout();
    if (s_.memory_fraction != own_.memory_fraction)
      put(vllm_ ? "gpu_memory_utilization" : "mem_fraction_static", fmt::format("{}", s_.memory_fraction));
    number("max_running_requests", s_.max_running, own_.max_running);
    number("batched_tokens", s_.batched_tokens, own_.batched_tokens);
    number("max_model_len", s_.max_model_len, own_.max_model_len);
    if (s_.eager && !own_.eager) put("enforce_eager", "true");
    if (s_.kv != own_.kv) put("kv", "fp8");
    if (s_.weights != own_.weights) put("weights", "fp8");
    out_.words = without_switches(c_, gone_);
    if (!expressible_) out_.words.clear();
    return std::move(out_);
  }

 private:
  void put(const char* key, const std::string& value) {
    const bool quantises = std::string_view(key) == "weights";
    auto words = quantises ? c_.words : with_flag(c_, key, value);
    if (quantises) words.insert(words.end(), {"--quantization", value});
    if (words.empty())
      expressible_ = false;
    else
      c_.words = std::move(words);  // what is new goes behind: places stay
    out_.what += fmt::format("{}{} {}", out_.what.empty() ? "" : ", ", key, value);
  }
  void number(const char* key, std::int64_t now, std::int64_t before) {
    if (now != before) put(key, std::to_string(now));
  }
  void drop(const char* key) {
    gone_.emplace_back(key);
    out_.what += fmt::format("{}no {}", out_.what.empty() ? "" : ", ", key);
  }

  /// Ranks that share experts are one command; other replicas are its own ranks too where the engine keeps them apart.
  void layout() {
    const Layout &now = s_.layout, &before = own_.layout;
    number("tensor", now.tensor, before.tensor);
    number("pipeline", now.pipeline, before.pipeline);
    const bool shares = s_.attention_data > 1, shared = own_.attention_data > 1;
    const bool apart = shares || (vllm_ && has_experts());
    std::int64_t data = apart ? s_.attention_data : now.data;
    const std::int64_t was = shared ? own_.attention_data : before.data;
    out_.servers = apart ? (vllm_ ? now.data / s_.attention_data : now.data) : 1;
    number("data", data, was);
    if (!vllm_ && shares && !shared) put("attention_data", "true");
    if (!vllm_ && !shares && shared) drop("attention_data");
    if (!vllm_) return number("expert", now.expert, before.expert);
    if (now.expert > 1 && before.expert == 1 && !c_.place.contains("all_experts")) put("all_experts", "true");
    if (now.expert == 1 && c_.place.contains("all_experts")) drop("all_experts");
  }
  bool has_experts() const {
    return std::any_of(role_.architecture->runs.begin(), role_.architecture->runs.end(),
                       [](const LayerRun& run) { return run.layer.feed_forward.experts > 0; });
  }

  ServeCommand c_;
  const Role& role_;
  const Server &s_, &own_;
  bool vllm_, expressible_ = true;
  std::vector<std::string> gone_;
  ServeRewrite out_;
};

std::string shell(const std::vector<std::string>& all, const TextStyle& style) {
  std::vector<std::string> words;
  for (const std::string& word : all) words.push_back(printable(word));
  return shell_lines(words, style.width > 0 ? static_cast<std::size_t>(style.width) : 100, 4);
}

}  // namespace

ServeRewrite rewritten(const ServeCommand& command, const Job& job) { return Rewriter(command, job).run(); }

ServeFound search_command(const ServeCommand& command, const Space& space, int keep, const Catalog& catalog) {
  ServeFound out{search(command.reading.job, space, keep, &catalog), {}};
  for (const Candidate& candidate : out.found.best) out.commands.push_back(rewritten(command, candidate.job));
  return out;
}

std::string to_text(const ServeFound& s, const ServeCommand& command, const TextStyle& style) {
  if (s.found.best.empty()) return to_text(s.found, command.reading.job, style);
  std::string out = fmt::format("{} of {} configurations fit on {} x {}\n", grouped(s.found.fitting), grouped(s.found.judged),
                                command.reading.job.cluster.gpus, printable(command.reading.job.cluster.gpu));
  for (std::size_t i = 0; i < s.commands.size(); ++i) {
    const Candidate& c = s.found.best[i];
    const ServeRewrite& r = s.commands[i];
    const std::int64_t groups = c.job.roles.at(0).cache_groups();
    const std::int64_t tokens = c.estimate.servers.empty() ? 0 : c.estimate.servers.front().kv_tokens * groups;
    out += fmt::format("\n{}. throughput {:.2f}, {} cached tokens, P(fit) {}: {}\n", i + 1, c.relative_throughput,
                       grouped(tokens), c.estimate.fit_probability ? probability_text(*c.estimate.fit_probability) : "-",
                       r.what.empty() ? "as it is" : printable(r.what));
    if (r.servers > 1) out += fmt::format("  {} servers, each\n", r.servers);
    out +=
        r.words.empty() ? "  a setting that this engine's command line has no flag for\n" : "  " + shell(r.words, style) + "\n";
  }
  return out +
         "\nThe throughput is relative to the best: a model of memory, arithmetic and collectives (docs/search.md), not a "
         "measurement.\n";
}

std::string to_json(const ServeFound& s, const ServeCommand& command) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (std::size_t i = 0; i < s.commands.size(); ++i) {
    const Candidate& c = s.found.best[i];
    const std::int64_t groups = c.job.roles.at(0).cache_groups();
    rows.push_back({{"relative_throughput", c.relative_throughput},
                    {"kv_tokens", c.estimate.servers.empty() ? 0 : c.estimate.servers.front().kv_tokens * groups},
                    {"fit_probability", c.estimate.fit_probability ? Json(*c.estimate.fit_probability) : Json(nullptr)},
                    {"change", s.commands[i].what},
                    {"servers", s.commands[i].servers},
                    {"command", s.commands[i].words}});
  }
  Json limits = Json::array();
  for (const auto& limit : s.found.limits) limits.push_back({{"missing_bytes", limit.missing}, {"why", limit.text}});
  const Json out{{"schema", "oomplan.serve_search/1"},
                 {"oomplan_version", std::string(version())},
                 {"gpu", command.reading.job.cluster.gpu},
                 {"gpus", command.reading.job.cluster.gpus},
                 {"judged", s.found.judged},
                 {"fitting", s.found.fitting},
                 {"best", rows},
                 {"limits", limits},
                 {"smallest_gpus", s.found.smallest_gpus ? Json(*s.found.smallest_gpus) : Json(nullptr)}};
  return json_text(out) + "\n";
}

}  // namespace oomplan
