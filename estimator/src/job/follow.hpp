// What else changes in a job when one setting does: values that nobody wrote follow those that somebody did.
//
// read() derives such values while it assembles a job. A search or a remedy changes a job that is already there; what it promises
// must be what read() makes of the same override, so the rules stand here once.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

/// Knobs that ref and critic take over from the actor when their own block is silent. Not the head, offload and place, which
/// depend on the role.
const std::vector<std::string_view>& knobs_like_the_actor();

/// Why a value of ref or critic is what it is where only the actor's was written.
inline constexpr std::string_view kLikeTheActor = "like the actor";

/// Was the value in the file or in an override?
bool written(const Job&, std::string_view key);
/// Keys of other roles whose values become that of `key` when it is written: "actor.recompute" -> "ref.recompute".
std::vector<std::string> followers(const Job&, std::string_view key);

/// The job as it would be read with the override `key`=`text`. Throws what set() throws.
void set_as_read(Job&, std::string_view key, std::string_view text);

}  // namespace oomplan
