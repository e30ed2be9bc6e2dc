// A training pass as a tape: what every station of the model allocates and frees, forward and backward, in order.
//
// The model is run once in the simulator (eager.hpp) with at most four layers of each run of equal layers; the tape keeps the
// first, an inner and the last one. The inner layers must behave alike, which is checked: their events, shifted by one layer,
// are equal. Engines play the stations in order and put their own events (gathers, reductions) between them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <oomplan/job.hpp>

#include "layers/decoder.hpp"
#include "layers/heads.hpp"

namespace oomplan {

/// Where in the model: the order of the forward pass.
/// A vision tower's blocks are `layers` between `vision`, its patch embedding, and `merge`, which joins images and text.
/// `positions` is a tower's table of learned positions, where FSDP2 may make a unit of it.
/// `tower`: the same blocks beside Megatron's layers, which stages count.
/// `deepstack` behind some of them merges an inner block's output, and behind the language model's first layers adds it.
enum class StationPlace : std::uint8_t {
  inputs,
  embedding,
  vision,
  tower,
  positions,
  merge,
  preamble,
  layers,
  deepstack,
  norm,
  head,
  loss,
  chunks,
  finish
};

/// A kind of tensor that a tape allocates.
struct TapeSite {
  std::string name;
  Shape shape;
  DType dtype = DType::bf16;
  Category category = Category::activations;
  bool saved = false;
  Dim bytes;                ///< elements * size of one
  std::size_t station = 0;  ///< where it is allocated
  int leaf = -1;            ///< index into Tape::leaves, of a parameter's gradient
  bool one_more = false;    ///< the last axis has one more entry, whose bytes are a site of their own (Storage::column)

  Pool pool = Pool::torch;
  std::uint8_t stream = 0;
};
/// A loop over parts of the sequence: `loop`, its turns' events, and `end`, which is equal to it but for the kind. Loops do not
/// nest.
struct TapeEvent {
  enum class Kind : std::uint8_t { alloc, free, gradient, loop, end };
  Kind kind = Kind::alloc;
  std::uint32_t site = 0;
  std::int32_t offset = 0;  ///< unit that the tensor belongs to: relative to the playing unit, or absolute (< 0: from the end)
  bool relative = false;    ///< the tensor belongs to the playing station, which has several units
  bool all_inner = false;   ///< the same event for the tensors of all inner units of another station
  bool turning = false;     ///< the tensor belongs to a turn of the loop around: `turn` is relative to the one that runs
  std::int32_t turn = -1;   ///< of the loop over the sequence in which the tensor was made; -1: in none. loop: how many turns

