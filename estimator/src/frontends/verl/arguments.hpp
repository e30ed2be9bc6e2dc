// `python -m MODULE` of verl with Hydra's arguments, as one line of words. What torchrun says stands in front: it is the world of
// SFT.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oomplan::verl {

struct Arguments {
  std::string module;                                ///< "verl.trainer.main_ppo"
  std::string config_name, config_path, config_dir;  ///< "": not said
  std::vector<std::string> overrides;                ///< k=v +k=v ++k=v ~k, in order
  std::optional<std::int64_t> nodes, gpus_per_node;  ///< of torchrun
};

/// Is the text such a line, and no YAML?
bool is_command(std::string_view text);
/// Throws InputError: flags that Hydra does not have, or that start nothing.
Arguments read_arguments(const std::vector<std::string>& words, const std::string& file);

}  // namespace oomplan::verl
