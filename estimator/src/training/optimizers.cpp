#include "training/optimizers.hpp"

#include <algorithm>
#include <map>

namespace oomplan {
namespace {

constexpr Bytes kFp32 = 4;

/// bitsandbytes/optim/optimizer.py: which states a parameter has, in how many bits.
struct Blockwise {
  int states = 0;  ///< 0: not an optimizer of bitsandbytes
  int bits = 32;
  bool paged = false;
};
Blockwise blockwise(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::adamw_8bit:
      return {2, 8, false};
    case OptimizerKind::paged_adamw_8bit:
      return {2, 8, true};
    case OptimizerKind::paged_adamw_32bit:
      return {2, 32, true};
    case OptimizerKind::lion_32bit:
      return {1, 32, false};
    case OptimizerKind::lion_8bit:
      return {1, 8, false};
    case OptimizerKind::paged_lion_32bit:
      return {1, 32, true};
    case OptimizerKind::paged_lion_8bit:
      return {1, 8, true};
    default:
      return {};
  }
}

/// Eight bits an element and one fp32 a block of 256; small tensors and embeddings in fp32. Only large tensors are paged. The two
/// tables of 256 quantised values are one for all tensors. The step makes nothing.
OptimizerBytes blockwise_bytes(const Blockwise& kind, const std::vector<TrainedTensor>& tensors) {
  constexpr std::int64_t kBlock = 256, kSmallestQuantised = 4096, kSmallestPaged = 100000;
  OptimizerBytes out;
  bool quantises = false;
  for (const TrainedTensor& t : tensors) {
    const bool quantised = kind.bits == 8 && t.elements >= kSmallestQuantised && !t.embedding;
    const Bytes state = quantised ? t.elements : kFp32 * t.elements;
    (kind.paged && t.elements >= kSmallestPaged ? out.managed : out.states) += kind.states * state * t.copies;
    if (quantised) out.states += kind.states * kFp32 * ceil_div(t.elements, kBlock) * t.copies;
    quantises = quantises || quantised;
  }
  if (quantises) out.states += kind.states * kFp32 * kBlock;
  return out;
}

/// visit(tensor, first) for what a loop over the parameters meets: of equal layers two, for the first tensor of a layer meets
/// what the last one of the layer before has left.
template <class Visit>
void in_turn(const std::vector<const TrainedTensor*>& tensors, Visit&& visit) {
  for (std::size_t from = 0, to = 0; from < tensors.size(); from = to) {
    while (to < tensors.size() && tensors[to]->copies == tensors[from]->copies) ++to;
    for (int layer = 0; layer < std::min<std::int64_t>(2, tensors[from]->copies); ++layer)
      for (std::size_t i = from; i < to; ++i) visit(*tensors[i], layer == 0);
  }
}

std::vector<const TrainedTensor*> all_of(const std::vector<TrainedTensor>& tensors) {
  std::vector<const TrainedTensor*> out;
  for (const TrainedTensor& t : tensors) out.push_back(&t);
  return out;
}

/// Adam and SGD add the weight decay to the gradient, AdamW shrinks the parameter where it lies.
bool copies_gradients(const Trainer& t) {
  const bool adds =
      t.optimizer == OptimizerKind::adam || t.optimizer == OptimizerKind::sgd || t.optimizer == OptimizerKind::sgd_momentum;
  return adds && t.weight_decay > 0;
}

/// Of one parameter with `own` bytes. Adam's loop makes a square root and its quotient, beside the gradient's copy, and holds the
/// denominator of the parameter before; SGD's makes the gradient's copy and, of that and the momentum, Nesterov's sum.
Bytes loop_level(const Trainer& t, Bytes own, Bytes before) {
  const int copies = copies_gradients(t) ? 1 : 0;
  if (adam(t.optimizer)) return before + (2 + copies) * own;
  return (copies + (t.nesterov && t.optimizer == OptimizerKind::sgd_momentum ? 1 : 0)) * own;
}

/// foreach goes format by format. Adam makes one list of square roots, which outlives the turn of its format, and in front of it
/// the list of copies, which does not; SGD's copies go when the next format's turn comes.
Bytes foreach_level(const Trainer& t, const std::map<DType, Bytes>& by_format) {
  Bytes all = 0, most = 0;
  for (const auto& [format, bytes] : by_format) {
    all += bytes;
    most = std::max(most, bytes);
  }
  if (adam(t.optimizer)) return all;
  return copies_gradients(t) ? most : 0;
}

/// torch.optim's Adam, AdamW and SGD in their three forms (torch/optim/adam.py, sgd.py).
OptimizerBytes elementwise(const Trainer& t, const std::vector<TrainedTensor>& tensors) {
  OptimizerBytes out;
  std::map<DType, Bytes> by_format;
  Bytes before = 0, loop = 0;
  std::int64_t count = 0;
  in_turn(all_of(tensors), [&](const TrainedTensor& tensor, bool first) {
    const Bytes own = bytes_of(tensor.elements, tensor.storage);
    if (first) {
      by_format[tensor.storage] += own * tensor.copies;
      count += tensor.copies;
      out.states += states_per_element(t) * own * tensor.copies;
    }
    loop = std::max(loop, loop_level(t, own, before));
    before = own;
  });
  if (t.optimizer_form == OptimizerForm::loop) out.transient = loop;
  if (t.optimizer_form == OptimizerForm::foreach) out.transient = foreach_level(t, by_format);
  if (t.optimizer_form == OptimizerForm::fused && adam(t.optimizer)) out.steps = 4 * count;
  return out;
}

/// Second moments of a matrix: one number a row and one a column, over the last two axes.
std::int64_t factored(const TrainedTensor& t) {
  if (t.shape.size() < 2) return t.elements;
  const std::int64_t rows = t.shape[t.shape.size() - 2], columns = t.shape.back();
  return t.elements / columns + t.elements / rows;
}

/// transformers' Adafactor: states in fp32, and one number; the step works on fp32 copies of gradient and parameter, makes the
/// update and its negative, and holds the last tensor's update until the next one's is there; the two factors of a matrix are
/// there while their product is made.
OptimizerBytes adafactor(const std::vector<TrainedTensor>& tensors) {
  OptimizerBytes out;
  std::int64_t before = 0;
  in_turn(all_of(tensors), [&](const TrainedTensor& t, bool first) {
    if (first) out.states += kFp32 * (factored(t) + 1) * t.copies;
    const std::int64_t tensors_made = t.storage == DType::fp32 ? 2 : 4;
    const std::int64_t beside = std::max(before, t.shape.size() > 1 ? factored(t) : 0);
    out.transient = std::max(out.transient, kFp32 * (tensors_made * t.elements + beside));
    before = t.elements;
  });
  return out;
}

/// torch.optim.Adafactor, one parameter after another: in the parameter's format; the estimate becomes the update in place, and
/// is held until the next one is there.
OptimizerBytes torch_adafactor(const std::vector<TrainedTensor>& tensors) {
  OptimizerBytes out;
  Bytes before = 0;
  in_turn(all_of(tensors), [&](const TrainedTensor& t, bool first) {
    const Bytes own = bytes_of(t.elements, t.storage);
    if (first) out.states += (bytes_of(factored(t), t.storage) + kFp32) * t.copies;
    out.transient = std::max(out.transient, (t.shape.size() < 2 ? 2 * own : own) + before);
    before = own;
  });
  return out;
}

/// torch.optim.Muon for the matrices of the layers, AdamW for all else: Newton-Schulz holds the update, two copies in bf16 and
/// two products of it with itself, of the shorter side squared.
OptimizerBytes muon(const Trainer& t, const std::vector<TrainedTensor>& tensors) {
  std::vector<TrainedTensor> matrices, others;
  for (const TrainedTensor& tensor : tensors) (tensor.matrix_of_a_layer ? matrices : others).push_back(tensor);
  Trainer with = t;
  with.optimizer = OptimizerKind::adamw;
  OptimizerBytes out = elementwise(with, others);
  for (const TrainedTensor& m : matrices) {
    const Bytes own = bytes_of(m.elements, m.storage);
    const std::int64_t side = std::min(m.shape[0], m.shape[1]);
    out.states += own * m.copies;
    out.transient = std::max(out.transient, own + 2 * bytes_of(m.elements + side * side, DType::bf16));
  }
  return out;
}

/// apollo_torch's AdamW, whose loop leaves the names of one parameter to the next: Adam's square root, and the update, which for
/// a projected matrix is first of the low rank and then the gradient's size.
class Apollo {
 public:
  explicit Apollo(std::int64_t rank) : rank_(rank) {}
  OptimizerBytes run(const std::vector<TrainedTensor>& tensors) {
    for (const bool matrices : {false, true}) {  // transformers' Trainer: what is projected is a group behind all else
      std::vector<const TrainedTensor*> group;
      for (const TrainedTensor& t : tensors)
        if (t.matrix_of_a_layer == matrices) group.push_back(&t);
      in_turn(group, [&](const TrainedTensor& t, bool first) { matrices ? project(t, first) : step(t, first); });
    }
    return out_;
  }

