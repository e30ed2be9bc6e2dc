// What AReaL's configuration looks like in a release: classes, fields, types, defaults (models/frameworks/areal.json, written by
// areal_schema.py beside it from the framework's dataclasses). From 0.3.0 on.
//
// A class is called as in areal/api/cli_args.py, one that an example defines "examples/tau2/utils.py:Tau2PPOConfig". A dotted
// path starts at a root, a class of a whole file (GRPOConfig, SFTConfig ...): "actor.fsdp.offload_params",
// "actor.scheduling_spec.0.env_vars.PATH".
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/areal/releases.hpp"
#include "frontends/structured/classes.hpp"
#include "frontends/structured/released.hpp"

namespace oomplan::areal {

using structured::Field;
using structured::FieldKind;

/// What a path is in a release.
struct PathRead : structured::Walked {
  // of an unknown path
  std::string nearest;               ///< the whole path with the key put right, "" when none is near
  std::vector<ReleaseRange> others;  ///< releases that know the path, from the same root, oldest first
  std::string now;                   ///< what became of the key: "the letter c of allocation_mode", "actor"
  std::vector<std::string> roots;    ///< an unknown first part: classes of examples that have it
  explicit operator bool() const { return field != nullptr; }
};
/// "AReaL 1.0.4 has no actor.fsdp.ulysses_sp_size: known in 0.3.0-lite to 0.3.2; now the letter c of allocation_mode".
std::string unknown_text(const PathRead&, Release, std::string_view path);

struct SchemaData;

/// The view of one release. Cheap to copy; the data lives as long as the program.
class Schema final : public structured::Classes {
 public:
  /// Nothing before 0.3.0.
  static std::optional<Schema> of(Release);
  Release release() const { return release_; }

  bool has_class(std::string_view name) const override;
  /// Does the class derive from `base`, or is it `base`?
  bool derives(std::string_view name, std::string_view base) const;
  /// A class's fields with the inherited ones, as a dataclass orders them: those of the farthest base first.
  std::vector<const Field*> fields(std::string_view name) const override;
  Origin origin_of(const Field&) const override;
  std::string reader() const override;  ///< "AReaL 1.0.4"
  bool takes(const Field&, std::string_view value) const override;
  structured::Unknown unknown(std::string_view root, std::string_view path) const override;
  /// A field of a class or of its bases. Null when there is none.
  const Field* field(std::string_view name, std::string_view key) const;
  PathRead find(std::string_view root, std::string_view path) const;
  /// Is the key read no more, or read over? (allocation_mode from 1.0.3 on.) What means it now, or "".
  std::string replaced(std::string_view name, std::string_view key) const;

  /// Classes of whole files, the framework's own first, then the examples'.
  std::vector<std::string> roots() const;
  /// The roots that entry scripts in the folder of a configuration use, "examples/tau2/config.yaml" or an absolute path; empty
  /// when AReaL has no script there.
  std::vector<std::string> roots_beside(std::string_view file) const;
  /// The root of an entry script, such as "examples/math/gsm8k_rl.py"; "" when it is none.
  std::string root_of_script(std::string_view script) const;

 private:
  Schema(const SchemaData& data, Release release) : data_(&data), release_(release) {}
  structured::View view() const;
  const SchemaData* data_;
  Release release_;
};

}  // namespace oomplan::areal
