// Models of LitGPT, operator by operator: the kernel sets `litgpt` and `litgpt_0_4_5`.
//
// Read in Lightning-AI/litgpt, litgpt/model.py, litgpt/lora.py and litgpt/utils.py (chunked_cross_entropy) at 0.3.1, 0.4.13 and
// 0.5.13, and in Lightning Fabric's wrappers (lightning/fabric/wrappers.py, plugins/precision/half.py, 2.2), which make every
// output of the model fp32. One matrix gives queries, keys and values, gate and up are two, and no embedding is tied.
// Legend as in decoder.hpp; G groups of queries, which share a key and a value.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/decoder.hpp"
#include "layers/heads.hpp"

namespace oomplan {

constexpr bool is_litgpt(Kernels k) { return k == Kernels::litgpt || k == Kernels::litgpt_0_4_5; }

/// Why LitGPT's model file does not describe this architecture; "" when it does.
std::string unsupported_litgpt(const Architecture&, const KernelOptions&);
/// What LitGPT makes of a model: the output layer is a matrix of its own in any case. With prefixes, which the first layers go
/// without, the others are runs of their own.
Architecture litgpt_architecture(Architecture, AdapterKind);

/// `number`: of the first layer of its run.
LayerLeaves declare_litgpt_layer(Eager& g, const Architecture&, const Layer&, DType dtype, const AdapterOptions&,
                                 std::int64_t number);
/// `lm_head` among the adapters' targets is LitGPT's lora_head.
void adapt_litgpt_head(Eager& g, const Architecture&, int head, const AdapterOptions&);

/// nn.LayerNorm, or LitGPT's RMSNorm in fp32.
Tensor litgpt_norm(Eager& g, NormKind, const Tensor& x, const NormLeaf&, const KernelOptions&, const std::string& name);
/// What is left of a batch before that was as long: the loop's name for its logits goes on to new ones when the next forward pass
/// is over, and until then there are the logits in fp32 and, on the nodes of their graph, the inputs that packed layers have as
/// attributes.
struct LitgptBefore {
  std::vector<Tensor> inputs;
  bool there = false;  ///< in the forward pass, of a batch that had one before
};
/// Block.forward: x is held by the caller.
Tensor run_litgpt_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&, const Tensor& x,
                        LitgptBefore&);

/// Output layer and loss of the fine-tuning loops.
struct LitgptHead {
  int weight = -1, bias = -1;
  bool split = false;  ///< with adapters the output layer takes 128 tokens of every sequence at a time
  const Architecture& architecture;
  const HeadOptions& options;
  LitgptBefore& before;
  std::int64_t sequence_tokens = 0;  ///< under autocast, whose copies of a frozen output layer are one for each chunk
};
/// `kept`: the loop's name for the logits, which it holds through the backward pass. `leave_model` is called where the model has
/// returned, with adapters: what stands behind it comes back before any chunk of the output layer does.
Tensor litgpt_loss(Eager& g, Tensor hidden, const LitgptHead&, Tensor& kept, const std::function<void()>& leave_model);
/// Rows of logits whose loss is computed at once.
std::int64_t litgpt_chunk_rows(bool adapters, std::int64_t sequences);

/// Bytes of the model's cosines and sines.
Bytes litgpt_buffers(const Architecture&, std::int64_t sequence_tokens);

}  // namespace oomplan
