// verl's multi-token prediction: model.mtp (verl/workers/config/model.py: MtpConfig, 0.8 to 0.10).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/verl/meaning.hpp"
#include "frontends/verl/settings.hpp"

namespace oomplan::verl {

/// Whether the role's model has its blocks of multi-token prediction under Megatron. References and critics have none
/// (verl/workers/engine_workers.py: ref_config.model_config.mtp).
bool predicts(const VerlText&, std::string_view role);
/// Blocks that verl's Megatron trains in another way than is described.
void refuse_predicted(VerlSettings&, const VerlText&, std::string_view role);
void predicted_settings(VerlSettings&, const VerlText&, const VerlMeaning&, const std::string& role, std::vector<Note>&);

/// Whether the rollout's servers guess ahead with the model's own blocks.
bool drafts_ahead(const VerlText&);
void refuse_drafts(VerlSettings&, const VerlText&, std::string_view engine);
void draft_settings(VerlSettings&, const VerlText&, std::string_view engine);

}  // namespace oomplan::verl
