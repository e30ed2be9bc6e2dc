// PyTorch's eager mode and its autograd engine, reduced to what they do to memory.
//
// A model's forward pass is written once in C++ that reads like the Python it describes: operators take Tensors and return
// Tensors, a C++ variable that goes out of scope is a Python name that goes out of scope. What comes out is the order in which
// storages are born and die, for any token count. Nothing here knows what a transformer is.
//
// The rules (PyTorch 2.13; torch/csrc/autograd: engine.cpp, input_buffer.cpp, functions/accumulate_grad.cpp,
// tools/autograd/derivatives.yaml):
//   - a storage lives as long as a Tensor refers to it: a name, a saved variable of a node, a gradient waiting in a buffer;
//   - views share the storage; an operator makes a node when gradients are on and an input needs one;
//   - backward runs the ready node that was made last; what comes to it lives until its results have the shape and format that
//     is wanted, what a checkpoint computed again for it until it has run; then its saved variables go;
//   - a second gradient is added into the first in place when nobody else refers to the first one's storage;
//   - a leaf's first gradient is kept as it is; further ones are added into it (Tape tells engines apart).
#pragma once
#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <oomplan/program.hpp>

#include "layers/packed.hpp"
#include "layers/shape.hpp"

namespace oomplan {

class Eager;
struct Node;
struct PackedVariable;

/// Sequence number of a node that collects a leaf's gradient: it runs as soon as it can.
inline constexpr std::int64_t kAccumulates = std::numeric_limits<std::int64_t>::max();

/// What the simulator knows of one storage.
struct Storage {
  std::string name;
  Shape shape;  ///< of the tensor that it was made for
  DType dtype = DType::bf16;
  Category category = Category::activations;
  int scope = 0;  ///< where it was made; what a checkpoint's recomputation makes belongs to what is recomputed
  bool backward = false;
  int references = 0;
  bool saved = false;      ///< a node keeps it for backward
  int gradient_of = -1;    ///< leaf whose gradient it became
  std::int64_t turn = -1;  ///< of a loop over the sequence: in which of its simulated turns it was made; -1: outside of one
  std::int64_t turns = 0;  ///< that the loop has
  int column = -1;         ///< storage of one more entry of the last axis: S + 1 is no monomial, so such a tensor has two
  bool discarded = false;  ///< its bytes went although something refers to it still
  int instead = -1;        ///< the storage that it got its bytes back in

  Pool pool = Pool::torch;
  std::uint8_t stream = 0;  ///< of the caching allocator
};

/// A parameter as the forward pass sees it. Its own memory belongs to the engine, not to the simulator.
struct Leaf {
  std::string name;
  Shape shape;
  DType dtype = DType::bf16;
  bool trainable = true;
  int scope = 0;
  int low_rank_in = -1, low_rank_out = -1;  ///< leaves of the low-rank pair beside a matrix: [r, in] and [out, r]
  std::shared_ptr<Node> accumulate;         ///< AccumulateGrad of the graph being built
  bool replicated = false;                  ///< tensor parallelism leaves it whole on every rank
  Shape unpacked;                           ///< of a matrix that bitsandbytes packed: as it is multiplied with; empty: it is not
  PackedLeaf packed = PackedLeaf::none;
  int magnitude = -1;  ///< DoRA: leaf of the magnitudes of a matrix's rows
  // vectors that a matrix's result is multiplied by, or its input (IA3), and added to it; of VeRA's frozen pair the result
  // between
  int scale = -1, shift = -1, inner_scale = -1;
  bool scales_input = false;
  int shared_in = -1, shared_out = -1;  ///< VeRA: the frozen pair, one for all matrices
  bool stored_as_is = false;            ///< in `dtype`, whatever format the job stores the others in
  bool unreached = false;               ///< an adapter of a module that never runs: it is there, and gets no gradient
  bool passive = false;                 ///< gets a gradient as a part of a flat parameter; no optimizer sees it
  bool of_base = false;                 ///< trained beside adapters, and stored as what is frozen is: a copy of a module
  bool shared = false;                  ///< another module's parameter, which a unit of its own gathers and reduces
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor& o);
  Tensor(Tensor&& o) noexcept;
  Tensor& operator=(Tensor o) noexcept;
  ~Tensor();
  /// `del name`.
  void reset() { *this = Tensor(); }
  explicit operator bool() const { return eager_ != nullptr; }

