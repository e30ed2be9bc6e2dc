// Adapters of Oumi's trainers: what peft is told, and how the base beside them is packed.
#pragma once
#include "frontends/oumi/meaning.hpp"
#include "frontends/oumi/settings.hpp"

namespace oomplan::oumi {

/// `casts`: TRL's trainer makes adapters of a packed base bf16. `mixed`: mixed precision is on.
void put_adapters(OumiSettings&, const Telling&, const OumiMeaning&, bool casts, bool mixed);

}  // namespace oomplan::oumi
