// The arguments of TRL's and Transformers' trainers in a release: classes, fields, types, defaults
// (models/frameworks/transformers.json, written by transformers_schema.py beside it).
//
// A release is one of TRL beside the newest of Transformers of its time, so that either number names it.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/structured/classes.hpp"
#include "frontends/structured/released.hpp"

namespace oomplan::transformers {

/// What a command or a file trains with.
struct TrainerRow {
  std::string_view name;    ///< "sft"; "hf" is Transformers' own Trainer, "run_clm" its script
  std::string_view config;  ///< the class of its arguments
  std::string_view script;  ///< of what the script asks besides
  std::string_view kind;    ///< of the job, for facts
  bool described;           ///< false: refused by name
};
const TrainerRow* find_trainer(std::string_view name);
/// "sft, dpo, ... and hf".
std::string trainers_text();

/// A release by its position, oldest first.
struct Release {
  std::size_t index = 0;
  auto operator<=>(const Release&) const = default;
};
std::size_t count_of_releases();
const std::string& trl_of(Release);
const std::string& transformers_of(Release);
/// Is TRL (Transformers) of the release that version or later?
bool trl_from(Release, std::string_view version);
bool transformers_from(Release, std::string_view version);
/// "1.5.1", "trl 1.5.1" or "transformers 4.57.1": a version between two counts as the one before. Nothing for others.
std::optional<Release> find_release(std::string_view version);
std::string releases_text();
/// Releases whose classes a trainer has: KTO's and others came later.
bool has_trainer(Release, const TrainerRow&);

/// Of one release, as a trainer's script sees it: a class of the trainer's name with all that the script takes.
class Classes final : public structured::Classes {
 public:
  Classes(Release, const TrainerRow&);
  bool has_class(std::string_view name) const override { return view_.has_class(name); }
  std::vector<const structured::Field*> fields(std::string_view name) const override;
  Origin origin_of(const structured::Field&) const override;
  std::string reader() const override;  ///< "TRL 1.5.1", "Transformers 5.8.0"
  structured::Unknown unknown(std::string_view root, std::string_view path) const override;
  const structured::Field* field(std::string_view key) const;
  std::vector<std::string> keys() const;

 private:
  std::string known_in(std::string_view key) const;

  Release release_;
  const TrainerRow& trainer_;
  structured::View view_;
};

}  // namespace oomplan::transformers
