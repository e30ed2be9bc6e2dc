// What Relax's losses have of their own: the most likely tokens of teacher or student, a classifier's head.
#pragma once
#include <vector>

#include "frontends/slime/meaning.hpp"

namespace oomplan::relax {

/// Log-probs of --opd-log-prob-top-k tokens of every response token are made: not of sampled tokens (OpdManager,
/// relax/engine/rollout/on_policy_distillation.py), where the number has no effect.
bool takes_most_likely(const slime::SlimeText&);
/// --opd-fkl-entropy-gate of a later state: sampled tokens in the advantages, most likely ones in the loss
/// (relax/utils/opd/opd_utils.py, redai-studio/Relax 92106a46).
bool gates_by_entropy(const slime::SlimeText&);
/// Advantages alone have their divergence (--opd-kl-coef).
bool in_advantages(const slime::SlimeText&);
bool classifies(const slime::SlimeText&);

std::vector<slime::OwnSetting> learner(const slime::SlimeText&, const slime::SlimeMeaning&);

}  // namespace oomplan::relax