  bool of_tensor() const { return kind < Kind::loop; }
  /// Its tensor goes with the pass that made it, and is named by the turn, not by the micro-batch.
  bool of_turn() const { return turning || turn >= 0; }
  // of a loop
  std::int64_t turns() const { return turn; }
  std::int64_t first_turn() const { return offset; }
  bool descends() const { return relative; }
};
/// Number of the event that ends the loop which begins at number `at`.
std::size_t end_of_loop(const std::vector<TapeEvent>& events, std::size_t at);
/// A sum over the tape's monomials: {index into Tape::monomials, bytes}.
using TapeSum = std::vector<std::pair<std::uint32_t, Bytes>>;
/// The highest level of a stretch and its end, for any token counts: the heights that may be highest, none dominated.
struct Summary {
  TapeSum net;
  struct High {
    TapeSum level;
    std::int64_t event;
  };
  std::vector<High> highs;
  std::int64_t events = 0;
};
/// A parameter's gradient that a segment leaves behind; its size does not depend on token counts.
struct LeftGradient {
  TapeEvent event;
  int leaf = -1;  ///< index into Tape::leaves
  Bytes bytes = 0;
};
/// A module begins or ends its work with a parameter.
struct TapeUse {
  std::size_t at = 0;  ///< events in front of it
  int leaf = -1;       ///< index into Tape::leaves
  UseMoment moment = UseMoment::begins;
  bool derives = false;  ///< its backward pass, not its forward pass or a recomputation of that
  bool operator==(const TapeUse&) const = default;
};
struct Segment {
  std::vector<TapeEvent> events;
  std::vector<TapeUse> uses;
  std::vector<LeftGradient> gradients;
  Bytes gradient_bytes = 0;    ///< of all of them
  std::uint32_t number = 0;    ///< among the tape's segments that have events
  bool on_host = false;        ///< some of its tensors are the host's
  std::size_t nested_end = 0;  ///< events up to the end of a reentrant checkpoint's own backward pass; 0: there is none
  Summary summary;             ///< a leaf's gradient stays
  Summary summary_adding;      ///< a leaf's gradient is added into the one that is there, and freed
};
/// Which unit of a run: the first, an inner, the last. A run of one unit has only `first`.
enum class Unit : std::uint8_t { first, inner, last };

struct Station {
  StationPlace place = StationPlace::inputs;
  int run = -1;  ///< layers: index into Architecture::runs, behind them into those of the tower's blocks; deepstack: the same
  std::int64_t count = 1;  ///< units; chunks: 0, the plan knows
  int simulated = 1;
  bool checkpointed = false;  ///< layers that are computed again in backward
  bool called = true;         ///< false: of a tower that no image comes to: its parameters are there, its modules do not run
  Segment forward[3], backward[3];
  const Segment& segment(bool back, Unit u) const { return back ? backward[static_cast<int>(u)] : forward[static_cast<int>(u)]; }
};

/// A parameter as an engine shards it.
struct TapeLeaf {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::bf16;
  std::size_t station = 0;  ///< that owns it
  bool trainable = true;
  std::int64_t parts = 1;                ///< ranks that hold a part of it each, under tensor parallelism
  PackedLeaf packed = PackedLeaf::none;  ///< stored in `dtype` whatever the job says
  bool stored_as_is = false;             ///< the same: as in Leaf
  bool unreached = false;                ///< as in Leaf
  bool passive = false;                  ///< frozen, with a gradient: as in Leaf
  bool of_base = false;                  ///< as in Leaf
  bool shared = false;                   ///< as in Leaf: its storage, gradient and states are counted with the other's
  std::int64_t elements() const;
};

/// The summaries of a tape's segments, gradients kept, in the order of their numbers: every sum's terms one behind another.
struct FlatSummaries {
  struct Line {
    std::uint32_t terms = 0;    ///< how many
    std::int64_t event = -1;    ///< of a height; of the net, which comes first: -1
    std::int64_t events = 0;    ///< net: of the segment
    std::uint32_t heights = 0;  ///< net: how many lines follow
  };
  std::vector<Line> lines;
  TapeSum terms;
};

struct Tape {
  std::vector<TapeSite> sites;
  std::vector<Station> stations;
  std::vector<Monomial> monomials;  ///< that occur in summaries
  Segment leaving;                  ///< the step's names go: behind the forward pass, and behind a reference's
  std::uint32_t segments = 0;       ///< that have events
  FlatSummaries summaries;
  std::vector<TapeLeaf> leaves;  ///< of one unit per station
  bool tied = false;
  /// The number of the first station there. Throws Defect when there is none.
  std::size_t station_at(StationPlace) const;
};

struct PassOptions {
  KernelOptions kernels;
  bool training = true;  ///< false: forward only, under no_grad
  Recompute recompute = Recompute::full;
  bool reentrant = false;
  std::int64_t recompute_every = 1;  ///< as in Trainer
  LossHead head = LossHead::hf_loss;
  bool keep_outputs = false;
  bool slice_hidden = false;      ///< logits_to_keep: only the last tokens reach the head
  int chunks = 1;                 ///< min(chunks of the head, 4)
  bool critic = false;            ///< a value head in place of lm_head
  std::int64_t teacher_keys = 0;  ///< elements of a token that a teacher's forward pass caches, of keys and of values
  std::int64_t teacher_values = 0;
  bool refers = false;               ///< a reference's forward pass comes between forward and backward
  bool reference = false;            ///< this is that pass
  bool adapters_off = false;         ///< of the policy without its adapters: nothing of it is trained
  std::optional<DType> logged = {};  ///< of the policy's logits, which this pass logs; nothing: as its own
  bool clones_outputs = false;       ///< DDP hands out copies of what the model returns
  /// Of a model whose layers lie on several GPUs: this one has what stands in front of them, and what behind.
  bool front = true, back = true;
  bool chooses = true;  ///< ... and this one what is made of the logits
  bool operator==(const PassOptions&) const = default;
};

/// Runs the model and keeps the tape. Throws InputError when a kernel set does not know the architecture.
std::shared_ptr<const Tape> make_tape(const Architecture&, const PassOptions&);

/// Tensors saved for backward by an inner layer of the run, without checkpointing: site and multiplicity.
std::vector<std::pair<TapeSite, int>> saved_of_layer(const Architecture&, const PassOptions&, int run);

/// Values of Tape::monomials for some token counts.
std::vector<std::int64_t> monomial_values(const Tape&, const TokenCounts&);
/// `values` as from monomial_values.
TorchSpan evaluate(const Summary&, const std::vector<std::int64_t>& values);
/// All segments by number, gradients kept.
std::vector<TorchSpan> evaluate(const FlatSummaries&, std::uint32_t segments, const std::vector<std::int64_t>& values);

}  // namespace oomplan
