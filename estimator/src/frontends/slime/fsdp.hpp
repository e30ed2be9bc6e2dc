// slime's FSDP backend, `--train-backend fsdp` of 0.2.0 to 0.2.2 (slime/backends/fsdp_utils): FSDP2 over all GPUs of the actor,
// transformers' models with fp32 parameters, a parser that knows its own flags and slime's, and none of Megatron's.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "frontends/native.hpp"
#include "frontends/slime/flags.hpp"
#include "frontends/slime/meaning.hpp"

namespace oomplan::slime {

bool by_fsdp(const SlimeText&);

/// A flag of its parser that slime has not (slime/backends/fsdp_utils/arguments.py: FSDPArgs).
struct FsdpFlag {
  std::string_view flag;
  std::string_view name;  ///< of the argument
  bool is_switch = false;
};
/// nullptr: there is none.
const FsdpFlag* fsdp_flag(std::string_view written);

/// Does its parser take the flag? It passes over nothing.
bool fsdp_knows(Release, const std::string& flag);
/// argparse takes the beginning of one flag for that flag.
std::string fsdp_in_full(Release, const std::string& flag);

/// The flag that says a knob of a trainer; "": none.
std::string_view fsdp_flag_of(std::string_view knob);

/// What its loop does: not what slime does to Megatron.
TrainingLoop fsdp_loop(const TrainingLoop& of_megatron);

/// ... and what it does where a job is silent: knobs of a role.
std::vector<std::pair<std::string_view, std::string>> fsdp_defaults(const Role&, std::string_view version);

/// What slime itself refuses under it.
void check_fsdp(SlimeText&, const SlimeMeaning&);
/// What of it is not described.
void fsdp_not_yet(SlimeText&, const SlimeMeaning&);
void check_fsdp_model(SlimeText&, const Architecture&, const std::string& name);

/// Settings of the role that learns, or of its reference. Batches and the model are not among them.
std::vector<Setting> fsdp_settings(const SlimeText&, const SlimeMeaning&, const std::string& role);

/// Its parameters lie on the host always.
bool stays_on_host(const SlimeText&);

}  // namespace oomplan::slime