 private:
  void reach(Bytes more) {
    out_.transient = std::max(out_.transient, root_ + factors_ + scaled_ + (shared_ ? 0 : update_) + more);
  }

  void step(const TrainedTensor& t, bool first) {
    const Bytes own = bytes_of(t.elements, t.storage);
    if (first) out_.states += 2 * own * t.copies;
    reach(own);
    root_ = own;
    reach(own);
    update_ = own;
  }
  /// With new projections, which every 200th step makes, of an fp32 copy of the gradient and in fp32.
  void project(const TrainedTensor& t, bool first) {
    const std::int64_t narrow = std::min(t.shape[0], t.shape[1]), broad = std::max(t.shape[0], t.shape[1]);
    const bool wide = t.storage == DType::fp32;
    const Bytes own = bytes_of(t.elements, t.storage), low = bytes_of(broad * rank_, t.storage);
    const Bytes projection = bytes_of(narrow * rank_, t.storage), in_fp32 = kFp32 * narrow * rank_;
    if (first) out_.states += (2 * low + projection) * t.copies;
    const Bytes copy = wide ? 0 : kFp32 * t.elements;
    reach(copy + 2 * in_fp32);
    if (!wide) reach(copy + in_fp32 + projection);
    reach(2 * low);  // the projected gradient and its square root
    root_ = low;
    reach(2 * low);
    update_ = low;
    shared_ = false;
    factors_ = bytes_of(broad, t.storage);  // one for each row or column
    reach(low + own);
    scaled_ = own;
    reach(low + own);  // behind the limiter
    update_ = own;
    shared_ = true;
  }

  std::int64_t rank_;
  Bytes root_ = 0, update_ = 0, factors_ = 0, scaled_ = 0;
  bool shared_ = false;  ///< the update is the scaled gradient
  OptimizerBytes out_;
};

}  // namespace

bool adam(OptimizerKind kind) { return kind == OptimizerKind::adamw || kind == OptimizerKind::adam; }

std::int64_t states_per_element(const Trainer& t) {
  if (adam(t.optimizer)) return t.amsgrad ? 3 : 2;
  return t.optimizer == OptimizerKind::sgd_momentum ? 1 : 0;
}

OptimizerBytes optimizer_bytes(const Trainer& t, const std::vector<TrainedTensor>& tensors) {
  if (const Blockwise kind = blockwise(t.optimizer); kind.states > 0) return blockwise_bytes(kind, tensors);
  switch (t.optimizer) {
    case OptimizerKind::adafactor:
      return adafactor(tensors);
    case OptimizerKind::torch_adafactor:
      return torch_adafactor(tensors);
    case OptimizerKind::muon:
      return muon(t, tensors);
    case OptimizerKind::apollo_adamw:
      return Apollo(t.optimizer_rank).run(tensors);
    default:
      return elementwise(t, tensors);
  }
}

}  // namespace oomplan
