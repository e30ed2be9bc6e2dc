#include "layers/mamba.hpp"

#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"
#include "layers/state_parts.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// dt_proj.weight @ step: one matrix product over all tokens, transposed back by a copy. Its gradient is a transposed one too,
/// whose rows are no matrix where there are several sequences.
Tensor project_step(Eager& g, const Tensor& step, int weight, Dim inner, bool several) {
  Tensor rows = linear(g, step, weight, -1, T, {B, S, inner}, "dt_proj");
  if (several) rows = view_copied_back(g, rows, rows.shape, "dt_proj.gradient_rows");
  return copy(g, std::move(rows), {B, inner, S}, "step");
}

/// FalconMambaWeightlessRMSNorm
Tensor weightless(Eager& g, const Tensor& x, const std::string& name) {
  Tensor wide = to(g, x, DType::fp32, name + ".fp32"), root;
  {
    Tensor squares = pow2(g, wide);
    Tensor variance = mean_last(g, std::move(squares));
    Tensor shifted = add_scalar(g, std::move(variance), name + ".variance");
    root = rsqrt(g, std::move(shifted), name + ".rstd");
  }
  Tensor normed = mul(g, wide, std::move(root), name + ".normed_fp32");
  return to(g, std::move(normed), x.dtype, name + ".normed");
}

/// mamba_selective_scan: what it discretises is there for all tokens, the state is scanned one token after another.
struct Scan {
  Eager& g;
  const Dim inner, states;
  const std::int64_t tokens;
  const Tensor &hidden, &input, &output, &rate, &skip, &gate;  ///< names of the caller

  Tensor run(const Tensor& bare_step, const Tensor& bias) {
    const Shape rows{B, inner, S}, column{B, inner, S, Dim(1)}, whole{B, inner, S, states};
    Tensor step;
    {
      Tensor cast = to(g, bias, bare_step.dtype, "scan.bias");
      Tensor shifted = add(g, bare_step, view(std::move(cast), {Dim(1), inner, Dim(1)}), "scan.step_shifted");
      step = softplus(g, shifted, "scan.step");
    }
    Tensor kept, update;
    {
      Tensor exponent = outer(g, view(rate, {Dim(1), inner, Dim(1), states}), view(step, column), whole, "scan.exponent");
      kept = exp(g, std::move(exponent), "scan.kept");
    }
    Tensor wide = to(g, view(input, {B, Dim(1), S, states}), DType::fp32, "scan.input_fp32");
    const Tensor discrete = outer(g, view(step, column), std::move(wide), whole, "scan.discrete");
    wide = to(g, view(hidden, column), DType::fp32, "scan.hidden_fp32");
    update = outer(g, discrete, std::move(wide), whole, "scan.update");
    return finish(scan(kept, update));
  }

  Tensor state = {}, last = {};  ///< names of the loop's last turn
  std::vector<Tensor> results = {};

  Tensor scan(const Tensor& kept, const Tensor& update) {
    const Shape one{B, inner, states};
    state = g.make("scan.zeros", one, hidden.dtype);
    g.each_turn(tokens, [&](std::int64_t) {
      Tensor old = outer(g, slice(g, kept, one), state, one, "scan.old");
      Tensor next = add(g, std::move(old), slice(g, update, one), "scan.state");
      state = std::move(next);
      Tensor narrow = to(g, state, hidden.dtype, "scan.state_cast");
      Tensor read = matmul(g, std::move(narrow), slice(g, output, {B, states, Dim(1)}), {B, inner, Dim(1)}, "scan.read");
      results.push_back(slice(g, read, {B, inner}));
      last = std::move(read);
    });
    Tensor joined = cat(g, results, {B, inner, S}, "scan.joined");
    last.reset();
    return joined;
  }

  Tensor finish(Tensor out) {
    {
      Tensor skipped = outer(g, hidden, view(skip, {Dim(1), inner, Dim(1)}), hidden.shape, "scan.skipped");
      Tensor sum = add(g, out, std::move(skipped), "scan.with_skip");
      out = std::move(sum);
    }
    Tensor open = activation(g, gate, "scan.gate_act");
    return mul(g, out, std::move(open), "scan.gated");
  }
};

}  // namespace

