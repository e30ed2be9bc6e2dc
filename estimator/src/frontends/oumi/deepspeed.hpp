// The section `deepspeed` of Oumi's file: ZeRO as DeepSpeed gets it, and in which formats it runs
// (src/oumi/core/configs/params/deepspeed_params.py: to_deepspeed; transformers/integrations/deepspeed.py, 5.24).
#pragma once
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "frontends/oumi/read.hpp"
#include "frontends/oumi/settings.hpp"

namespace oomplan::oumi {

/// `stored`: the format that the model is loaded in. `catalog`: knows the model whose size "auto" stands for; nullptr: nobody
/// asks.
void deepspeed_settings(const OumiText&, const std::string& stored, const Catalog* catalog, OumiSettings&, std::vector<Note>&);
/// Numbers of its own that are not the trainer's.
std::vector<Problem> deepspeed_mismatches(const OumiText&);

}  // namespace oomplan::oumi
