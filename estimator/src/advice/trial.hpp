// One setting of a job changed, and what an estimate says then. What "changed" means is the file's business: a job of ours
// follows its own rules, a framework's file is composed again.
#pragma once
#include <functional>
#include <optional>
#include <string>
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

/// How far the fullest GPU is above (or below) what it has.
Bytes excess(const Estimate&);

/// The values to try for a knob, from mild to strong; `role` is null for a job's knob.
std::vector<std::string> values_of(const Job&, const Role*, const Knob&);

/// The change of one knob that gains most; the mildest of those that are enough by themselves. `refused` gets the reason when
/// the file cannot say any of them.
struct Judged {
  Remedy remedy;
  Changed changed;
};
std::optional<Judged> best_of(const Job&, const Role*, const Knob&, Bytes before, const Catalog&, TapeStore&, const Changer&,
                              std::string* refused = nullptr);
/// A change that is given, judged. Nothing when it gains nothing worth saying.
std::optional<Judged> judge(Changed, Bytes before, const Catalog&, TapeStore&);

/// Settings changed by the rules of a job file of ours.
Changed change_natively(const Job&, const Settings&, const Catalog&);

}  // namespace oomplan
