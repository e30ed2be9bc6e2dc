// Releases of the serving engines, and which one answers for a version that is none of them.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "catalog/facts.hpp"

namespace oomplan {

/// How far a text is a version of an engine: "0.19.1", "v0.10.1.dev3+gabc", "vllm==0.99", "nightly".
struct AskedVersion {
  std::string numbers;          ///< "0.10.1"; "" of a name
  bool before_release = false;  ///< rc, a, b, dev: what came before the release of these numbers
  bool name = false;            ///< nightly, latest, main, master, dev: the newest
  bool valid = false;           ///< is it a version or such a name at all?
};
AskedVersion asked_version(std::string_view text);

/// Whose rows answer for a server's version, and what to say of it.
struct AnsweringVersion {
  std::string version;  ///< "": older than all that were read, or no version
  std::string remark;   ///< "" for a release that was read
};
/// A release that was read answers itself; any other version is answered by the nearest older one that was, and a name by the
/// newest. Engines without a list of releases are answered as Facts has them.
AnsweringVersion answering_version(const Facts&, std::string_view engine, std::string_view asked);

/// That were read, oldest first: those of the list whose budget is described, and those that rows of facts name.
std::vector<std::string> known_releases(const Facts&, std::string_view engine);

}  // namespace oomplan
