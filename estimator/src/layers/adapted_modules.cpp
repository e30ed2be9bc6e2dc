#include "layers/adapted_modules.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <oomplan/units/errors.hpp>

#include "layers/decoder.hpp"
#include "layers/families.hpp"
#include "layers/module_names.hpp"
#include "layers/name_pattern.hpp"
#include "layers/target_defaults.hpp"
#include "units/enums.hpp"

namespace oomplan {
namespace {

enum class ModuleKind : std::uint8_t {
  linear,         ///< torch's Linear, transformers' Conv1D
  embedding,      ///< torch's Embedding
  other_adapted,  ///< peft has adapters for its class that are not described (Conv1d)
  none            ///< peft refuses it
};

struct Module {
  std::string name;
  std::string leaf;  ///< the simulator's word; empty: it has none
  ModuleKind kind = ModuleKind::none;
  std::int64_t layer = -1, in = 0, out = 0;
};

struct FoldedParameter {
  std::string name, leaf;
  std::int64_t layer = -1, experts = 1, in = 0, out = 0;
};

bool has(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

bool ends_with_entry(std::string_view name, std::string_view entry) {
  if (name == entry) return true;
  return name.size() > entry.size() && name.ends_with(entry) && name[name.size() - entry.size() - 1] == '.';
}
bool ends_with_any(std::string_view name, const std::vector<std::string>& entries) {
  return std::any_of(entries.begin(), entries.end(), [&](const std::string& e) { return ends_with_entry(name, e); });
}

std::string_view last_word(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

/// All modules of the model, and parameters that peft may fold pairs into.
class Inventory {
 public:
  Inventory(const Architecture& a, bool expert_modules)
      : a_(a), names_(module_names(a.family)), code_(family_code(a.family)), expert_modules_(expert_modules) {
    container(names_.stem.substr(0, names_.stem.size() - 1));
    outside("embed_tokens", names_.embedding, ModuleKind::embedding, a.vocab, width());
    if (a.position_rows > 0) outside("embed_positions", names_.positions, ModuleKind::embedding, a.position_rows, a.hidden);
    if (a.embedding_width > 0) {
      outside("project_out", "project_out", ModuleKind::linear, a.hidden, width());
      outside("project_in", "project_in", ModuleKind::linear, width(), a.hidden);
    }
    std::int64_t number = 0;
    for (const LayerRun& run : a.runs) {
      const std::vector<Leaf> leaves = leaves_of(run.layer);
      for (std::int64_t i = 0; i < run.count; ++i) layer(leaves, number++);
    }
    beside_layers();
    if (a.final_norm != NormKind::none) bare(std::string(names_.stem) + std::string(names_.final_norm), -1);
    modules_.push_back({"lm_head", "lm_head", ModuleKind::linear, -1, width(), a.vocab});
  }
  const std::vector<Module>& modules() const { return modules_; }
  const std::vector<FoldedParameter>& parameters() const { return parameters_; }

 private:
  std::int64_t width() const { return a_.embedding_width > 0 ? a_.embedding_width : a_.hidden; }
  void outside(std::string leaf, std::string_view name, ModuleKind kind, std::int64_t in, std::int64_t out) {
    modules_.push_back({std::string(names_.stem) + std::string(name), std::move(leaf), kind, -1, in, out});
  }
  void bare(std::string name, std::int64_t layer) { modules_.push_back({std::move(name), {}, ModuleKind::none, layer, 0, 0}); }
  void container(std::string_view name) {
    if (!name.empty() && containers_.insert(std::string(name)).second) bare(std::string(name), -1);
  }
  void containers_of(std::string_view name, std::int64_t layer) {
    for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1))
      if (containers_.insert(std::string(name.substr(0, dot))).second) bare(std::string(name.substr(0, dot)), layer);
  }

  std::vector<Leaf> leaves_of(const Layer& layer) const {
    Eager apart;
    apart.prefix.clear();
    (void)declare_layer(apart, a_, layer, DType::bf16, AdapterOptions{}, expert_modules_);
    return apart.leaves;
  }
  void layer(const std::vector<Leaf>& leaves, std::int64_t number) {
    const std::string stem = fmt::format("{}{}.{}.", names_.stem, names_.layers, number);
    std::set<std::string> seen;
    for (const Leaf& leaf : leaves) {
      std::string module = leaf.name;
      const bool weight = module.ends_with(".weight"), bias = module.ends_with(".bias");
      if (!weight && !bias) {
        parameter_of_module(leaf, stem, number);
        continue;
      }
      module.resize(module.rfind('.'));
      if (!weight || !seen.insert(module).second) continue;
      add(leaf, module, stem + name_in_layer(names_, a_, module), number);
    }
    for (std::string_view rest = names_.bare; !rest.empty();) {
      const std::size_t blank = rest.find(' ');
      const std::string name = stem + std::string(rest.substr(0, blank));
      if (containers_.contains(name.substr(0, name.rfind('.')))) bare(name, number);  // not every layer has experts
      rest = blank == std::string_view::npos ? std::string_view{} : rest.substr(blank + 1);
    }
  }
  void add(const Leaf& leaf, const std::string& module, const std::string& name, std::int64_t number) {
    containers_of(name, number);
    const bool matrix = leaf.shape.size() == 2;
    const bool router = module == "mlp.gate" && !expert_modules_;
    const std::int64_t first = leaf.shape.front().coefficient, second = matrix ? leaf.shape[1].coefficient : 0;
    Module made{name, module, ModuleKind::none, number, code_.conv1d ? first : second, code_.conv1d ? second : first};
    if (matrix && (!router || names_.router_is_linear)) made.kind = ModuleKind::linear;
    if (leaf.shape.size() == 3) made.kind = ModuleKind::other_adapted;
    modules_.push_back(std::move(made));
    if (router) parameters_.push_back({name + ".weight", module, number, 1, second, first});
  }
  /// Fused experts, and numbers of a module's own.
  void parameter_of_module(const Leaf& leaf, const std::string& stem, std::int64_t number) {
    const std::string name = stem + name_in_layer(names_, a_, leaf.name);
    containers_of(name, number);
    if (leaf.shape.size() != 3) return;
    parameters_.push_back(
        {name, leaf.name, number, leaf.shape[0].coefficient, leaf.shape[2].coefficient, leaf.shape[1].coefficient});
  }
  /// Gemma 3n and 4.
  void beside_layers() {
    const Layer& first = a_.runs.front().layer;
    if (a_.per_layer_vocab > 0) {
      const std::int64_t all = a_.layers() * first.per_layer_input;
      outside("embed_tokens_per_layer", "embed_tokens_per_layer", ModuleKind::embedding, a_.per_layer_vocab, all);
      outside("per_layer_model_projection", "per_layer_model_projection", ModuleKind::linear, a_.hidden, all);
      bare(std::string(names_.stem) + "per_layer_projection_norm", -1);
    }
    for (std::int64_t i = 1; i < first.altup_inputs; ++i)
      for (const char* name : {"altup_projections", "altup_unembed_projections"}) {
        const std::string full = fmt::format("{}.{}", name, i - 1);
        containers_of(std::string(names_.stem) + full, -1);
        outside(full, full, ModuleKind::linear, a_.hidden, a_.hidden);
      }
  }

  const Architecture& a_;
  const ModuleNames& names_;
  const FamilyCode& code_;
  bool expert_modules_;
  std::set<std::string> containers_;
  std::vector<Module> modules_;
  std::vector<FoldedParameter> parameters_;
};

/// The number of the layer in a name: of the first segment that is one, behind two others or behind one of the patterns.
std::optional<std::int64_t> layer_of(std::string_view name, const std::vector<std::string>& patterns) {
  std::vector<std::string_view> words;
  for (std::size_t from = 0; from <= name.size();) {
    const std::size_t dot = std::min(name.find('.', from), name.size());
    words.push_back(name.substr(from, dot - from));
    from = dot + 1;
  }
  const auto number = [&](std::size_t i) -> std::optional<std::int64_t> {
    if (i + 1 >= words.size() || words[i].empty() || words[i].size() > 9) return std::nullopt;
    if (!std::all_of(words[i].begin(), words[i].end(), [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
    return std::stoll(std::string(words[i]));
  };
  if (patterns.empty()) {
    for (std::size_t i = 2; i < words.size(); ++i)
      if (const auto found = number(i)) return found;
    return std::nullopt;
  }
  for (const std::string& pattern : patterns)
    for (std::size_t i = 1; i < words.size(); ++i)
      if (words[i - 1] == pattern && number(i)) return number(i);
  return std::nullopt;
}

/// What peft looks for, as its configuration has it once defaults and "all-linear" are put in.
struct Wanted {
  std::vector<std::string> entries;
  std::set<std::string> whole;  ///< full names, of "all-linear"
  std::optional<NamePattern> expression;
  std::vector<std::string> parameters;  ///< target_parameters
  bool doubled = false;                 ///< gate and up are one parameter: twice the rank
};

class PeftRule {
 public:
  PeftRule(const Architecture& a, const Lora& lora, bool expert_modules)
      : a_(a), lora_(lora), expert_modules_(expert_modules), inventory_(a, expert_modules) {}

  AdaptedModules run() {
    check();
    if (!lora_.exclude_matching.empty()) exclude_ = compiled("lora.exclude", lora_.exclude_matching);
    Wanted wanted = wanted_targets();
    convert_experts(wanted);
    place_copies();
    for (const Module& m : inventory_.modules()) look_at(m, wanted);
    for (const FoldedParameter& p : inventory_.parameters())
      if (ends_with_any(p.name, wanted.parameters)) fold(p, wanted.doubled);
    if (adapted_ == 0) nothing_found();
    return finish();
  }

 private:
  [[noreturn]] void refuse(std::string knob, std::string found, std::string expected, std::string why) const {
    throw InputError(Problem{{{}, 0, 0, std::move(knob)}, std::move(found), std::move(expected), nearest_name(), std::move(why)});
  }
  [[noreturn]] void peft_says(std::string why) const { refuse("lora.targets", asked(), {}, "peft: " + why); }
  [[noreturn]] void not_yet(std::string what) const {
    refuse("lora.targets", asked(), "other targets", fmt::format("not supported yet: {} of {}", what, a_.name));
  }
  std::string asked() const {
    if (!lora_.targets_matching.empty()) return fmt::format("'{}'", lora_.targets_matching);
    if (lora_.targets_by_type) return "no targets";
    return lora_.targets.empty() ? std::string("all-linear") : fmt::format("[{}]", fmt::join(lora_.targets, ", "));
  }
  /// Last words of what could have adapters.
  std::vector<std::string> words() const {
    std::vector<std::string> out;
    for (const Module& m : inventory_.modules())
      if (m.kind != ModuleKind::none && !has(out, last_word(m.name))) out.emplace_back(last_word(m.name));
    return out;
  }
  std::string nearest_name() const { return lora_.targets.empty() ? std::string() : nearest(lora_.targets.front(), words()); }

  void check() const {
    const bool text = !lora_.targets_matching.empty(), all = !text && lora_.targets.empty() && !lora_.targets_by_type;
    if (!lora_.layers.empty() && (text || all))
      refuse("lora.layers", "layers", "a list of targets",
             "peft: layers_to_transform cannot be used when target_modules is a text");
    if (!lora_.layers_pattern.empty() && lora_.layers.empty())
      refuse("lora.layers_pattern", "a pattern", "lora.layers beside it", "peft: layers_pattern needs layers_to_transform");
    constexpr std::size_t kMost = 20;  // peft shortens such lists first (_find_minimal_target_modules)
    if (!lora_.layers.empty() && lora_.targets.size() >= kMost) not_yet("twenty targets beside lora.layers");
  }
  NamePattern compiled(const char* knob, const std::string& text) const {
    std::string why;
    NamePattern out = NamePattern::parse(text, why);
    if (!why.empty()) refuse(knob, fmt::format("'{}'", text), "an expression for names of modules", "not supported yet: " + why);
    return out;
  }

  Wanted wanted_targets() const {
    Wanted out;
    if (!lora_.targets_matching.empty()) {
      out.expression = compiled("lora.targets", lora_.targets_matching);
    } else if (lora_.targets_by_type) {
      const TargetDefault* found = default_targets(a_, lora_.kind);
      if (found == nullptr)
        peft_says(fmt::format("it has no default targets for '{}': please specify target_modules", a_.model_type));
      if (found->expression)
        out.expression = compiled("lora.targets", std::string(found->targets));
      else
        out.entries = found->entries();
    } else if (lora_.targets.empty()) {
      for (const Module& m : inventory_.modules())
        if (m.kind == ModuleKind::linear && m.leaf != "lm_head") out.whole.insert(m.name);
    } else {
      out.entries = lora_.targets;
    }
    return out;
  }

  /// A text is resolved to last words first: of all linear layers, or of modules and parameters that the expression finds.
  void resolve_for_experts(Wanted& w, const ExpertWords& words) const {
    std::set<std::string> out;
    if (w.expression) {
      for (const Module& m : inventory_.modules())
        if (found(m.name, w)) out.emplace(last_word(m.name));
      for (const FoldedParameter& p : inventory_.parameters()) {
        if (found(p.name, w)) out.emplace(last_word(p.name));
        const std::string owner = p.name.substr(0, p.name.rfind('.') + 1);
        for (const auto& [old, now] : words.parts)
          if (last_word(p.name) == now && found(owner + std::string(old), w)) out.emplace(old);
      }
    } else {
      for (const std::string& name : w.whole) out.emplace(last_word(name));
      for (const auto& [old, now] : words.parts) out.emplace(old);
    }
    if (out.empty()) return;
    w.expression.reset();
    w.whole.clear();
    w.entries.assign(out.begin(), out.end());
  }
  /// transformers 5 fused experts: targets of release 4 become parameters.
  void convert_experts(Wanted& w) const {
    const ExpertWords* words = expert_modules_ || lora_.kind != AdapterKind::lora ? nullptr : expert_words(a_.family);
    if (words == nullptr) return;
    // the configuration's None becomes an empty set, which asks for no defaults
    if (lora_.targets_by_type) peft_says("no target_modules passed: of models whose experts it converts it takes no defaults");
    if (w.expression || !w.whole.empty()) resolve_for_experts(w, *words);
    if (w.entries.empty()) return;
    std::vector<std::string> left;
    std::set<std::string_view> halves;
    for (const std::string& entry : w.entries) {
      const auto part =
          std::find_if(words->parts.begin(), words->parts.end(), [&](const auto& p) { return ends_with_entry(entry, p.first); });
      if (part == words->parts.end()) {
        left.push_back(entry);
        continue;
      }
      if (!has(w.parameters, part->second)) w.parameters.emplace_back(part->second);
      if (part->second == "gate_up_proj") halves.insert(part->first);
    }
    if (halves.size() == 1)
      peft_says(fmt::format("it cannot convert {} without its other half: transformers 5 fused both into gate_up_proj",
                            *halves.begin()));
    w.doubled = halves.size() == 2;
    w.entries = std::move(left);
  }

  bool found(const std::string& name, const Wanted& w) const { return !excluded(name) && matched(name, w); }
  bool excluded(const std::string& name) const {
    if (exclude_ ? exclude_->matches(name) : ends_with_any(name, lora_.exclude)) return true;
    return std::any_of(lora_.modules_to_save.begin(), lora_.modules_to_save.end(), [&](const std::string& m) {
      // (^|.*\.)m($|\..*): the module or what is inside of it
      for (std::size_t at = name.find(m); at != std::string::npos; at = name.find(m, at + 1)) {
        const std::size_t end = at + m.size();
        if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
      }
      return false;
    });
  }
  bool matched(const std::string& name, const Wanted& w) const {
    if (w.expression) return w.expression->matches(name);
    if (w.whole.contains(name)) return true;
    if (has(w.entries, name)) return true;
    if (!ends_with_any(name, w.entries)) return false;
    if (lora_.layers.empty()) return true;
    const std::optional<std::int64_t> layer = layer_of(name, lora_.layers_pattern);
    return layer && std::find(lora_.layers.begin(), lora_.layers.end(), *layer) != lora_.layers.end();
  }

  void look_at(const Module& m, const Wanted& w) {
    if (!found(m.name, w)) return;
    const bool scans = a_.family == "mamba" || a_.family == "mamba2" || a_.family == "falcon_mamba" || a_.family == "nemotron_h";
    if (lora_.kind == AdapterKind::lora && scans && (last_word(m.name) == "out_proj" || last_word(m.name) == "conv1d"))
      peft_says(fmt::format("module '{}' is incompatible with Mamba-based models", last_word(m.name)));
    if (m.kind == ModuleKind::none)
      peft_says(fmt::format("target module {} is not supported: it is no linear layer and no embedding", m.name));
    const bool other = m.leaf == "mlp.gate" || m.leaf.starts_with("mlp.experts.") || m.leaf.starts_with("self_attn.indexer.") ||
                       m.leaf == "embed_positions" || m.leaf == "embed_tokens_per_layer" || m.leaf.starts_with("project_");
    if (m.kind == ModuleKind::other_adapted || m.leaf.empty() || other) not_yet(fmt::format("adapters of {}", m.name));
    if (m.kind == ModuleKind::embedding && lora_.kind != AdapterKind::lora)
      peft_says(fmt::format("target module {} is not supported by these adapters", m.name));
    out_.full_names.push_back(m.name);
    out_.trained += lora_.rank * (m.in + m.out);
    note(m.layer, m.leaf);
  }
  void fold(const FoldedParameter& p, bool doubled) {
    if (lora_.dora) peft_says("lora.ParamWrapper, which adapts fused experts, does not work with DoRA");
    if (lora_.dropout > 0) peft_says("lora.ParamWrapper, which adapts fused experts, does not work with lora_dropout");
    const bool both = doubled && last_word(p.name) == "gate_up_proj";
    out_.folded_names.push_back(p.name);
    out_.trained += lora_.rank * (both ? 2 : 1) * p.experts * (p.in + p.out);
    note(p.layer, p.leaf);
  }
  void note(std::int64_t layer, const std::string& leaf) {
    ++adapted_;
    if (layer < 0)
      out_.outside.push_back(leaf);
    else
      by_layer_[layer].push_back(leaf);
  }

  /// modules_to_save: every module whose name ends with an entry. Embedding and output layer are described.
  void place_copies() {
    for (const std::string& entry : lora_.modules_to_save) {
      bool any = false;
      for (const Module& m : inventory_.modules()) {
        if (!m.name.ends_with(entry)) continue;
        any = true;
        if (m.leaf != "embed_tokens" && m.leaf != "lm_head")
          refuse("lora.modules_to_save", entry, "embedding or output layer",
                 fmt::format("not supported yet: a trained copy of {}", m.name));
        if (has(out_.saved, m.leaf)) continue;
        out_.saved.push_back(m.leaf);
        out_.trained += m.in * m.out;
        if (m.leaf == "lm_head" && a_.head_bias) out_.trained += m.out;
      }
      if (!any) refuse("lora.modules_to_save", entry, "embedding or output layer", "peft finds no such module and saves nothing");
    }
  }

  [[noreturn]] void nothing_found() const {
    refuse("lora.targets", asked(), fmt::format("names of this model's modules: {}", fmt::join(words(), ", ")),
           "peft: target modules not found in the base model");
  }

  AdaptedModules finish() {
    std::map<std::vector<std::string>, int> numbers;
    for (std::int64_t layer = 0; layer < a_.layers(); ++layer) {
      std::vector<std::string> set = std::move(by_layer_[layer]);
      std::sort(set.begin(), set.end());
      const auto [at, fresh] = numbers.try_emplace(set, static_cast<int>(out_.sets.size()));
      if (fresh) out_.sets.push_back(std::move(set));
      out_.of_layer.push_back(at->second);
    }
    std::sort(out_.full_names.begin(), out_.full_names.end());
    std::sort(out_.folded_names.begin(), out_.folded_names.end());
    return std::move(out_);
  }

  const Architecture& a_;
  const Lora& lora_;
  bool expert_modules_;
  const Inventory inventory_;
  std::optional<NamePattern> exclude_;
  std::map<std::int64_t, std::vector<std::string>> by_layer_;
  AdaptedModules out_;
  std::int64_t adapted_ = 0;
};

}  // namespace

bool AdaptedModules::beside(std::int64_t layer, const std::string& leaf) const {
  const auto at = static_cast<std::size_t>(layer);
  if (at >= of_layer.size()) return false;
  const std::vector<std::string>& set = sets[static_cast<std::size_t>(of_layer[at])];
  return std::binary_search(set.begin(), set.end(), leaf);
}
bool AdaptedModules::has_outside(const std::string& module) const { return has(outside, module); }
bool AdaptedModules::saves(const std::string& module) const { return has(saved, module); }

AdaptedModules adapted_modules(const Architecture& a, const Lora& lora, bool expert_modules) {
  return PeftRule(a, lora, expert_modules).run();
}

bool spares_tower(const Lora& lora) {
  if (lora.exclude_matching.empty()) return false;
  std::string why;
  const NamePattern pattern = NamePattern::parse(lora.exclude_matching, why);
  constexpr std::array<std::string_view, 3> kModules{"model.visual.blocks.0.attn.qkv", "model.visual.blocks.10.mlp.linear_fc1",
                                                     "model.visual.merger.mlp.0"};
  return why.empty() &&
         std::all_of(kModules.begin(), kModules.end(), [&](std::string_view name) { return pattern.matches(name); });
}

}  // namespace oomplan
