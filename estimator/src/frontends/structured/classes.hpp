// The classes of a framework's configuration, as OmegaConf.structured() sees them in one release.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "frontends/structured/field.hpp"

namespace oomplan::structured {

/// What is said of a key that no class has.
struct Unknown {
  std::string nearest;     ///< the whole path with the key put right, "" when none is near
  std::string why;         ///< of which classes or releases it is
  bool maybe_own = false;  ///< a class of the user's own script may have it, at the top of the file
};

class Classes {
 public:
  virtual ~Classes() = default;
  virtual bool has_class(std::string_view name) const = 0;
  /// A class's fields with the inherited ones, as a dataclass orders them.
  virtual std::vector<const Field*> fields(std::string_view name) const = 0;
  /// Of a default.
  virtual Origin origin_of(const Field&) const = 0;
  /// Who reads, for messages: "AReaL 1.0.4".
  virtual std::string reader() const = 0;
  /// Is a value that is none of the field's choices taken all the same?
  virtual bool takes(const Field&, std::string_view) const { return false; }
  virtual Unknown unknown(std::string_view root, std::string_view path) const = 0;

 protected:
  Classes() = default;
  Classes(const Classes&) = default;
  Classes& operator=(const Classes&) = default;
};

}  // namespace oomplan::structured
