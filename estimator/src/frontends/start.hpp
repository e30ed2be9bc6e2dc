// A job that somebody has in mind and has no file of: what he says of it, and the file of a framework that says it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"

namespace oomplan {

enum class Algorithm : std::uint8_t { grpo, ppo, dapo, sft, dpo };
std::string_view spelling(Algorithm);
/// Throws InputError for what is none.
Algorithm algorithm_named(const std::string& name);

struct StartAsked {
  std::string model;
  std::int64_t gpus = 8;
  std::int64_t nodes = 0;  ///< 0: machines of 8 GPUs
  std::string gpu = {};    ///< kind; "": H100-80GB
  Algorithm algorithm = Algorithm::grpo;
  // 0: as `assumed` says
  std::int64_t prompt_tokens = 0;  ///< of one prompt; of fine-tuning: of one sequence, with the response
  std::int64_t response_tokens = 0;
  std::int64_t samples = 0;  ///< responses to one prompt
  std::int64_t batch = 0;    ///< prompts, or sequences, of a step
  std::int64_t lora = 0;     ///< rank; 0: all parameters are trained
  bool reference = false;    ///< a reference model for the KL penalty
  std::string release = {};  ///< of the framework; "": the newest that is written
  bool operator==(const StartAsked&) const = default;
};

/// The job with everything filled in, and what was.
struct Start {
  StartAsked asked;  ///< numbers are there
  std::string model_id;
  std::int64_t gpus_per_node = 8;
  std::int64_t servers = 0, trainers = 0;  ///< GPUs
  std::int64_t server_tensor = 1;          ///< tensor-parallel degree of a server
  std::vector<std::string> assumed;        ///< "1,024 prompt tokens"
};
/// `shares`: servers and trainers have the same GPUs. Throws InputError: the model is not known, or the GPUs do not divide so.
Start start_of(const StartAsked&, bool shares, const Catalog&);

/// The smallest tensor-parallel degree with which the weights take at most 60 % of a GPU; the largest one when none does.
std::int64_t server_tensor_degree(const Architecture&, const Gpu&, std::int64_t gpus);

}  // namespace oomplan