  Shape shape;
  DType dtype = DType::bf16;
  int leaf = -1;                  ///< number of the parameter that it is (or a view of); -1
  std::shared_ptr<Node> grad_fn;  ///< null: no gradient needed, or a leaf
  std::size_t output = 0;         ///< which output of grad_fn it is
  bool transposed = false;        ///< a gradient that reached us as a transposed view: cannot be added to in place
  int part = 0;                   ///< number of the slice of its storage that it is; 0: it begins where that begins
  bool needs_grad() const;
  int storage() const { return storage_; }
  /// The same storage seen with another shape, without autograd.
  Tensor alias(Shape as) const;

 private:
  friend class Eager;
  Eager* eager_ = nullptr;
  int storage_ = -1;  ///< -1: a parameter, or a tensor too small to count
};

/// A variable saved for backward. Under a checkpoint it is empty until the first one that is needed recomputes them all.
class Saved {
 public:
  Saved() = default;
  const Tensor& get() const;

 private:
  friend class Eager;
  struct Frame;
  mutable Tensor kept_;
  mutable std::shared_ptr<Tensor> recomputed_;  ///< out of the frame, while the node that needs it runs; the frame itself stays
  std::shared_ptr<Frame> frame_;
  std::shared_ptr<PackedVariable> packed_;
  std::shared_ptr<const char> holder_;  ///< goes with the last node that has the variable; the frame looks whether it is there
  std::size_t index_ = 0;
};

/// A variable that a hook took away (torch.autograd.graph.saved_tensors_hooks).
struct PackedVariable {
  Eager* eager = nullptr;
  std::function<Tensor()> unpack;
  Tensor unpacked;  ///< while the node that needs it runs
};
class SavedHooks {
 public:
  virtual ~SavedHooks() = default;
  /// Null: the variable is saved as it is.
  virtual std::shared_ptr<PackedVariable> pack(const Tensor&) = 0;
};

using Gradients = std::vector<Tensor>;

struct Node {
  std::string name;
  std::int64_t sequence = 0;
  int scope = 0;
  std::int64_t turn = -1, turns = 0;  ///< as in Storage
  std::size_t outputs = 1;
  int leaf = -1;             ///< parameter that it works with; -1: none
  bool distributed = false;  ///< its outputs are DTensors: autograd adds their gradients out of place (input_buffer.cpp)
  std::function<Gradients(Gradients)> apply;  ///< holds the saved variables; dropped after it has run
  struct Edge {
    std::shared_ptr<Node> node;  ///< null: no gradient wanted
    std::size_t slot = 0;
  };
  std::vector<Edge> next;
  struct Metadata {
    Shape shape;
    DType dtype = DType::bf16;
  };
  std::vector<Metadata> wanted;  ///< of each input: its gradient is summed and cast to this when the node has run
  /// What a Python function's ctx has as attributes: not saved variables, so they stay as long as the node, and checkpoints keep
  /// them.
  std::vector<Tensor> attributes;
};

/// What happened, in order.
struct EagerEvent {
  enum class Kind : std::uint8_t { alloc, free, gradient };
  Kind kind = Kind::alloc;
  int storage = 0;  ///< gradient: the storage that became (or was added into) the leaf's gradient
  int scope = 0;
  bool backward = false;
  int leaf = -1;
  std::int64_t turn = -1, turns = 0;  ///< that runs: of a loop of the forward pass, or of the node's
};

