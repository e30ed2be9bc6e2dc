// One setting of a job changed, and what an estimate says then. What "changed" means is the file's business: a job of ours
// follows its own rules, a framework's file is composed again.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catalog/catalog.hpp"
#include "estimate/assemble.hpp"
#include "estimate/process_store.hpp"
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
  std::string role;    ///< of the worst moment: a change that does not lower the levels of its GPUs is not replayed
  Estimate levels;     ///< without the replay
  Bytes replayed = 0;  ///< excess of all
  /// All GPUs fit, and a node's memory does not do: it is what changes are to lower.
  bool of_host = false;
};

/// What changes are judged with: GPUs that a change leaves alone are not replayed again.
class Judge {
 public:
  Judge(const Catalog& known, TapeStore& store) : catalog(known), tapes(store) {}

  const Catalog& catalog;
  TapeStore& tapes;
  ProcessStore processes;
  Before before;
  /// Once so many allocations and frees were played, changes are judged by their levels.
  std::int64_t most_events = std::numeric_limits<std::int64_t>::max();
  bool gave_up = false;  ///< some were

  /// What is lacking where the job before lacks most: of the GPUs, of those of a role, or of the fullest node's memory.
  Bytes lacks(const Estimate&, std::string_view role = {}) const;
  /// Replays the classes of `assembled`, whose levels it looks at first; its figures are `before` from then on.
  void start(Assembled& assembled, const Job&);
  /// The same of a job whose estimate is there: nothing is replayed again.
  void start(const Assembled&, const Estimate& judged);
  /// By levels, which are lower bounds. Throws InputError for what is not supported yet.
  Estimate levels(const Job&) const;
  /// By the replay of all GPUs, as an estimate says it.
  Assembled replayed(const Job&);
  /// By the replay: what the GPUs that lack most need, and whether all fits, as an estimate says it. Nothing once most_events
  /// were played.
  std::optional<Estimate> fullest(const Job&);
  /// Whether that estimate fits: what does not is found out sooner.
  bool fits(const Job&);

 private:
  void note(const Estimate& replayed);
};

/// The values to try for a knob, from mild to strong; `role` is null for a job's knob. `of_host`: for a node's memory, which
/// what lies on the host takes.
std::vector<std::string> values_of(const Job&, const Role*, const Knob&, bool of_host = false);

/// The change of one knob that gains most by levels; the mildest of those that are enough by themselves. What it gains, and
/// whether it is enough, a replay says. `refused` gets the reason when the file cannot say any of them.
struct Judged {
  Remedy remedy;
  Changed changed;
  std::string value = {};  ///< of the knob, where one knob was changed
};
std::optional<Judged> best_of(const Job&, const Role*, const Knob&, Judge&, const Changer&, std::string* refused = nullptr);

/// By levels: what the GPUs of the worst moment gain, or those of `role`. Nothing when that is not worth a replay.
std::optional<Judged> sift(Changed, const Judge&, std::string_view role = {});
/// A sifted change by the replay; by its levels once the judge gives up. Nothing when it gains nothing worth saying.
std::optional<Judged> confirm(Judged, Judge&);

/// Settings changed by the rules of a job file of ours.
Changed change_natively(const Job&, const Settings&, const Catalog&);

}  // namespace oomplan
