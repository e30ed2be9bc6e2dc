// Words that Transformers' arguments and all that hands them on have in common: optimizers, attention, number formats.
#pragma once
#include <string>
#include <string_view>

namespace oomplan::trainers {

/// transformers/training_args.py OptimizerNames, 5.24; of those whose states are described. `form`: of torch.optim, "" of others.
struct OptimizerName {
  std::string_view name, optimizer, form;
};
/// nullptr: not described.
const OptimizerName* find_optimizer(std::string_view name);
/// The word of Transformers for an optimizer of ours and its form ("" as well as any); "": it has none.
std::string_view word_of_optimizer(std::string_view optimizer, std::string_view form);

/// Of transformers' attention implementations the kernels of ours; "" where they are not described.
std::string_view kernels_of_attention(std::string_view implementation);
std::string_view attention_of_kernels(std::string_view kernels);

/// Whether classes of layers that FSDP wraps are said, and none of them is a vision or sound tower's, by their names in
/// Transformers.
bool wraps_text_alone(std::string_view classes);

/// "bf16" of "bfloat16"; "" of what is no format of 16 or 32 bits.
std::string format_named(std::string_view name);

}  // namespace oomplan::trainers
