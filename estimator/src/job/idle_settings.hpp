// Settings that a user wrote and that change nothing on this job: the answer names them, for whoever writes one believes that it
// counts. They are no mistake, as jobs often share a base file.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

struct IdleSetting {
  std::string key;  ///< "trainer.lora.alpha"
  std::string why;
};
/// Of what stands in the file or in an override, in the order of the roles and of the table of knobs.
std::vector<IdleSetting> idle_settings(const Job&);
/// One note that names them all, those with one reason together; nothing when there are none.
std::optional<Note> idle_note(const Job&);

}  // namespace oomplan
