// What a rank of one pipeline stage of Megatron-core holds and does, resolved.
//
// megatron-core 0.16.1: megatron/core/distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py,
// transformer/transformer_layer.py (get_transformer_layer_offset), transformer/transformer_block.py (get_num_layers_to_build).
//
// Legend: N parameters of the rank, D ranks that share masters and states: data x context, of experts those that hold the same
// ones.
#pragma once
#include <memory>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "layers/megatron.hpp"
#include "training/megatron_fsdp_plan.hpp"

namespace oomplan {

/// What a role does with the model.
struct MegatronUse {
  bool trains = true;         ///< false: forward passes alone, without an optimizer
  bool log_probs = false;     ///< forward passes under no_grad as a phase of their own
  bool supervised = false;    ///< SFT: labels of a data set, no entropy
  bool critic = false;        ///< a value head in place of the output layer
  std::int64_t sequence = 0;  ///< tokens of the longest sequence of a packed micro-batch; 0: not known
  bool passes_alone = false;  ///< of a role that trains only the passes of log-probs are asked for
};

/// Rows of a split vocabulary: a multiple of 128 for every rank (make_vocab_size_divisible_by). mbridge, which makes AReaL's
/// models, leaves it as it is (mbridge/core/llm_bridge.py, 0.15.1).
std::int64_t megatron_vocab(const Architecture&, const Trainer&);

/// Tokens of a packed micro-batch as AReaL pads it: every sequence to what the ranks can split, all to a multiple of 256 with
/// that (areal/engine/megatron_engine.py: _prepare_mb_list, areal/utils/data.py: pad_packed_tensor_dict, 1.0.4).
std::int64_t areal_padded_tokens(const Trainer&);

/// Layers of every chunk of a stage, as runs of the Architecture. Throws InputError when they cannot be dealt out.
std::vector<std::vector<int>> megatron_layers(const Architecture&, const Trainer&, std::int64_t stage);

/// The options of every chunk of a stage.
std::vector<ChunkOptions> megatron_chunks(const Architecture&, const Trainer&, std::int64_t stage, const MegatronUse& = {});

/// A parameter of a rank, as the flat buffers see it.
struct MegatronTensor {
  std::int64_t elements = 0;
  bool decays = true;                       ///< a matrix: biases and norms are a group of the optimizer's own
  bool own_bucket = false;                  ///< an embedding that two stages share
  bool multiplied_in_8_bits = false;        ///< a matrix of a layer with an fp8_recipe
  bool stored_in_8_bits = false;            ///< and that is the parameter itself
  Bytes row_scales = 0, column_scales = 0;  ///< with an fp8_recipe in blocks: what belongs to the matrix along each side
};

struct MegatronParameters {
  std::int64_t dense = 0, experts = 0;                                     ///< of this rank
  std::vector<std::vector<MegatronTensor>> dense_tensors, expert_tensors;  ///< of each chunk, in the order of its modules
  std::vector<MegatronTensor> frozen;  ///< what adapters stand beside: of all chunks, in no buffer
  Bytes placeholders = 0;  ///< one 16-bit gradient for each shape of a matrix: what autograd is handed with fused sums
};
std::int64_t sum_of(const std::vector<MegatronTensor>&);
MegatronParameters megatron_parameters(const Architecture&, const std::vector<ChunkOptions>&);

/// Parts of parameters in a rank's share that have as many numbers each. Masters, states and fp32 gradients are tensors of a
/// part.
struct MegatronPiece {
  std::int64_t elements = 0, count = 0;
};
/// Of the optimizer's tensors that live for as long: their formats, of every piece one of each.
using PieceFormats = std::vector<DType>;
Bytes bytes_of_pieces(const std::vector<MegatronPiece>&, const PieceFormats&);

/// What a chunk's dispatchers keep of the last tokens.
struct LastRouting {
  std::vector<std::int64_t> units;  ///< of each station of layers
  /// Of a unit of each station of layers: maps that nobody else keeps while no micro-batch is in flight.
  std::vector<Bytes> maps;
  /// Of a unit of each station: the maps of its one layer that is computed again. They are there between passes, and go as it
  /// takes new tokens.
  std::vector<Bytes> replaced;
  /// Of a unit of each station: leaves of recomputations, which the last probabilities keep by their graph. Each is a hidden
  /// state and its gradient, and goes when the layer runs again.
  std::vector<std::int64_t> leaves;
  bool whole_layers = true;   ///< they are the inputs of layers: what is in front of them has the same gradient
  Bytes behind = 0;           ///< blocks of multi-token prediction, both kinds
  bool behind_again = false;  ///< they are computed again, and leave it then
  Bytes behind_passes = 0;    ///< the same where only passes without gradients ran
};

/// One stage: what lives from step to step, and its passes.
struct MegatronStage {
  std::int64_t stage = 0, stages = 1;
  std::int64_t group = 1;  ///< consecutive micro-batches of a chunk in the interleaved schedule
  std::vector<std::shared_ptr<const Tape>> chunks;
  std::vector<std::shared_ptr<const Tape>> forward_chunks;  ///< under no_grad; empty: there is no such phase
  std::int64_t head_chunks = 1;                             ///< that the loss takes its tokens in
  bool trains = true;
  bool pauses = false;         ///< between its role's phases what lives from step to step lies on the host
  bool pauses_whole = false;   ///< with `pauses`: so does all else that PyTorch has
  bool moves_whole = false;    ///< with `parks_*`: all of it comes back for every pass, communicators go with it, and buckets are
                               ///< made of copies on the host
  bool pauses_buffers = true;  ///< with `pauses_whole`: flat buffers have copies on the host, too
  bool parks_parameters = false, parks_optimizer = false;  ///< verl: these do; gradients are freed with the parameters
  std::vector<bool> receives;                              ///< the chunk's input comes from another chunk
  std::vector<bool> hands_on;                              ///< its output goes to another chunk
  TokenCounts counts;
  std::int64_t micro_batches = 1;
  Bytes weights = 0, gradients = 0, masters = 0, states = 0;
  Bytes weights_in_8_bits = 0;  ///< matrices of the layers in 8 bits, with transposed copies
  std::vector<MegatronPiece> blocks_in_8_bits;
  bool copies_in_8_bits = false;               ///< they stand beside parameters in 16 bits, from the first pass on
  std::vector<MegatronPiece> weight_blocks;    ///< parameters: a buffer for dense ones and experts of each chunk, or one by one
  std::vector<MegatronPiece> gradient_blocks;  ///< buffers
  DType gradient_format = DType::fp32;
  std::vector<MegatronPiece> pieces;                         ///< of the rank's share; empty with an optimizer on the host
  PieceFormats master_formats, state_formats, wide_formats;  ///< what each of the figures is made of
  Bytes placeholders = 0;
  Bytes workspace = 0;                    ///< of Transformer Engine's matrix products
  int workspaces = 1;                     ///< how many: grouped products have their own
  Bytes routing = 0;                      ///< what the dispatchers of all layers keep of the last tokens: probabilities and map
  std::vector<LastRouting> permutations;  ///< of each chunk
  Bytes gathered = 0;                     ///< the buffer in which output layers gather their input
  Bytes batch = 0;                        ///< of the rollout, from its first pass to the optimizer's step
  Bytes replaced_head = 0;                ///< an output layer that is there while the checkpoint is loaded
  Bytes deferred = 0;                     ///< of a micro-batch whose output layer's gradient waits: the logits' and the input
  std::int64_t deferrals = 0;             ///< of how many micro-batches of a step
  Bytes tables = 0;                       ///< rotary tables, one for each chunk
  Bytes hidden = 0;                       ///< hidden states between two stages
  Bytes wide_gradients = 0;               ///< with 16-bit gradients: their fp32 shards, from the step to the next zero_grad
  Bytes averaged = 0;                     ///< gradients of what tensor-parallel ranks have whole, put together for a moment
  Bytes widened_states = 0;               ///< narrow states as the step has them
  Bytes denominators = 0;                 ///< what a step without states makes
  bool keeps_wide_gradients = false;      ///< they stay until the next step makes new ones
  struct OnHost {
    Bytes masters = 0, states = 0;  ///< pageable, the states from the first step on
    Bytes gradients = 0;            ///< pinned, from the first step on
    Bytes copies = 0;               ///< while it is made
    Bytes device_copies = 0;        ///< the same on the GPU
    Bytes passing = 0;              ///< on the GPU for a moment: a part of a parameter in fp32
    Bytes weights = 0;              ///< pinned: copies of the rank's weights, of all sets
  } host;
  bool deallocates = true;
  std::shared_ptr<const MegatronFsdpPlan> fsdp;  ///< Megatron-FSDP; otherwise null
  std::shared_ptr<const MegatronStage> alone;    ///< the sizes of `forward_chunks`, where log-probs have a budget of their own
};
/// Of the chunk's vision tower on a rank.
std::int64_t tower_elements(const Architecture&, const ChunkOptions&);
MegatronStage make_megatron_stage(const Architecture&, const Trainer&, std::int64_t stage, std::int64_t micro_batches,
                                  const MegatronUse& = {});

}  // namespace oomplan
