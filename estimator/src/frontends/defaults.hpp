// What a framework does when a job file is silent: one row per value, with the version it holds for and the place in the
// framework's own code. For every framework, version and role at most one row of a key applies; a test walks them.
// Numbers that models/engines holds (memory fractions, buckets) are named here and looked up there.
#pragma once
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/facts.hpp"
#include "job/knobs.hpp"

namespace oomplan {

/// Which roles a row is for.
enum class For : std::uint8_t { trains, unit_by_unit, flat, policy, values, reference, megatron, sglang, vllm, servers, shared };

struct DefaultRow {
  Framework framework;
  std::string_view versions;  ///< "<2.0"; "" any
  For roles;
  std::string_view key, value;
  std::string_view source;  ///< file of the framework's repository; with an empty value: the fact of models/engines that has it
};
/// The row's value as a knob's text, with its source. Throws InputError when models/engines lacks the fact.
struct DefaultValue {
  std::string text, source;
};
DefaultValue value_of(const DefaultRow&, std::string_view version, KnobType, const Facts&);
const std::vector<DefaultRow>& default_rows();
/// Has the framework a value for this knob where a job file is silent, whatever the release and the role?
bool has_default(Framework, std::string_view key);

/// The version that a job file without one means, and the oldest one whose defaults the rows know. "" for torch.
std::string_view newest_version(Framework);
std::string_view oldest_version(Framework);
/// The last release whose defaults were read: what comes later is answered as this one, with a warning.
std::string_view last_known_version(Framework);
/// The version of a server that the framework brings along, or the newest one that models/engines knows.
std::string server_version(Framework, std::string_view version, EngineKind, const Facts&);
/// "AReaL 1.0.4".
std::string framework_text(Framework, std::string_view version);

/// Does the row apply to this role? Its engine, framework and `beside` must be set.
bool applies(const DefaultRow&, const Job&, const Role&);

}  // namespace oomplan
