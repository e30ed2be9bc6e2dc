// Which modules of a transformers model have adapters, by peft's own rule.
//
// huggingface/peft 0.21.2: src/peft/tuners/tuners_utils.py (inject_adapter, check_target_module_exists,
// _maybe_include_all_linear_layers), src/peft/utils/other.py (_set_trainable), src/peft/utils/constants.py (defaults by
// model_type), src/peft/utils/transformers_weight_conversion.py (experts that transformers 5 fused). Judged by peft itself on
// every family (tests/data/adapted_modules.jsonl).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

/// Modules by the simulator's own words ("self_attn.q_proj"), layers by the number of a set of them.
struct AdaptedModules {
  std::vector<std::vector<std::string>> sets;  ///< of a layer: modules, and experts' and routers' parameters that are folded
  std::vector<int> of_layer;
  std::vector<std::string> outside;       ///< "embed_tokens", "lm_head", "per_layer_model_projection", ...
  std::vector<std::string> saved;         ///< "embed_tokens", "lm_head": trained copies beside the frozen modules
  std::vector<std::string> full_names;    ///< adapted modules as peft calls them, sorted
  std::vector<std::string> folded_names;  ///< adapted parameters
  std::int64_t trained = 0;               ///< elements of LoRA's pairs of `rank`, and of trained copies
  bool operator==(const AdaptedModules&) const = default;
  bool beside(std::int64_t layer, const std::string& leaf) const;
  bool has_outside(const std::string& module) const;
  bool saves(const std::string& module) const;
};

/// Throws InputError with peft's own objection, or with what of it is not supported yet. `expert_modules`: of transformers 4.
AdaptedModules adapted_modules(const Architecture&, const Lora&, bool expert_modules);

/// exclude_modules is an expression that matches the names of a vision tower's modules.
bool spares_tower(const Lora&);

}  // namespace oomplan
