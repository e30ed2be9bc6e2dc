// Adapters beside the trainer's layers, and room for them in the servers: Relax's flags.
#pragma once
#include <string>
#include <vector>

#include "frontends/native.hpp"
#include "frontends/slime/read.hpp"

namespace oomplan::slime {

/// Settings of `role`; none without --lora-rank. Modules that are not described are told as problems of `text`.
std::vector<Setting> adapters_of(SlimeText& text, const std::string& role);
/// Servers have the base and one adapter beside it; otherwise adapters are added to the base before it is sent.
bool serves_adapters(const SlimeText&);
/// ... and what they have room for.
std::vector<Setting> slots_of_adapters(const SlimeText&, const std::string& role);

}  // namespace oomplan::slime
