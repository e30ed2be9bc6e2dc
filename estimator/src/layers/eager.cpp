#include "layers/eager.hpp"

#include <algorithm>
#include <map>
#include <queue>
#include <unordered_map>

#include "layers/reduction.hpp"
#include "units/interruption.hpp"

namespace oomplan {

// ---- Tensor -----------------------------------------------------------------------------------------------------------------

Tensor::Tensor(const Tensor& o)
    : shape(o.shape),
      dtype(o.dtype),
      leaf(o.leaf),
      grad_fn(o.grad_fn),
      output(o.output),
      transposed(o.transposed),
      part(o.part),
      eager_(o.eager_),
      storage_(o.storage_) {
  if (storage_ >= 0) eager_->reference(storage_);
}
Tensor::Tensor(Tensor&& o) noexcept
    : shape(std::move(o.shape)),
      dtype(o.dtype),
      leaf(o.leaf),
      grad_fn(std::move(o.grad_fn)),
      output(o.output),
      transposed(o.transposed),
      part(o.part),
      eager_(std::exchange(o.eager_, nullptr)),
      storage_(std::exchange(o.storage_, -1)) {}
Tensor& Tensor::operator=(Tensor o) noexcept {
  std::swap(shape, o.shape);
  std::swap(dtype, o.dtype);
  std::swap(leaf, o.leaf);
  std::swap(grad_fn, o.grad_fn);
  std::swap(output, o.output);
  std::swap(transposed, o.transposed);
  std::swap(part, o.part);
  std::swap(eager_, o.eager_);
  std::swap(storage_, o.storage_);
  return *this;
}
Tensor::~Tensor() {
  if (storage_ >= 0) eager_->release(storage_);
}

bool Tensor::needs_grad() const {
  if (grad_fn) return true;
  return leaf >= 0 && eager_ != nullptr && eager_->leaves[static_cast<std::size_t>(leaf)].trainable;
}

Tensor Tensor::alias(Shape as) const {
  Tensor t = *this;
  t.shape = std::move(as);
  t.grad_fn = nullptr;
  t.output = 0;
  t.leaf = -1;
  return t;
}

// ---- Saved variables and checkpoints ------------------------------------------------------------------------------------------

const Tensor& Saved::get() const {
  if (packed_) {
    if (!packed_->unpacked) {
      packed_->unpacked = packed_->unpack();
      packed_->eager->unpacked_.push_back(packed_);
    }
    return packed_->unpacked;
  }
  if (recomputed_) return *recomputed_;
  if (!frame_) return kept_;
  Frame& f = *frame_;
  if (!f.done) {
    Eager& e = *f.eager;
    const bool autocast = std::exchange(e.autocast, f.autocast);
    const bool grad = std::exchange(e.grad_enabled, true);
    const std::string prefix = std::exchange(e.prefix, f.prefix);
    const bool distributed = std::exchange(e.distributed, f.distributed);
    auto outer = std::exchange(e.refilling_, frame_);
    auto casts = std::exchange(e.casts_, {});
    const Eager::InTurn here(e, -1, 0);
    f.refilled.resize(f.packed);
    f.refill_at = 0;
    f.products = f.next_result = 0;
    try {
      Tensor input = f.packed_input ? f.packed_input->unpack()
                     : f.offloaded  ? e.make("input_from_host", f.input.shape, f.input.dtype)
                                    : f.input;
      input.grad_fn = f.input.grad_fn;
      input.output = f.input.output;
      Tensor again = f.body(input);
    } catch (const Eager::StopRecompute&) {
      // the last saved variable is there: what follows is not needed
    }
    e.casts_ = std::move(casts);
    e.refilling_ = std::move(outer);
    e.autocast = autocast;
    e.grad_enabled = grad;
    e.prefix = prefix;
    e.distributed = distributed;
    f.done = true;
  }
  recomputed_ = std::make_shared<Tensor>(std::move(f.refilled[index_]));
  f.eager->recomputed_.push_back(recomputed_);
  return *recomputed_;
}

Saved Eager::save(const Tensor& x) {
  Saved s;
  if (x.storage() >= 0) storages[static_cast<std::size_t>(x.storage())].saved = true;
  if (refilling_) {
    auto& f = *refilling_;
    Tensor plain = x;
    plain.grad_fn = nullptr;
    const std::size_t at = f.refill_at++;
    const bool expired = f.holders[at].expired();
    if (expired || keeps_recomputed_graph) s.kept_ = plain;  // as long as the node of the recomputation
    if (!expired) f.refilled[at] = std::move(plain);
    if (f.refill_at == f.packed && !recomputes_all) throw StopRecompute{};
    return s;
  }
  if (recording_) {
    s.frame_ = recording_;
    s.index_ = recording_->packed++;
    s.holder_ = std::make_shared<const char>('\0');
    recording_->holders.push_back(s.holder_);
    return s;
  }
  if (hooks != nullptr) {
    s.packed_ = hooks->pack(x);
    if (s.packed_) return s;
  }
  s.kept_ = x;
  s.kept_.grad_fn = nullptr;  // the graph does not keep itself alive through its saved inputs
  return s;
}

Eager::Results Eager::kept(bool matrix_product, const std::function<Results()>& run) {
  Saved::Frame* frame = refilling_ ? refilling_.get() : recording_.get();
  if (frame == nullptr || !frame->selective || !grad_enabled) return run();
  if (matrix_product && frame->products++ % 2 == 1) return run();
  if (refilling_) return std::move(frame->results[frame->next_result++]);
  Results results = run();
  frame->results.push_back(results);
  for (const Tensor& one : results) storages[static_cast<std::size_t>(one.storage())].saved = true;
  return results;
}

Tensor Eager::checkpoint(const Tensor& x, const Function& body, bool selective) {
  if (!grad_enabled) return body(x);
  auto frame = std::make_shared<Saved::Frame>();
  frame->eager = this;
  if (hooks != nullptr && !recording_) frame->packed_input = hooks->pack(x);
  frame->offloaded = offload_checkpoints || frame->packed_input != nullptr;
  if (frame->offloaded) {
    frame->input.shape = x.shape;
    frame->input.dtype = x.dtype;
    frame->input.grad_fn = x.grad_fn;
    frame->input.output = x.output;
  } else {
    frame->input = x;
    if (x.storage() >= 0) storages[static_cast<std::size_t>(x.storage())].saved = true;
  }
  frame->body = body;
  frame->autocast = autocast;
  frame->scope = scope;
  frame->prefix = prefix;
  frame->distributed = distributed;
  frame->selective = selective;
  auto outer = std::exchange(recording_, frame);
  Tensor out = body(x);
  recording_ = std::move(outer);
  return out;
}

/// A name that collects the gradient of what backward detaches.
struct DetachedInput {
  Tensor detached, collected;

