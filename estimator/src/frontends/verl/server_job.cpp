#include "frontends/verl/server_job.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "frontends/verl/derive.hpp"
#include "frontends/verl/meaning_parts.hpp"
#include "job/first_engine.hpp"

namespace oomplan::verl {
namespace {

/// engine_kwargs go to the engine as they are, in front of what verl says by itself.
struct EngineArgument {
  std::string_view engine, name, knob;
};
constexpr std::array<EngineArgument, 4> kRead{{{"sglang", "max_running_requests", "max_running_requests"},
                                               {"sglang", "cuda_graph_max_bs", "graph_batch"},
                                               {"sglang", "disable_cuda_graph", "enforce_eager"},
                                               {"sglang", "mamba_full_memory_ratio", "mamba_full_memory_ratio"}}};
/// What is as it would be by itself (async_sglang_server.py, 0.7 to 0.10; sglang/srt/server_args.py, 0.5.12).
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kAsBefore{
    {{"enable_memory_saver", "true"}, {"mamba_scheduler_strategy", "no_buffer"}}};

/// What of an engine's arguments the answer has; a note tells the others.
class EngineArguments {
 public:
  EngineArguments(VerlSettings& s, const VerlText& text, const ServerOf& server, std::string engine)
      : s_(s), role_(server.role), engine_(std::move(engine)), at_(fmt::format("{}.engine_kwargs.{}", server.path, engine_)) {
    if (const auto* n = text.root.at(at_); n != nullptr && n->kind == compose::Node::Kind::map) more_ = n;
  }
  bool has(std::string_view name) const { return !value(name).empty(); }
  std::string value(std::string_view name) const {
    if (more_ == nullptr) return {};
    for (const auto& entry : more_->entries)
      if (entry.key == name && entry.value.kind != compose::Node::Kind::null && !entry.value.is_container())
        return value_of(entry.value).plain();
    return {};
  }
  void read(std::vector<Note>& notes) {
    if (more_ == nullptr) return;
    for (const auto& entry : more_->entries)
      if (const std::string is = value(entry.key); !is.empty() && !reads(entry.key, is))
        notes.push_back(
            {Note::Level::warning, entry.value.origin.place,
             fmt::format("engine_kwargs.{}.{} goes to the server and is not part of this answer", engine_, entry.key)});
  }

 private:
  void set(std::string_view knob, std::string value, std::string_view name) {
    s_.set_at(fmt::format("{}.{}", role_, knob), std::move(value), fmt::format("{}.{}", at_, name));
  }
  bool reads(std::string_view name, const std::string& is) {
    for (const EngineArgument& row : kRead)
      if (row.engine == engine_ && row.name == name) return set(row.knob, is, name), true;
    if (engine_ != "sglang") return false;
    if (name == "disable_radix_cache") return set("share_prompts", is == "true" ? "false" : "true", name), true;
    if (name == "attention_backend" && (is == "flashinfer" || is == "fa3"))
      return set("flashinfer_attention", is == "flashinfer" ? "true" : "false", name), true;
    return std::find(kAsBefore.begin(), kAsBefore.end(), std::pair{name, std::string_view(is)}) != kAsBefore.end();
  }

  VerlSettings& s_;
  std::string role_, engine_, at_;
  const compose::Node* more_ = nullptr;
};

/// Workers of Ray have the variables of the command.
bool asks_for_first(const VerlText& text, std::string_view version) {
  const auto variable = [&](const char* name) {
    const auto found = text.environment.find(name);
    return found == text.environment.end() ? std::string_view() : std::string_view(found->second);
  };
  return asks_for_first_engine(variable("VLLM_USE_V1"), variable("VLLM_ATTENTION_BACKEND"), version);
}

}  // namespace

void server_settings(VerlSettings& s, const VerlText& text, const VerlMeaning& m, const ServerOf& server,
                     std::vector<Note>& notes) {
  const Release release = text.release;
  const std::string &role = server.role, fact = "roles." + role + ".", engine = m.text(fact + "engine");
  s.copy(role + ".model", fact + "model");
  // of this release, also where its workers are described as those of a later one
  const std::string_view version = pinned_server(name_of(release), engine == "sglang" ? EngineKind::sglang : EngineKind::vllm);
  s.set(role + ".engine", fmt::format("{} {}", engine, version), fact + "engine");
  if (role == "rollout")
    notes.push_back({Note::Level::info, s.place(fact + "engine"),
                     fmt::format("verl {} does not say which {} it runs: taken as {}, the newest that it installs",
                                 name_of(release), engine, version)});
  if (engine == "vllm" && asks_for_first(text, version)) s.set(role + ".first_engine", "true", fact + "engine");
  const auto degree = [&](const char* name) { return m.whole(fmt::format("{}layout.{}", fact, name), 1); };
  const auto beyond_one = [](const char* letter, std::int64_t n) { return n > 1 ? fmt::format("{}{}", letter, n) : ""; };
  s.set(role + ".layout",
        fmt::format("d{}t{}{}{}", degree("replicas") * degree("dp"), degree("tp"), beyond_one("p", degree("pp")),
                    beyond_one("e", degree("ep"))),
        fact + "layout.tp");
  if (degree("dp") > 1) s.set(role + ".attention_data", fmt::format("{}", degree("dp")), fact + "layout.dp");
  s.copy(role + (engine == "sglang" ? ".mem_fraction_static" : ".gpu_memory_utilization"), fact + "memory_fraction");
  if (engine == "sglang" && text.root.at(server.path + ".engine_kwargs.sglang.max_running_requests") != nullptr)
    ;  // as it is said there
  else if (const ToldFact* most = m.find(fact + "max_running_requests"); most != nullptr && !most->value.is_integer())
    s.set(role + ".max_running_requests", "auto", fact + "max_running_requests");
  else
    s.copy(role + ".max_running_requests", fact + "max_running_requests");
  s.copy(role + ".batched_tokens", fact + "max_batched_tokens");
  if (const ToldFact* longest = m.find(fact + "max_model_len"); longest != nullptr && longest->value.is_integer())
    s.copy(role + ".max_model_len", fact + "max_model_len");
  s.copy(role + ".enforce_eager", fact + "enforce_eager");
  if (m.text(fact + "quantization") == "fp8") s.set(role + ".weights", "fp8", fact + "quantization");
  // verl/workers/rollout/sglang_rollout/async_sglang_server.py, 0.9 and 0.10; up to 0.5.11 it is fa3
  EngineArguments arguments(s, text, server, engine);
  if (engine == "sglang" && compare_versions(version, "0.5.12") >= 0 && !arguments.has("attention_backend"))
    s.set(role + ".flashinfer_attention", "true", fact + "engine");
  arguments.read(notes);
}

}  // namespace oomplan::verl
