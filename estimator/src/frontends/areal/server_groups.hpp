// What AReaL's keys of SGLang mean for how the GPUs of one server share the experts and attention.
//
// The letters of an allocation say t and p of a server; these keys act inside them (areal/api/cli_args.py SGLangConfig, 0.3.1 to
// 2.0.0, docs/en/reference/alloc_mode.md). sglang/srt/server_args.py, 0.4.6 to 0.5.10: enable_ep_moe makes ep_size the tensor
// degree, and a dp_size of 1 switches enable_dp_attention off.
#pragma once
#include <cstdint>
#include <vector>

#include "frontends/areal/lora.hpp"

namespace oomplan::areal {

struct ServerGroups {
  std::int64_t experts = 1;           ///< ranks that share whole experts
  Origin experts_origin;              ///< the key that says so
  std::vector<LoraSetting> settings;  ///< of the role, beside its layout
};

/// Nothing of servers that are not SGLang's. `root`: as for meaning_of().
ServerGroups groups_of_server(const compose::Node& root, const BuiltRole&);

}  // namespace oomplan::areal
