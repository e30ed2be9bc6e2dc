// A Llama of two layers whose tensors can be counted by hand, with adapters beside it.
#pragma once
#include <memory>

#include "catalog/read_config.hpp"
#include "estimate/figures.hpp"

namespace oomplan {

/// h = 8, two heads and one of keys and values of 4, width 12, 1,000 words; `tokens` tokens in bf16 on one device.
inline TrainingCase tiny_llama(std::int64_t tokens, std::int64_t rank) {
  TrainingCase c;
  c.architecture = std::make_shared<const Architecture>(
      read_config(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 12,
                      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 1000,
                      "max_position_embeddings": 64, "tie_word_embeddings": false})",
                  "tiny"));
  Trainer& t = c.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_flash;
  t.kernel_internals = false;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = tokens;
  t.wrap_embedding = t.wrap_head = false;
  t.lora.rank = rank;
  c.engine = EngineKind::single;
  return c;
}

}  // namespace oomplan