/// Of a use of a parameter.
enum class UseMoment : std::uint8_t {
  begins,
  ran,    ///< a node's function is over: what was saved for it is gone
  ends,   ///< of a node: gradients of leaves that it has made are where they belong (AccumulateGrad runs before any other node)
  opens,  ///< a module that has others inside begins and reads their parameter itself
  closes  ///< it ends
};
/// An operator, or its node in backward, begins or ends its work with a parameter.
struct EagerUse {
  std::size_t event = 0;  ///< number of the event behind it
  int leaf = -1;
  int scope = 0;
  bool backward = false;
  UseMoment moment = UseMoment::begins;
  bool derives = false;  ///< a node of the graph, not the operator
};
/// Gradients of parameters of a block that runs tile by tile in backward: added up tile by tile, handed on with the last one's.
struct TiledGradients {
  std::map<int, Tensor> kept;
  bool last = false;
};

class Eager {
 public:
  std::vector<Storage> storages;
  std::vector<Leaf> leaves;
  std::vector<EagerEvent> events;
  std::vector<EagerUse> uses;
  std::vector<std::size_t> nested_ends;  ///< of reentrant checkpoints: number of the event behind the nested backward pass

  // ---- state of the interpreter
  bool grad_enabled = true;
  bool retain_graph = false;         ///< backward(retain_graph=True): nodes keep what they have saved
  bool autocast = false;             ///< torch.autocast(bfloat16) is on
  bool autocasts_to_half = false;    ///< to fp16: log_softmax of 16 bits with a result in fp32 is one kernel, as on CUDA
  bool casts_softmax = false;        ///< a softmax of bf16 with a result in fp32 makes a copy of its input, as on CUDA
  bool wide_routers = false;         ///< routers are fp32 whatever the other parameters are, and nothing casts them
  bool views_of_flat = false;        ///< parameters are no leaves of the graph: autocast keeps no copies of them
  bool frozen_keeps_input = false;   ///< a linear layer saves its input, whether its weight wants a gradient or not
  bool blockwise = false;            ///< matrices whose sides are whole blocks of 128 are multiplied in 8 bits
  bool low_rank_dropout = false;     ///< in front of every low-rank pair
  bool low_rank_apart = false;       ///< a pair's product is made by a function of its own, whose names are gone before the sum
  PackedOptions packed;              ///< how the base's linear layers are stored
  bool distributed = false;          ///< what is recorded now works on DTensors
  bool keeps_checkpoints = false;    ///< reentrant ones' detached inputs and those gradients stay until they are let go
  bool offload_checkpoints = false;  ///< checkpoints keep their input on the host
  bool recomputes_all = false;       ///< checkpoints run their body to its end again (early_stop of torch.utils.checkpoint off)
  bool keeps_recomputed_graph = false;  ///< a checkpoint's body hands out tensors that lead back into what it computes again
  SavedHooks* hooks = nullptr;          ///< in force for what is saved now
  TiledGradients* tiles = nullptr;      ///< the block that runs tile by tile just now
  std::int64_t resident_threads = 0;    ///< of the GPU, where the buffer of a sum over rows counts; 0: it does not
  std::int64_t most_turns = std::numeric_limits<std::int64_t>::max();  ///< of each_turn() that are run
  Tensor* second_output = nullptr;  ///< where a checkpointed layer leaves what it returns beside its output
  int scope = 0;                    ///< where we are: events and nodes belong to it
  bool in_backward = false;
  std::string prefix;  ///< of names: "layer.self_attn."

