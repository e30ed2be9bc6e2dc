// One setting of a job changed, and what an estimate says then. What "changed" means is the file's business: a job of ours
// follows its own rules, a framework's file is composed again.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catalog/catalog.hpp"
#include "estimate/assemble.hpp"
#include "frontends/rewrite.hpp"
#include "job/knobs.hpp"

namespace oomplan {

using Settings = std::vector<std::pair<std::string, std::string>>;  ///< knobs and their texts

/// The job with settings changed; or why the file cannot say it ("" when the job itself would be wrong).
struct Changed {
  std::optional<Job> job;
  Rewrite words;
  std::string why;
};
using Changer = std::function<Changed(const Settings&)>;

/// How far the fullest GPU is above (or below) what it has; `role`: of the GPUs on which this role runs.
Bytes excess(const Estimate&, std::string_view role = {});

/// The job as it is, which changes are compared with.
struct Before {
  std::string role;    ///< of the worst moment
  Bytes levels = 0;    ///< excess of that role's GPUs by levels: a change that does not lower it is not replayed
  Bytes replayed = 0;  ///< excess of all
};
/// Replays the classes of `assembled`, whose levels it looks at first.
Before replayed_before(Assembled& assembled, const Job&);

/// The values to try for a knob, from mild to strong; `role` is null for a job's knob.
std::vector<std::string> values_of(const Job&, const Role*, const Knob&);

/// The change of one knob that gains most by levels; the mildest of those that are enough by themselves. What it gains, and
/// whether it is enough, a replay says. `refused` gets the reason when the file cannot say any of them.
struct Judged {
  Remedy remedy;
  Changed changed;
  std::string value = {};  ///< of the knob, where one knob was changed
};
std::optional<Judged> best_of(const Job&, const Role*, const Knob&, const Before&, const Catalog&, TapeStore&, const Changer&,
                              std::string* refused = nullptr);
/// A change that is given, judged. Nothing when it gains nothing worth saying.
std::optional<Judged> judge(Changed, const Before&, const Catalog&, TapeStore&);

/// Settings changed by the rules of a job file of ours.
Changed change_natively(const Job&, const Settings&, const Catalog&);

}  // namespace oomplan
