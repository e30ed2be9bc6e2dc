// Settings of verl's servers: the rollout's, and those of teachers.
#pragma once
#include <string>
#include <vector>

#include "frontends/verl/settings.hpp"

namespace oomplan::verl {

struct ServerOf {
  std::string role;  ///< "rollout", "teacher", "teacher_2"
  std::string path;  ///< where its settings stand
};
/// What every server has.
void server_settings(VerlSettings&, const VerlText&, const VerlMeaning&, const ServerOf&, std::vector<Note>& notes);

}  // namespace oomplan::verl