  void detach(const Tensor& x, int scope) {
    detached = x.alias(x.shape);
    auto collector = std::make_shared<Node>();
    collector->name = "AccumulateGrad";
    collector->sequence = kAccumulates;
    collector->scope = scope;
    collector->apply = [this](Gradients given) {
      collected = std::move(given[0]);
      return Gradients{};
    };
    detached.grad_fn = std::move(collector);
  }
};

Tensor Eager::checkpoint_reentrant(const Tensor& x, const Function& body, const std::vector<Tensor>& also, Tensor* second_input) {
  if (!grad_enabled) return body(x);
  const int begun = scope;
  Tensor out, second;
  {
    const bool grad = std::exchange(grad_enabled, false);
    second_output = &second;
    out = body(x);
    second_output = nullptr;
    grad_enabled = grad;
  }
  const bool returns_two = second.storage() >= 0;
  const Shape shape_of_second = second.shape;
  second.reset();
  Saved input = offload_checkpoints ? Saved() : save(x);
  std::vector<Saved> others;
  for (const Tensor& one : also) others.push_back(save(one));
  const Saved saved_second = second_input != nullptr ? save(*second_input) : Saved();
  const bool was_autocast = autocast;
  const Shape shape = x.shape;
  const DType dtype = x.dtype;
  const auto backward_pass = [=, this](Gradients g) {
    // what nothing reads has a gradient of zeros all the same (materialize_grads)
    Tensor zeros = returns_two ? make("checkpoint.zeros", shape_of_second, dtype, Category::temporaries) : Tensor();
    // A detached input whose gradient is collected as a leaf's: its first gradient is kept as it is.
    Tensor detached = offload_checkpoints ? make("input_from_host", shape, dtype) : input.get();
    Tensor collected;
    for (const Saved& one : others) (void)one.get();
    auto collector = std::make_shared<Node>();
    collector->name = "AccumulateGrad";
    collector->sequence = kAccumulates;
    collector->scope = scope;
    collector->apply = [&collected](Gradients given) {
      collected = std::move(given[0]);
      return Gradients{};
    };
    detached.grad_fn = collector;
    const bool grad = std::exchange(grad_enabled, true);
    const bool cast = std::exchange(autocast, was_autocast);
    auto casts = std::exchange(casts_, {});
    recomputing_at_ = scope;
    Tensor second_again;
    second_output = &second_again;
    DetachedInput other;
    if (second_input != nullptr) {
      other.detach(saved_second.get(), scope);
      *second_input = other.detached;
    }
    Tensor again = body(detached);
    if (second_input != nullptr) second_input->reset();
    second_output = nullptr;
    recomputing_at_ = -1;
    casts_ = std::move(casts);
    autocast = cast;
    grad_enabled = false;
    std::vector<Root> roots{{&again, g[0]}};
    if (returns_two) roots.emplace_back(&second_again, zeros);
    backward(std::move(roots));
    nested_ends.push_back(events.size());
    grad_enabled = grad;
    scope = begun;
    if (keeps_checkpoints)
      for (const Tensor* one : {&detached, &collected}) kept_checkpoints_.push_back(one->alias(one->shape));
    return Gradients{collected, other.collected};
  };
  const Tensor none;
  record(out, "CheckpointFunctionBackward", {&x, second_input != nullptr ? second_input : &none}, backward_pass);
  return out;
}

// ---- Storages -----------------------------------------------------------------------------------------------------------------

int Eager::parameter(std::string name, Shape shape, DType dtype, bool trainable) {
  leaves.push_back({prefix + std::move(name), std::move(shape), dtype, trainable, scope, -1, -1, nullptr, false, {}});
  return static_cast<int>(leaves.size()) - 1;
}

void Eager::add_low_rank(int matrix, std::int64_t rank, Dim in, Dim out, DType dtype) {
  const auto at = static_cast<std::size_t>(matrix);
  std::string module = leaves[at].name.substr(prefix.size());
  if (module.ends_with(".weight")) module.resize(module.size() - std::string_view(".weight").size());
  leaves[at].low_rank_in = parameter(module + ".lora_A.weight", {Dim(rank), in}, dtype);
  leaves[at].low_rank_out = parameter(module + ".lora_B.weight", {out, Dim(rank)}, dtype);
}

Tensor Eager::leaf(int number) {
  uses.push_back({events.size(), number, place(), in_backward});
  Tensor t;
  t.eager_ = this;
  t.leaf = number;
  t.shape = leaves[static_cast<std::size_t>(number)].shape;
  t.dtype = leaves[static_cast<std::size_t>(number)].dtype;
  return t;
}

Tensor Eager::make(std::string name, Shape shape, DType dtype, Category category) {
  interruption_point_at(storages.size());
  Tensor t;
  t.eager_ = this;
  t.storage_ = static_cast<int>(storages.size());
  t.shape = shape;
  t.dtype = dtype;
  storages.push_back({prefix + std::move(name), std::move(shape), dtype, category, scope, in_backward, 1, false});
  storages.back().turn = turn_;
  storages.back().turns = turns_;
  note(EagerEvent::Kind::alloc, t.storage_, place(), in_backward);
  return t;
}

Tensor Eager::make_with_column(const std::string& name, const Shape& shape, DType dtype, Category category) {
  Tensor column = make(name + ".column", with_last(shape, 1), dtype, category);
  Tensor whole = make(name, shape, dtype, category);
  storages[static_cast<std::size_t>(whole.storage_)].column = std::exchange(column.storage_, -1);
  return whole;
}

Tensor Eager::scalar(DType dtype) {
  Tensor t;
  t.eager_ = this;
  t.dtype = dtype;
  return t;
}

Tensor Eager::autocast_weight(const Tensor& weight) {
  for (const auto& [leaf, copy] : casts_.weights)
    if (leaf == weight.leaf) return copy;
  Tensor copy = make(leaves[static_cast<std::size_t>(weight.leaf)].name + ".bf16", weight.shape, DType::bf16, Category::weights);
  storages.back().name = leaves[static_cast<std::size_t>(weight.leaf)].name + ".bf16";
  record(copy, "ToCopyBackward0", {&weight}, [](Gradients g) { return g; });
  if (weight.needs_grad() && !views_of_flat) casts_.weights.emplace_back(weight.leaf, copy);
  return copy;
}

Tensor Eager::autocast_input(const Tensor& input, const std::function<Tensor()>& cast) {
  const Node* leaf = input.grad_fn.get();
  if (leaf == nullptr || leaf->sequence != kAccumulates) return cast();
  for (const auto& [of, copy] : casts_.inputs)
    if (of == leaf) return copy;
  return casts_.inputs.emplace_back(leaf, cast()).second;
}

Tensor Eager::row_sum(const Tensor& x, Shape shape, const std::string& name, Category category) {
  const bool along_rows = !shape.empty() && elements({shape.back()}) == elements({x.shape.back()});
  const std::int64_t columns = along_rows ? elements(shape).coefficient : 0;
  Tensor out = make(name, std::move(shape), x.dtype, category);
  if (resident_threads == 0 || columns == 0) return out;
  const Bytes buffer = row_sum_buffer(elements(x.shape).coefficient / columns, columns, resident_threads);
  if (buffer > 0) make(name + ".buffer", {buffer / 4}, DType::fp32, Category::workspace);
  return out;
}

int Eager::standing_for(int storage) const {
  while (storages[static_cast<std::size_t>(storage)].instead >= 0) storage = storages[static_cast<std::size_t>(storage)].instead;
  return storage;
}

void Eager::discard(const Tensor& x) {
  const int storage = standing_for(x.storage_);
  storages[static_cast<std::size_t>(storage)].discarded = true;
  storages[static_cast<std::size_t>(storage)].saved = false;
  note(EagerEvent::Kind::free, storage, place(), in_backward);
}

void Eager::clear(const Tensor& x) {
  const int storage = standing_for(x.storage_);
  storages[static_cast<std::size_t>(storage)].discarded = true;
  note(EagerEvent::Kind::free, storage, place(), in_backward);
}

void Eager::restore(const Tensor& x) {
  const int empty = standing_for(x.storage_), full = static_cast<int>(storages.size());
  Storage again = storages[static_cast<std::size_t>(empty)];
  again.name += ".restored";
  again.scope = scope;
  again.backward = in_backward;
  again.discarded = false;
  again.turn = turn_;
  again.turns = turns_;
  storages[static_cast<std::size_t>(empty)].instead = full;
  storages.push_back(std::move(again));
  note(EagerEvent::Kind::alloc, full, place(), in_backward);
}

void Eager::reference(int storage) { ++storages[static_cast<std::size_t>(standing_for(storage))].references; }

void Eager::release(int storage) {
  storage = standing_for(storage);
  if (--storages[static_cast<std::size_t>(storage)].references > 0) return;
  if (storages[static_cast<std::size_t>(storage)].discarded) return;
  note(EagerEvent::Kind::free, storage, place(), in_backward);
  if (const int column = storages[static_cast<std::size_t>(storage)].column; column >= 0) release(column);
}

// ---- Graph --------------------------------------------------------------------------------------------------------------------

bool Eager::will_record(const std::vector<const Tensor*>& inputs) const {
  return grad_enabled && std::any_of(inputs.begin(), inputs.end(), [](const Tensor* t) { return t->needs_grad(); });
}

std::shared_ptr<Node> Eager::accumulator(int number) {
  auto& l = leaves[static_cast<std::size_t>(number)];
  if (!l.accumulate) {
    l.accumulate = std::make_shared<Node>();
    l.accumulate->name = "AccumulateGrad";
    l.accumulate->sequence = kAccumulates;
    l.accumulate->scope = l.scope;
    l.accumulate->apply = [this, number](Gradients g) {
      if (tiles != nullptr) {
        Tensor& sum = tiles->kept[number];
        if (!sum) sum = std::move(g[0]);
        if (!tiles->last) return Gradients{};
        g[0] = std::exchange(sum, {});
      }
      const int storage = g[0].storage();
      storages[static_cast<std::size_t>(storage)].category = Category::gradients;
      storages[static_cast<std::size_t>(storage)].name = leaves[static_cast<std::size_t>(number)].name + ".grad";
      storages[static_cast<std::size_t>(storage)].gradient_of = number;
      storages[static_cast<std::size_t>(storage)].turn = -1;     // it outlives the pass
      ++storages[static_cast<std::size_t>(storage)].references;  // the engine's from here on
      note(EagerEvent::Kind::gradient, storage, scope, true, number);
      return Gradients{};
    };
  }
  return l.accumulate;
}

bool Eager::record(Tensor& out, const char* name, const std::vector<const Tensor*>& inputs,
                   std::function<Gradients(Gradients)> apply, std::size_t outputs) {
  if (!will_record(inputs)) return false;
  auto node = std::make_shared<Node>();
  node->name = name;
  node->sequence = sequence++;
  node->scope = scope;
  node->turn = turn_;
  node->turns = turns_;
  node->outputs = outputs;
  node->distributed = distributed;
  for (const Tensor* input : inputs)
    if (input->leaf >= 0 && node->leaf < 0) node->leaf = input->leaf;
  node->apply = std::move(apply);
  for (const Tensor* input : inputs) {
    Node::Edge edge;
    if (input->grad_fn) {
      edge = {input->grad_fn, input->output};
    } else if (input->needs_grad()) {
      edge = {accumulator(input->leaf), 0};
    }
    node->next.push_back(std::move(edge));
    node->wanted.push_back({input->shape, input->dtype});
  }
  out.grad_fn = std::move(node);
  out.output = 0;
  return true;
}

namespace {

/// Gradients waiting for a node, and how many are still to come.
struct Waiting {
  std::size_t missing = 0;
  Gradients buffer;
};

void count_dependencies(const std::shared_ptr<Node>& root, std::unordered_map<Node*, Waiting>& tasks) {
  if (!tasks.try_emplace(root.get()).second) return;
  std::vector<Node*> open{root.get()};
  while (!open.empty()) {
    Node* at = open.back();
    open.pop_back();
    for (const auto& edge : at->next) {
      if (!edge.node) continue;
      const bool seen = tasks.count(edge.node.get()) > 0;
      ++tasks[edge.node.get()].missing;
      if (!seen) open.push_back(edge.node.get());
    }
  }
}

}  // namespace

void Eager::backward(const Tensor& root, Tensor gradient) {
  std::vector<Root> roots;
  roots.emplace_back(&root, std::move(gradient));  // nobody else may hold the gradient
  backward(std::move(roots));
}

void Eager::backward(std::vector<Root> roots) {
  const bool outer_backward = std::exchange(in_backward, true);
  const bool outer_grad = std::exchange(grad_enabled, false);
  const int outer_scope = scope, outer_graph = std::exchange(graph_, graphs_++);
  auto outer_node = std::exchange(running_, nullptr);
  const InTurn outside(*this, -1, 0);
  std::unordered_map<Node*, Waiting> tasks;
  for (const auto& [root, gradient] : roots) count_dependencies(root->grad_fn, tasks);
  using Ready = std::pair<std::int64_t, std::shared_ptr<Node>>;
  const auto later = [](const Ready& a, const Ready& b) { return a.first < b.first; };
  std::priority_queue<Ready, std::vector<Ready>, decltype(later)> ready(later);
  for (auto& [root, gradient] : roots) {
    auto& task = tasks[root->grad_fn.get()];
    task.buffer.resize(root->grad_fn->outputs);
    task.buffer[root->output] = std::move(gradient);
    if (task.missing == 0) ready.emplace(root->grad_fn->sequence, root->grad_fn);
  }
  roots.clear();
  EagerUse ending;  // the last node's use of its parameter
  const auto end_use = [&] {
    if (ending.leaf < 0) return;
    ending.event = events.size();
    uses.push_back(ending);
    ending.leaf = -1;
  };
  for (std::size_t ran = 0; !ready.empty(); ++ran) {
    interruption_point_at(ran);
    const std::shared_ptr<Node> node = ready.top().second;
    ready.pop();
    Gradients in = std::move(tasks[node.get()].buffer);
    in.resize(node->outputs);
    if (node->sequence != kAccumulates) {
      end_use();
      scope = node->scope;
      turn_ = node->turn;
      turns_ = node->turns;
    }
    if (node->leaf >= 0) uses.push_back({events.size(), node->leaf, scope, true, UseMoment::begins, true});
    auto outer_unpacked = std::exchange(unpacked_, {});
    auto outer_recomputed = std::exchange(recomputed_, {});
    auto outer_hooks = std::exchange(after_node_, {});
    running_ = node;
    Gradients held = node->sequence == kAccumulates ? Gradients{} : in;  // by call_function, until validate_outputs is done
    Gradients out = node->apply(std::move(in));
    for (const auto& one : unpacked_) one->unpacked.reset();  // names of the node's function
    if (!retain_graph)
      for (const auto& one : recomputed_) one->reset();  // the same
    unpacked_ = std::move(outer_unpacked);
    recomputed_ = std::move(outer_recomputed);
    if (node->leaf >= 0) {
      uses.push_back({events.size(), node->leaf, scope, true, UseMoment::ran, true});
      ending = {events.size(), node->leaf, scope, true, UseMoment::ends, true};
    }
    // validate_outputs: a broadcast input's gradient is summed to the input's shape, then cast to its dtype
    for (std::size_t i = 0; i < std::min(out.size(), node->next.size()); ++i) {
      Tensor& g = out[i];
      const auto& wanted = node->wanted[i];
      if (!node->next[i].node || !g || g.storage() < 0) continue;
      if (!wanted.shape.empty() && elements(g.shape) != elements(wanted.shape)) g = row_sum(g, wanted.shape, "sum_to");
      if (g.dtype != wanted.dtype) g = make("cast", g.shape, wanted.dtype, Category::temporaries);
    }
    for (const auto& hook : after_node_) hook();
    after_node_ = std::move(outer_hooks);
    held.clear();
    if (!retain_graph && node->sequence != kAccumulates) node->apply = nullptr;  // release_variables
    for (std::size_t i = 0; i < node->next.size(); ++i) {
      const auto& edge = node->next[i];
      if (!edge.node) continue;
      auto& task = tasks[edge.node.get()];
      task.buffer.resize(std::max(task.buffer.size(), edge.node->outputs));
      if (i < out.size() && out[i]) {
        Tensor g = std::move(out[i]);
        Tensor& waiting = task.buffer[edge.slot];
        if (!waiting) {
          waiting = std::move(g);
        } else if (waiting.storage() >= 0 && !waiting.transposed && !edge.node->distributed &&
                   storages[static_cast<std::size_t>(waiting.storage())].references == 1) {
          g.reset();  // added into the first one
        } else if (waiting.storage() >= 0) {
          Tensor sum = make("gradient_sum", waiting.shape, waiting.dtype, Category::temporaries);
          waiting = std::move(sum);
          g.reset();
        }
      }
      if (--task.missing == 0) ready.emplace(edge.node->sequence, edge.node);
    }
  }
  end_use();
  running_ = std::move(outer_node);
  graph_ = outer_graph;
  scope = outer_scope;
  in_backward = outer_backward;
  grad_enabled = outer_grad;
}

}  // namespace oomplan
