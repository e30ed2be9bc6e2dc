// What vLLM's captured CUDA graphs hold on one GPU. Internal to inference/.
#pragma once
#include "inference/server_facts.hpp"
#include "inference/server_model.hpp"
#include "inference/stage.hpp"

namespace oomplan {

struct CaptureAsk {
  std::int64_t tensor = 1;          ///< tensor-parallel degree
  std::int64_t max_running = 0;     ///< max_num_seqs in force
  std::int64_t batched_tokens = 0;  ///< max_num_batched_tokens in force
};

/// The nodes of all graphs and the pool that they share: the tensors of the largest size, which smaller ones write over.
Bytes captured_graphs(const ServerModel&, const ServerFacts&, const Stage&, const CaptureAsk&);

}  // namespace oomplan
