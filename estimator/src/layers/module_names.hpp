// What transformers calls the modules of a model, one row a family; what a row does not set is Llama's.
//
// Parameters of the simulator have the names of Llama and its relatives (layers/leaves.cpp). peft looks for modules by the names
// of their classes, which are not always the checkpoint's (catalog/names.hpp): read off the modules that transformers 5.23 builds
// on the meta device (benchmarks/oracle/count_targets.py).
#pragma once
#include <string>
#include <string_view>

#include "catalog/architecture.hpp"

namespace oomplan {

struct ModuleNames {
  std::string_view family = {};
  std::string_view stem = "model.", layers = "layers";
  std::string_view embedding = "embed_tokens", positions = "embed_positions", final_norm = "norm";
  std::string_view attention = "self_attn.", out = "o_proj", qkv = "qkv_proj";
  std::string_view feed_forward = "mlp.", gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string_view moe = "mlp.", router = "gate", shared = "mlp.shared_experts.";
  bool router_is_linear = false;  ///< ... or a module of its own with a parameter `weight`
  std::string_view state = "mixer.";
  std::string_view bare = "mlp.act_fn";  ///< modules of a layer without parameters, apart by blanks
};

const ModuleNames& module_names(std::string_view family);
/// The name within its layer of the module, or of the parameter, that the simulator calls `leaf` ("mlp.fc1").
std::string name_in_layer(const ModuleNames&, const Architecture&, std::string_view leaf);

}  // namespace oomplan
