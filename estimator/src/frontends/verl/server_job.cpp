#include "frontends/verl/server_job.hpp"

#include <fmt/format.h>

#include "frontends/verl/derive.hpp"
#include "frontends/verl/meaning_parts.hpp"
#include "job/first_engine.hpp"

namespace oomplan::verl {
namespace {

/// engine_kwargs go to the engine as they are.
void note_engine_arguments(const VerlText& text, const std::string& at, const std::string& engine, std::vector<Note>& notes) {
  const auto* more = text.root.at(fmt::format("{}.engine_kwargs.{}", at, engine));
  if (more == nullptr || more->kind != compose::Node::Kind::map) return;
  for (const auto& entry : more->entries)
    if (entry.value.kind != compose::Node::Kind::null && !entry.value.is_container())
      notes.push_back({Note::Level::warning, entry.value.origin.place,
                       fmt::format("engine_kwargs.{}.{} goes to the server and is not part of this answer", engine, entry.key)});
}

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
  if (const ToldFact* most = m.find(fact + "max_running_requests"); most != nullptr && !most->value.is_integer())
    s.set(role + ".max_running_requests", "auto", fact + "max_running_requests");
  else
    s.copy(role + ".max_running_requests", fact + "max_running_requests");
  s.copy(role + ".batched_tokens", fact + "max_batched_tokens");
  if (const ToldFact* longest = m.find(fact + "max_model_len"); longest != nullptr && longest->value.is_integer())
    s.copy(role + ".max_model_len", fact + "max_model_len");
  s.copy(role + ".enforce_eager", fact + "enforce_eager");
  if (m.text(fact + "quantization") == "fp8") s.set(role + ".weights", "fp8", fact + "quantization");
  note_engine_arguments(text, server.path, engine, notes);
}

}  // namespace oomplan::verl
