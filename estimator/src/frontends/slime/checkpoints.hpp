// Folders of checkpoints that scripts name and this machine does not have: what their names say.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "catalog/catalog.hpp"

namespace oomplan::slime {

struct CheckpointTaken {
  std::string id;   ///< a name of the catalog
  std::string how;  ///< what of it is more than its name: "converted by tools/convert_hf_to_fp8.py ..."; ""
};
/// By the last part of the folder's path: a name of the catalog, one that slime's pages give, or one of them behind which a
/// conversion of slime's stands (-FP8, -INT4, -bf16). `group`: elements that share a scale in 4 bits.
std::optional<CheckpointTaken> checkpoint_of_folder(const std::string& folder, std::int64_t group, const Catalog&);
/// Of a teacher or judge, which users tune themselves: a name of the catalog behind which more stands ("Qwen3-4B-rl-step500"), in
/// 16 bits.
std::optional<CheckpointTaken> tuned_checkpoint(const std::string& folder, const Catalog&);

}  // namespace oomplan::slime
