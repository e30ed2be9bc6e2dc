#include "frontends/slime/specifications.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "layers/families.hpp"

namespace oomplan::slime {
namespace {

bool has(const Architecture& a, MixerKind kind) {
  return std::ranges::any_of(a.runs, [&](const LayerRun& run) { return run.layer.mixer.kind == kind; });
}
bool gates_outputs(const Architecture& a) {
  return std::ranges::any_of(a.runs, [](const LayerRun& run) { return run.layer.mixer.output_gate; });
}
/// Projections of their own for queries, keys and values, for gates and for rates; of Qwen3-Next two for all of them.
bool is_linear(const Architecture& a, bool apart) {
  const FamilyCode* code = find_family_code(a.family);
  return has(a, MixerKind::gated_delta) && code != nullptr && code->delta_apart == apart;
}

const std::array<Specification, 2>& specifications() {
  static const std::array<Specification, 2> all{{{"slime_plugins.models.qwen3_5",
                                                  "get_qwen3_5_spec",
                                                  "linear attention of Qwen3.5",
                                                  true,
                                                  [](const Architecture& a) { return is_linear(a, true); },
                                                  {"spec", "attention_output_gate"}},
                                                 {"slime_plugins.models.qwen3_next",
                                                  "get_qwen3_next_spec",
                                                  "linear attention of Qwen3-Next",
                                                  true,
                                                  [](const Architecture& a) { return is_linear(a, false); },
                                                  {"spec", "attention_output_gate"}}}};
  return all;
}

}  // namespace

// --use-gated-attention: nothing reads it but Megatron's parser (docker/patch/latest/megatron.patch, 624b824a).
bool is_patched(std::string_view flag) { return flag == "--use-gated-attention"; }

const Specification* specification_of(const SlimeText& t) {
  const std::vector<std::string> words = t.megatron.items("spec");
  for (const Specification& s : specifications())
    if (words.size() == 2 && words[0] == s.module && words[1] == s.function) return &s;
  return nullptr;
}

std::vector<std::string_view> described_flags(const SlimeText& t) {
  const Specification* s = specification_of(t);
  return s == nullptr ? std::vector<std::string_view>{} : s->flags;
}

void check_layers(SlimeText& t, const Architecture& a, const std::string& name) {
  const Specification* said = specification_of(t);
  const auto refuse = [&](const char* flag, std::string found, std::string expected, std::string why) {
    t.told.add(t.megatron.place(flag), std::move(found), std::move(expected), std::move(why));
    t.told.problems.back().kind = ProblemKind::not_supported;
  };
  if (said != nullptr && !said->fits(a))
    return refuse("spec", fmt::format("'{}'", said->module), fmt::format("a specification of the layers of {}", name),
                  fmt::format("not supported yet: {} for a checkpoint without it", said->what));
  if (said == nullptr && !t.megatron.has("spec"))
    for (const Specification& s : specifications())
      if (s.fits(a))
        return refuse("spec", "nothing", fmt::format("{} {}", s.module, s.function),
                      fmt::format("not supported yet: {} without {}", name, s.what));
  if (said != nullptr && gates_outputs(a) != t.megatron.on("attention_output_gate"))
    refuse("attention_output_gate", gates_outputs(a) ? "nothing" : "the flag", gates_outputs(a) ? "the flag" : "nothing",
           fmt::format("not supported yet: attention that is not that of {}", name));
}

}  // namespace oomplan::slime
