// What DeepEP holds outside of PyTorch's allocator for the experts of a Megatron trainer.
#pragma once
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"

namespace oomplan {

/// One buffer of a process (megatron/core/transformer/moe/fused_a2a.py: get_buffer, 0.16.1): a cudaMalloc of
/// Config::get_nvl_buffer_size_hint and one of the workspace; between machines of eight also get_rdma_buffer_size_hint in
/// NVSHMEM's symmetric heap, which grows by granules, and its queues in GPU memory. Facts: models/engines/deepep.json. 0 for
/// other dispatchers, and for a model without experts.
Bytes deepep_bytes(const Role&, const Catalog&);

/// The same of SGLang's servers (sglang/srt/layers/moe/token_dispatcher/deepep.py: get_deepep_buffer, 0.5.10), whose kernels for
/// decoding lie in the symmetric heap, too: LowLatencyLayout of csrc/config.hpp, 1.2.1. 0 for other exchanges.
Bytes server_deepep_bytes(const Role&, const Catalog&);

/// The two sizes that DeepEP is asked for (csrc/config.hpp, 1.2.1), of hidden states of so many columns in 16 bits.
struct DeepEpBuffers {
  Bytes nvl = 0, rdma = 0;
};
DeepEpBuffers deepep_buffers(std::int64_t hidden, std::int64_t ranks, std::int64_t sms, const Catalog&);

}  // namespace oomplan