Tensor run_mamba(Eager& g, const FamilyCode& code, const Mixer& m, std::int64_t hidden, const LayerLeaves& leaves,
                 const KernelOptions& options, const Tensor& x) {
  const StateLeaves& w = leaves.state;
  const Dim inner = m.inner, states = m.state_size, rank = m.dt_rank;
  const bool several = options.several_sequences;
  Tensor projected = linear(g, x, w.in, w.in_bias, T, {B, S, Dim(2 * m.inner)}, "in_proj");
  const DType dtype = projected.dtype;
  // by channel; the gradient of both halves is joined so, and copied to be rows again
  if (several) projected = view_copied_back(g, projected, projected.shape, "in_proj.gradient_rows");
  const Tensor rate = negative_rate(g, w.a_log);
  {
    // arguments of mamba_inner_fn, which returns nothing without mamba_ssm
    Tensor out_bias = w.out_bias >= 0 ? to(g, g.leaf(w.out_bias), DType::fp32, "out_bias_fp32") : Tensor();
    Tensor skip = to(g, g.leaf(w.d), DType::fp32, "D_fp32");
    Tensor bias = to(g, g.leaf(w.dt_proj_bias), DType::fp32, "dt_bias_fp32");
  }
  std::vector<Tensor> halves = split(g, projected, {{B, inner, S}, {B, inner, S}});
  Tensor mixed = std::move(halves[0]);
  const Tensor gate = std::move(halves[1]);
  {
    Tensor convolved = causal_conv(g, mixed, {w.conv, w.conv_bias, inner, m.conv_kernel, options.scan_tokens});
    mixed = std::move(convolved);
  }
  Tensor parameters;
  {
    Tensor by_token = view(mixed, {B, S, inner});
    if (several) by_token = copy(g, by_token, by_token.shape, "x_proj.rows");
    parameters = linear(g, std::move(by_token), w.x, -1, T, {B, S, Dim(m.dt_rank + 2 * m.state_size)}, "x_proj");
  }
  std::vector<Tensor> parts = split(g, parameters, {{B, S, rank}, {B, S, states}, {B, S, states}});
  parameters.reset();
  if (code.norms_scan) {
    for (const auto& [at, name] : {std::pair(0, "dt_norm"), std::pair(1, "b_norm"), std::pair(2, "c_norm")}) {
      Tensor normed = weightless(g, parts[static_cast<std::size_t>(at)], name);
      parts[static_cast<std::size_t>(at)] = std::move(normed);
    }
  }
  if (w.dt_norm >= 0) {
    const std::pair<int, const char*> norms[] = {{w.dt_norm, "dt_norm"}, {w.b_norm, "b_norm"}, {w.c_norm, "c_norm"}};
    for (std::size_t i = 0; i < 3; ++i) {
      Tensor normed = run_norm(g, code.norm, parts[i], {norms[i].first, -1}, norms[i].second);
      parts[i] = std::move(normed);
    }
  }
  const Tensor step = project_step(g, parts[0], w.dt, inner, several);
  parts[0].reset();
  const Tensor bias = to(g, g.leaf(w.dt_proj_bias), DType::fp32, "dt_bias_fp32");
  Tensor scanned;
  {
    const Tensor skip = to(g, g.leaf(w.d), DType::fp32, "D_fp32");
    Scan scan{.g = g,
              .inner = inner,
              .states = states,
              .tokens = options.scan_tokens,
              .hidden = mixed,
              .input = parts[1],
              .output = parts[2],
              .rate = rate,
              .skip = skip,
              .gate = gate};
    scanned = scan.run(step, bias);
  }
  Tensor cast = to(g, view(scanned, {B, S, inner}), dtype, "scan.cast");
  Tensor rows = several ? copy(g, cast, cast.shape, "out_proj.rows") : cast;
  return linear(g, std::move(rows), w.out, w.out_bias, T, {B, S, Dim(hidden)}, "out_proj");
}

}  // namespace oomplan
