// Every setting of a Job as one row: its key, type, limits, effect, what a change of it does, and how to read and write it.
//
// The same rows drive the job file, overrides, --help, the search's axes, patches and advice. Keys are dotted: a role's name in
// front of a role's knob ("actor.tokens_per_micro_batch", "rollout.layout"), nothing in front of a job's ("sync.bucket").
// Values are text on this side, spelled as in a job file.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "job/limits.hpp"

namespace oomplan {

enum class KnobType : std::uint8_t { count, bytes, number, flag, choice, items, layout, text };
/// Whose knob it is. `trains`: roles on a training engine; `learns`: of those the ones with an optimizer; `serves`: servers;
/// `rewards`: servers of reward models.
enum class KnobOf : std::uint8_t { job, role, trains, learns, serves, rewards };

struct Knob;
/// Why a text is refused as a value; all empty when it is taken.
struct Refusal {
  std::string expected, nearest, why;
  bool refused() const { return !expected.empty() || !why.empty(); }
};

struct Knob {
  std::string_view key;
  KnobOf of = KnobOf::job;
  KnobType type = KnobType::text;
  Limit64 limits{};                  ///< of counts and bytes
  double least = 0, most = 0;        ///< of numbers
  std::string_view zero;             ///< the word for 0 where 0 is no value: "auto"
  std::vector<std::string> choices;  ///< of choices and items; the spellings, aliases included
  std::optional<EngineKind> engine;  ///< only for this engine
  std::string_view unit;
  Effect effect = Effect::semantics;
  std::string_view help;    ///< what it is
  std::string_view remedy;  ///< what a change in the direction of less memory does and costs; "" no remedy
  std::string (*get)(const Job&, const Role*) = nullptr;
  Refusal (*set)(const Knob&, Job&, Role*, std::string_view) = nullptr;
};

const std::vector<Knob>& knobs();

/// Does the role have this knob?
bool applies(const Knob&, const Role&);
/// The keys of a role, or with nullptr of the job, in the order of the table.
std::vector<std::string> keys_of(const Role*);
/// A word that other tools or earlier versions use, and ours for it: "max_tokens_per_mb" -> "tokens_per_micro_batch". "" unknown.
std::string_view our_word(std::string_view theirs);
struct OurValue {
  std::string_view value;  ///< empty: not known
  std::string_view with;   ///< what else it says
};
/// What a value of other tools is called here: "adamw_torch_fused" -> "adamw", with "optimizer_form: fused".
OurValue our_value(std::string_view key, std::string_view theirs);
/// The key that is nearest to `key` among `valid`: by our_word, then by spelling.
std::string nearest_key(std::string_view key, const std::vector<std::string>& valid);

/// A dotted key, resolved. `knob` is nullptr when there is none; then `problem` says why.
struct KnobAt {
  const Knob* knob = nullptr;
  std::string role;  ///< "" for a job's knob
  Refusal problem;
};
KnobAt find_knob(const Job&, std::string_view key);

/// The value as it would stand in a job file. Throws InputError when there is no such key.
std::string get(const Job&, std::string_view key);
/// Sets the value and records the origin (an override). Throws InputError. Nothing else changes: the defaults of another engine,
/// framework or version are taken by read() only, and a changed model has no Architecture until read() or resolve_models().
void set(Job&, std::string_view key, std::string_view text);

/// Equal in every knob and in the models' architectures; origins are not compared.
bool same_settings(const Job&, const Job&);

}  // namespace oomplan
