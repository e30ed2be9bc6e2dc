// LitGPT's parameters and adapters: litgpt/lora.py, 0.3.1 to 0.5.13.
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

/// Which of the one matrix for queries, keys and values have adapters.
struct LitgptParts {
  bool q = false, k = false, v = false;
  std::int64_t count() const { return std::int64_t{q} + std::int64_t{k} + std::int64_t{v}; }
};
LitgptParts litgpt_parts(const AdapterOptions&);

/// LoRALinear.forward, where Fabric may have put bitsandbytes' Linear4bit in place of the frozen layer: its result is neither
/// cloned nor cast, as peft does it.
Tensor litgpt_linear(Eager& g, const Tensor& x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name,
                     Category category = Category::activations);

/// LoRAQKVLinear.forward: [B, S, (a + 2 kv) d]. The products with the second matrix of each part are convolutions of length 1
/// over the tokens; parts without adapters are filled with zeros.
Tensor litgpt_qkv(Eager& g, const Tensor& x, const Mixer&, const LayerLeaves&, const KernelOptions&);

}  // namespace oomplan