  int parameter(std::string name, Shape shape, DType dtype, bool trainable = true);
  /// Puts a trainable pair of rank `rank` beside the matrix, whose sides are `in` and `out`.
  void add_low_rank(int matrix, std::int64_t rank, Dim in, Dim out, DType dtype);
  /// A loop over parts of the sequence: body(i) for i in [0, n). Of a loop of more than most_turns the first and the last ones
  /// are run, as many of each: those between are like the ones around the middle, which who reads the events checks.
  template <class Body>
  void each_turn(std::int64_t n, Body&& body) {
    const std::int64_t run = std::min(n, most_turns);
    for (std::int64_t i = 0; i < run; ++i) {
      const InTurn here(*this, i, n);
      body(i < run / 2 ? i : n - run + i);
    }
  }
  /// The parameter, of which a use begins.
  Tensor leaf(int number);
  /// The use is over.
  void leave(int number) { uses.push_back({events.size(), number, place(), in_backward, UseMoment::ends}); }
  /// A module around those that use the parameter opens or closes.
  void open_around(int number) { uses.push_back({events.size(), number, place(), in_backward, UseMoment::opens}); }
  void close_around(int number) { uses.push_back({events.size(), number, place(), in_backward, UseMoment::closes}); }

  /// A new storage.
  Tensor make(std::string name, Shape shape, DType dtype, Category category = Category::activations);
  /// A new storage whose last axis has one entry more than `shape` says.
  Tensor make_with_column(const std::string& name, const Shape& shape, DType dtype, Category category = Category::activations);
  /// A tensor of a few bytes that is not worth a storage.
  Tensor scalar(DType dtype);
  /// The bf16 copy of an fp32 weight under autocast: made at its first use, kept until autocast is left.
  Tensor autocast_weight(const Tensor& weight);
  /// The bf16 copy of an fp32 input under autocast, which keeps copies of leaves that need a gradient like those of weights: a
  /// reentrant checkpoint's detached input is one (aten/src/ATen/autocast_mode.cpp, cached_cast, 2.13).
  Tensor autocast_input(const Tensor& input, const std::function<Tensor()>& cast);
  void leave_autocast() { casts_ = {}; }

  /// Keeps x for the backward pass.
  Saved save(const Tensor& x);
  /// Makes `out` the output of a new node if gradients are on and one of `inputs` needs one. Returns whether it did.
  bool record(Tensor& out, const char* name, const std::vector<const Tensor*>& inputs, std::function<Gradients(Gradients)> apply,
              std::size_t outputs = 1);
  bool will_record(const std::vector<const Tensor*>& inputs) const;

  using Function = std::function<Tensor(const Tensor&)>;
  /// torch.utils.checkpoint, use_reentrant=False: nothing is saved but x; the first saved variable that backward needs runs
  /// `body` again until all are there.
  Tensor checkpoint(const Tensor& x, const Function& body) { return checkpoint(x, body, false); }
  /// With torchtitan's choice of what is not computed again: results that `kept` made in the forward pass stay until then.
  Tensor checkpoint_selective(const Tensor& x, const Function& body) { return checkpoint(x, body, true); }
  /// The results of an operator that a selective checkpoint may keep. `matrix_product`: every second one of a body is not kept.
  using Results = std::vector<Tensor>;
  Results kept(bool matrix_product, const std::function<Results()>& run);
  /// use_reentrant=True: no graph in forward, the whole body and a nested backward pass in backward. A body may go through
  /// scopes; what follows the nested pass is where the body began.
  /// `also`: further arguments that are tensors. `second`: one that `body` reads there and that gets a gradient; `body` owns it.
  Tensor checkpoint_reentrant(const Tensor& x, const Function& body, const std::vector<Tensor>& also = {},
                              Tensor* second = nullptr);

  /// What ended the life of what `keeps_checkpoints` kept.
  void let_checkpoints_go() { kept_checkpoints_.clear(); }

  /// loss.backward() with `gradient` for `root`. Gradients of leaves are reported as events.
  void backward(const Tensor& root, Tensor gradient);
  using Root = std::pair<const Tensor*, Tensor>;
  void backward(std::vector<Root> roots);

  /// Node.register_hook of the node that runs: called when it has run, in front of what it gives on.
  void after_node(std::function<void()> hook) { after_node_.push_back(std::move(hook)); }
  const std::shared_ptr<Node>& running() const { return running_; }
  /// Number of the backward pass that runs; a nested one has its own.
  int graph() const { return graph_; }

