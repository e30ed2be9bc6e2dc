// Reads models/gpus.json: a list of {name, aliases, sm, usable, smi_mib, sms, memory_bandwidth, bf16_flops, fp8_flops,
// link_bandwidth, link, source}. Every key must be there, none may be unknown; `fp8_flops` is 0 where there is no fp8.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "catalog/gpus.hpp"

namespace oomplan {

/// Throws InputError.
std::vector<Gpu> read_gpus(std::string_view text, const std::string& file);

}  // namespace oomplan
