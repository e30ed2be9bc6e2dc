// What vLLM's DeepSeek V4 allocates otherwise than other models. Internal to inference/.
#pragma once
#include "catalog/parameters.hpp"
#include "catalog/quantization.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// Layers that keep a window and compressed entries.
bool is_compressed(const Architecture&);

/// Throws InputError for what vLLM refuses or is not described.
void check_compressed(const Architecture&, EngineKind, const Server&);

/// Sizes of the whole model: streams, buffers for a batch, tables.
void compressed_sizes(const Architecture&, ServerModel&);

/// Kept in fp32: the weights of the streams, positions inside of an entry, sinks and corrections of the router.
bool compressed_in_fp32(const Parameter&);

/// The table of a layer that routes by token ids; 0 where it routes by scores.
Bytes routing_table(const FeedForward&, std::int64_t vocab);

/// Two projections of an MTP block as they are stored, its norms and the weights of its streams.
Bytes compressed_draft_outside(const Architecture&, const ModuleFormats*, DType compute);

}  // namespace oomplan