  /// A sum over the rows of `x`: its result, beside which its buffer is there for a moment.
  Tensor row_sum(const Tensor& x, Shape shape, const std::string& name, Category category = Category::temporaries);

  /// x.untyped_storage().resize_(0): whoever refers to it refers to an empty storage from here on.
  void discard(const Tensor& x);
  /// A node frees what it has saved before it is through (x.data = an empty tensor): the bytes go, whoever refers to them.
  void clear(const Tensor& x);
  /// The discarded storage gets its bytes back, for all who refer to it.
  void restore(const Tensor& x);

  void reference(int storage);
  void release(int storage);
  std::int64_t sequence = 0;
  int parts = 0;  ///< slices made so far

 private:
  /// What happens meanwhile belongs to a turn of a loop, or to none.
  class InTurn {
   public:
    InTurn(Eager& g, std::int64_t turn, std::int64_t turns)
        : g_(g), turn_(std::exchange(g.turn_, turn)), turns_(std::exchange(g.turns_, turns)) {}
    InTurn(const InTurn&) = delete;
    InTurn& operator=(const InTurn&) = delete;
    ~InTurn() {
      g_.turn_ = turn_;
      g_.turns_ = turns_;
    }

   private:
    Eager& g_;
    std::int64_t turn_, turns_;
  };
  std::int64_t turn_ = -1, turns_ = 0;
  void note(EagerEvent::Kind kind, int storage, int where, bool backward, int leaf = -1) {
    events.push_back({kind, storage, where, backward, leaf, turn_, turns_});
  }
  /// Where events belong: a recomputation happens at its checkpoint's place, whatever it runs.
  int place() const { return recomputing_at_ >= 0 ? recomputing_at_ : scope; }
  int recomputing_at_ = -1;
  int standing_for(int storage) const;
  friend class Saved;
  struct StopRecompute {};
  /// What autocast keeps until it is left: copies of parameters, and of other leaves by the node that collects their gradient.
  struct Casts {
    std::vector<std::pair<int, Tensor>> weights;
    std::vector<std::pair<const Node*, Tensor>> inputs;
  };
  Casts casts_;
  std::vector<Tensor> kept_checkpoints_;
  std::vector<std::shared_ptr<PackedVariable>> unpacked_;
  std::vector<std::function<void()>> after_node_;
  std::shared_ptr<Node> running_;
  int graph_ = -1, graphs_ = 0;
  std::vector<std::shared_ptr<Tensor>> recomputed_;  ///< what checkpoints computed again for the node that runs now

  std::shared_ptr<Saved::Frame> recording_;  ///< frame whose forward runs now
  std::shared_ptr<Saved::Frame> refilling_;  ///< frame that is being recomputed now
  std::shared_ptr<Node> accumulator(int leaf);
  Tensor checkpoint(const Tensor& x, const Function& body, bool selective);
};

/// The frame of one non-reentrant checkpoint.
struct Saved::Frame {
  Eager* eager = nullptr;
  Tensor input;  ///< without storage when it lies on the host
  std::shared_ptr<PackedVariable> packed_input;
  Eager::Function body;
  std::size_t packed = 0;  ///< variables saved by the original forward
  /// One for each: what belongs to a node that nothing led back to is not kept when it is computed again
  /// (torch/utils/checkpoint.py, 2.13: weak_holders)
  std::vector<std::weak_ptr<const char>> holders;
  std::vector<Tensor> refilled;
  std::size_t refill_at = 0;
  bool done = false;
  bool autocast = false;
  bool distributed = false;
  int scope = 0;
  std::string prefix;
  bool selective = false, offloaded = false;
  std::size_t products = 0;                  ///< matrix products of the body so far
  std::vector<std::vector<Tensor>> results;  ///< that are kept, in order
  std::size_t next_result = 0;
};

}  // namespace oomplan
