#include "layers/megatron_recompute.hpp"

#include <utility>

namespace oomplan {
namespace {

/// Inputs as a checkpoint keeps them.
struct KeptInputs {
  std::vector<Saved> tensors;
  std::vector<bool> needed;  ///< whose gradient is wanted
};

KeptInputs keep(Eager& g, const std::vector<Tensor>& inputs) {
  KeptInputs out;
  for (const Tensor& x : inputs) {
    out.tensors.push_back(g.save(x));
    out.needed.push_back(x.needs_grad());
  }
  return out;
}

/// Detached inputs, and where their gradients are collected.
struct Detached {
  std::vector<Tensor> inputs;
  std::shared_ptr<Gradients> gradients;
};

Detached detach(const KeptInputs& kept, int scope) {
  Detached out;
  out.gradients = std::make_shared<Gradients>(kept.tensors.size());
  for (std::size_t i = 0; i < kept.tensors.size(); ++i) {
    Tensor x = kept.tensors[i].get();
    if (kept.needed[i]) {
      auto node = std::make_shared<Node>();
      node->name = "AccumulateGrad";
      node->sequence = kAccumulates;
      node->scope = scope;
      node->apply = [into = out.gradients, i](Gradients given) {
        (*into)[i] = std::move(given[0]);
        return Gradients{};
      };
      x.grad_fn = std::move(node);
      x.output = 0;
    }
    out.inputs.push_back(std::move(x));
  }
  return out;
}

std::vector<const Tensor*> pointers(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> out;
  for (const Tensor& x : tensors) out.push_back(&x);
  return out;
}

std::vector<Tensor> run_with(Eager& g, bool graph, const Recomputed& body, const std::vector<Tensor>& inputs) {
  const bool grad = std::exchange(g.grad_enabled, graph);
  std::vector<Tensor> out = body(inputs);
  g.grad_enabled = grad;
  return out;
}

/// torch.autograd.backward over several roots.
void backward_several(Eager& g, const std::vector<Tensor>& roots, const Gradients& given) {
  auto joint = std::make_shared<Node>();
  joint->name = "Roots";
  joint->sequence = g.sequence++;
  joint->scope = g.scope;
  for (const Tensor& root : roots) {
    joint->next.push_back({root.grad_fn, root.output});
    joint->wanted.push_back({root.shape, root.dtype});
  }
  joint->apply = [given](Gradients) { return given; };
  Tensor root = g.scalar(DType::fp32);
  root.grad_fn = std::move(joint);
  g.backward(root, g.scalar(DType::fp32));
}

}  // namespace

Tensor checkpoint_several(Eager& g, const std::vector<Tensor>& inputs, Recomputed body) {
  if (!g.grad_enabled) return body(inputs)[0];
  Tensor out = std::move(run_with(g, false, body, inputs)[0]);
  const KeptInputs kept = keep(g, inputs);
  g.record(out, "CheckpointFunction", pointers(inputs), [&g, kept, body = std::move(body)](Gradients in) {
    Detached again = detach(kept, g.scope);
    const std::vector<Tensor> results = run_with(g, true, body, again.inputs);
    backward_several(g, results, in);
    return std::move(*again.gradients);
  });
  return out;
}

struct DiscardedOutputs::State {
  Eager& g;
  Recomputed body;
  KeptInputs kept;
  std::vector<Tensor> outputs;  ///< of the forward pass; from their recomputation on with the graph of that
  Detached again;

  void recompute() {
    again = detach(kept, g.scope);
    std::vector<Tensor> results = run_with(g, true, body, again.inputs);
    for (const Tensor& one : outputs) g.restore(one);
    outputs = std::move(results);
  }
};

std::vector<Tensor> DiscardedOutputs::run(Eager& g, const std::vector<Tensor>& inputs, Recomputed body) {
  std::vector<Tensor> outputs = run_with(g, false, body, inputs);
  state_ = std::make_shared<State>(State{g, std::move(body), {}, {}, {}});
  for (const Tensor& one : outputs) state_->outputs.push_back(one.alias(one.shape));
  if (!g.will_record(pointers(inputs))) return outputs;
  state_->kept = keep(g, inputs);
  const auto backward = [state = state_](Gradients in) {
    backward_several(state->g, state->outputs, in);
    state->outputs.clear();
    const Detached inner = std::exchange(state->again, {});
    return std::move(*inner.gradients);
  };
  g.record(outputs[0], "CheckpointWithoutOutputFunction", pointers(inputs), backward, outputs.size());
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    outputs[i].grad_fn = outputs[0].grad_fn;
    outputs[i].output = i;
  }
  return outputs;
}

void DiscardedOutputs::discard(const Tensor& hook) {
  for (const Tensor& one : state_->outputs) state_->g.discard(one);
  if (!hook.grad_fn) return;
  auto& apply = hook.grad_fn->apply;
  apply = [state = state_, inner = std::move(apply)](Gradients in) {
    state->recompute();
    return inner(std::move(in));
  };
}

}  // namespace oomplan
