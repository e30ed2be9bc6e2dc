// Trainers of TRL other than SFTTrainer, whoever starts them: the head that each runs in a release, the arguments that change a
// step and are not described, second models and vLLM in the trainer's own processes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/compose/node.hpp"

namespace oomplan::trainers {

/// A trainer in TRL's own words ("dpo", "kto", "grpo", "reward", "gkd", "gold") of a release of TRL ("1.4").
struct TrlTrainer {
  std::string_view name, release;
  bool from(std::string_view version) const;
  bool prefers() const { return name == "dpo" || name == "kto"; }
  bool distils() const { return name == "gkd" || name == "gold"; }
  /// Sequences of the forward pass for one of the batch: a pair is two.
  std::int64_t sequences() const { return name == "dpo" || name == "reward" ? 2 : 1; }
  /// Makes adapters of a packed base bf16.
  bool casts_adapters() const;
  /// Loads its reference model by its name (create_model_from_path), in fp32 unless model_init_kwargs say another format; before
  /// that it is a copy of the policy.
  bool loads_reference() const;
  /// Of a model that comes with adapters a frozen copy of them is the reference; before that the model without them.
  bool copies_adapters() const { return loads_reference(); }
  /// vllm_mode without a word.
  std::string vllm_mode() const { return from("1.0") ? "colocate" : "server"; }
};

struct TrlHead {
  std::string_view head, why;  ///< without a head `why` says what is not described
};
TrlHead head_of(const TrlTrainer&);

struct TrlArgument {
  std::string_view key, what;
};
/// Arguments of the trainer that change what a step holds and are not described.
std::vector<TrlArgument> undescribed_arguments(const TrlTrainer&);
/// Does the value turn such an argument on? nullptr: it does not.
bool turns_on(const compose::Node*);
/// loss_type of DPO with a likelihood loss among its parts.
bool has_likelihood(const compose::Node* loss_type);

/// What GRPOTrainer starts vLLM with in its own processes.
struct TrlServer {
  std::int64_t gpus = 1, tensor = 1;
  double utilization = 0;
  std::int64_t longest = 0;  ///< vllm_max_model_length; 0: the model's
  std::int64_t sequences_per_gpu = 1, steps_per_generation = 1;
};
struct TrlSetting {
  std::string knob, value;
  std::string_view key, source;  ///< the argument that it comes from; "": the code in `source` decides
};
/// Of the role rollout, beside the role actor.
std::vector<TrlSetting> server_settings(const TrlServer&, std::string_view vllm);

}  // namespace oomplan::trainers
