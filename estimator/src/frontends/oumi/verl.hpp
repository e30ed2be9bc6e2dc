// trainer_type VERL_GRPO: Oumi fills in some keys of verl's configuration, and starts verl (src/oumi/core/trainers/
// verl_grpo_trainer.py: _create_config). What the user writes below training.verl_config_overrides wins.
#pragma once
#include "frontends/handed_on.hpp"

namespace oomplan::oumi {

/// Does the file start verl?
bool starts_verl(const Source&);
/// verl's configuration over its release's defaults. Throws InputError: Oumi refuses the file.
HandedOn verl_of(const Source&);

}  // namespace oomplan::oumi
