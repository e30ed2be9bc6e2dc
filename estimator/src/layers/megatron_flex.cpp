#include "layers/megatron_flex.hpp"

#include <algorithm>
#include <cmath>

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// token_dispatch(async_finish=True, allocate_on_comm_stream=True): what DeepEP makes lies in blocks of its own stream.
constexpr std::uint8_t kDeepEpStream = 4;

Tensor from_deepep(Eager& g, const std::string& name, Shape shape, DType dtype, Category category = Category::activations) {
  Tensor out = g.make(name, std::move(shape), dtype, category);
  g.storages[static_cast<std::size_t>(out.storage())].stream = kDeepEpStream;
  return out;
}

/// A tensor of the handle, by which a dispatch is taken back.
struct HandlePart {
  const char* name;
  Shape shape;
  DType dtype;
};

/// Buffer::intranode_dispatch and Buffer::internode_dispatch.
std::vector<HandlePart> handle_parts(const FlexSizes& z, const Dim& tokens) {
  const Dim ranks(z.ranks), machines(z.machines), channels(z.channels);
  if (z.machines == 1)
    return {{"is_token_in_rank", {tokens, ranks}, DType::boolean},           {"rank_prefix_matrix", {ranks, ranks}, DType::int32},
            {"channel_prefix_matrix", {ranks, channels}, DType::int32},      {"recv_src_idx", {axis::D}, DType::int32},
            {"recv_channel_prefix_matrix", {ranks, channels}, DType::int32}, {"send_head", {tokens, ranks}, DType::int32}};
  return {{"is_token_in_rank", {tokens, ranks}, DType::boolean},
          {"rdma_channel_prefix_matrix", {machines, channels}, DType::int32},
          {"recv_rdma_rank_prefix_sum", {machines}, DType::int32},
          {"gbl_channel_prefix_matrix", {ranks, channels}, DType::int32},
          {"recv_gbl_rank_prefix_sum", {ranks}, DType::int32},
          {"recv_src_meta", {axis::D, Dim(8)}, DType::int8},
          {"recv_rdma_channel_prefix_matrix", {machines, channels}, DType::int32},
          {"recv_gbl_channel_prefix_matrix", {ranks, channels}, DType::int32},
          {"send_rdma_head", {tokens, machines}, DType::int32},
          {"send_nvl_head", {axis::R, Dim(kDeepEpPeers)}, DType::int32}};
}

using Handle = std::vector<Tensor>;
/// ctx.handle: an attribute, not a saved variable.
void keep_handle(const Tensor& out, const Handle& handle) {
  for (const Tensor& part : handle) out.grad_fn->attributes.push_back(part.alias(part.shape));
}

/// setup_metadata: every token's best experts. The ranks that split an expert are experts of their own here.
TopK best_experts(Eager& g, const RoutedSizes& s, const FlexSizes& z, Tensor probabilities) {
  const std::int64_t splits = z.chosen / s.top;
  if (splits > 1) {
    const Shape whole{s.tokens, Dim(splits * s.experts)};
    probabilities = moved_rows(g, probabilities, whole, {}, probabilities.dtype, "expanded_probabilities");
  }
  return topk(g, probabilities, {s.tokens, Dim(z.chosen)}, "token_probabilities");
}

/// FusedDispatch. The lists of experts that come along are the dispatcher's alone.
RoutedRows dispatched(Eager& g, const RoutedSizes& s, const FlexSizes& z, const Tensor& x, const Tensor& weights,
                      Handle& handle) {
  for (const HandlePart& part : handle_parts(z, s.tokens)) handle.push_back(from_deepep(g, part.name, part.shape, part.dtype));
  const Shape list{axis::D, Dim(z.chosen)};
  RoutedRows out{from_deepep(g, "dispatched", {axis::D, Dim(s.hidden)}, DType::bf16), {}};
  const Tensor indices = from_deepep(g, "dispatched_indices", list, DType::int64);
  out.weights = from_deepep(g, "dispatched_probabilities", list, DType::fp32);
  if (!g.will_record({&x, &weights})) return out;
  Tensor joint = out.tokens.alias(out.tokens.shape);
  const auto backward = [&g, list, tokens = x.shape, probabilities = weights.shape](Gradients) {
    // autograd hands a function zeros for a result that nobody derives
    const Tensor zeros = gradient(g, "dispatched_indices_backward", list, DType::int64);
    Gradients grads;
    grads.push_back(from_deepep(g, "dispatch_backward", tokens, DType::bf16, Category::temporaries));
    grads.push_back(from_deepep(g, "dispatch_backward.probabilities", probabilities, DType::fp32, Category::temporaries));
    return grads;
  };
  g.record(joint, "FusedDispatchBackward", {&x, &weights}, backward, 2);
  keep_handle(joint, handle);
  out.tokens.grad_fn = out.weights.grad_fn = joint.grad_fn;
  out.weights.output = 1;
  return out;
}

/// _indices_to_multihot: probabilities [D, experts of the rank]; the map is the dispatcher's alone.
Tensor multihot(Eager& g, const RoutedSizes& s, const FlexSizes& z, const Tensor& weights) {
  const Shape all{axis::D, Dim(s.local)}, list{axis::D, Dim(z.chosen)}, rows{s.rows};
  const Tensor wide = g.make("multihot.map_int64", all, DType::int64);
  Tensor out = g.make("multihot.probabilities", all, DType::fp32);
  const Tensor mask = g.make("multihot.mask", list, DType::boolean);
  const Tensor experts = g.make("multihot.experts", rows, DType::int64), places = g.make("multihot.rows", rows, DType::int64);
  Tensor chosen = moved_rows(g, weights, rows, {mask}, DType::fp32, "multihot.chosen");
  if (g.will_record({&chosen})) {
    const auto backward = [&g, rows, first = g.save(places), second = g.save(experts)](Gradients) {
      (void)first.get();
      (void)second.get();
      return Gradients{gradient(g, "multihot_backward", rows, DType::fp32)};
    };
    g.record(out, "IndexPutBackward0", {&chosen}, backward);
  }
  chosen.reset();
  const Tensor map = g.make("multihot.map", all, DType::boolean);
  return out;
}

/// FusedCombine: back to the tokens of this rank. Its way back is a dispatch by the handle.
Tensor combined(Eager& g, const FlexSizes& z, const Tensor& x, const Handle& handle, const Shape& tokens) {
  Tensor out = from_deepep(g, "combined", tokens, DType::bf16);
  if (!g.will_record({&x})) return out;
  const auto backward = [&g, rows = x.shape, single = z.machines == 1, ranks = z.ranks, tokens](Gradients) {
    Tensor given = from_deepep(g, "combine_backward", rows, DType::bf16, Category::temporaries);
    if (single) {  // made whether they are asked for or not
      const Tensor sources = from_deepep(g, "combine_backward.recv_src_idx", {axis::D}, DType::int32, Category::temporaries);
      Shape heads = with_last(tokens, Dim(ranks));
      const Tensor head = from_deepep(g, "combine_backward.send_head", std::move(heads), DType::int32, Category::temporaries);
    }
    return Gradients{std::move(given)};
  };
  g.record(out, "FusedCombineBackward", {&x}, backward);
  keep_handle(out, handle);
  return out;
}

/// Ways to choose so many groups of which so many experts are among the first `local` ones: [groups][experts].
std::vector<std::vector<double>> ways_of_groups(std::int64_t groups, std::int64_t top, std::int64_t size, std::int64_t local) {
  std::vector<std::vector<double>> ways(static_cast<std::size_t>(top) + 1,
                                        std::vector<double>(static_cast<std::size_t>(local) + 1, 0.0));
  ways[0][0] = 1;
  for (std::int64_t group = 0; group < groups; ++group) {
    const auto own = static_cast<std::size_t>(std::clamp<std::int64_t>(local - group * size, 0, size));
    for (std::size_t n = ways.size() - 1; n > 0; --n)
      for (std::size_t of = own; of < ways[n].size(); ++of) ways[n][of] += ways[n - 1][of - own];
  }
  return ways;
}

/// C(n - without, k) / C(n, k)
double share_without(std::int64_t n, std::int64_t without, std::int64_t k) {
  double out = 1;
  for (std::int64_t i = 0; i < k; ++i) out *= std::max(0.0, static_cast<double>(n - without - i)) / static_cast<double>(n - i);
  return out;
}

}  // namespace

FlexSizes flex_sizes(std::int64_t top, const Megatron& m, std::int64_t expert, std::int64_t expert_tensor) {
  const std::int64_t ranks = expert * expert_tensor;
  return {ranks, ceil_div(ranks, kDeepEpPeers), std::max<std::int64_t>(1, m.deepep_sms / 2), top * expert_tensor};
}

double share_with_expert(const FeedForward& f, std::int64_t local) {
  local = std::min(local, f.experts);
  if (f.router_groups <= 1 || f.router_top_groups <= 0) return 1 - share_without(f.experts, local, f.experts_per_token);
  const std::int64_t size = f.experts / f.router_groups, reached = size * f.router_top_groups;
  const auto ways = ways_of_groups(f.router_groups, f.router_top_groups, size, local).back();
  double all = 0, without = 0;
  for (std::size_t own = 0; own < ways.size(); ++own) {
    all += ways[own];
    without += ways[own] * share_without(reached, static_cast<std::int64_t>(own), f.experts_per_token);
  }
  return 1 - without / all;
}

FlexTokens flex_tokens(const FeedForward& f, const Megatron& m, const Layout& l, std::int64_t tokens) {
  if (m.dispatcher != TokenDispatcher::flex) return {};
  const FlexSizes z = flex_sizes(f.experts_per_token, m, l.expert, l.expert_tensor);
  const double imbalance = l.expert > 1 ? std::max(1.0, m.expert_imbalance) : 1.0;
  const auto coming = [&](std::int64_t from, std::int64_t local) {
    const auto all = static_cast<double>(tokens * from);
    return std::max<std::int64_t>(1, std::llround(std::min(all, imbalance * all * share_with_expert(f, local))));
  };
  const std::int64_t own = f.experts / l.expert;
  const std::int64_t neighbours = std::max<std::int64_t>(1, kDeepEpPeers / l.expert_tensor);
  return {coming(z.ranks, own), z.machines > 1 ? coming(z.machines, own * neighbours) : 1};
}

KeptByFlex kept_by_flex(const FeedForward& f, const Megatron& m, const Layout& l, const TokenCounts& n, std::int64_t rows,
                        bool graph) {
  const FlexSizes z = flex_sizes(f.experts_per_token, m, l.expert, l.expert_tensor);
  const std::int64_t tokens = n.b * n.s, local = f.experts / l.expert;
  KeptByFlex out;
  out.always = bytes_of(tokens * z.chosen, DType::fp32) + bytes_of(n.d * z.chosen, DType::int64) +
               bytes_of(n.d * local, DType::boolean) + bytes_of(n.d * local, DType::fp32);
  out.maps = bytes_of(tokens * z.chosen, DType::int64) +
             (m.permute_fusion ? bytes_of(n.d * (2 * local + 1), DType::int32) : bytes_of(rows, DType::int64));
  if (!graph) return out;
  for (const HandlePart& part : handle_parts(z, axis::T)) out.maps += bytes_of(elements(part.shape).value(n), part.dtype);
  return out;
}

/// The frames of MoELayer.forward: the map, what came and what came with it are names until the tokens are back.
Tensor exchange_megatron(Eager& g, const RoutedSizes& s, const ChunkOptions& o, const Tensor& x, Tensor probabilities,
                         const std::function<Tensor(const RoutedRows&)>& experts) {
  const FlexSizes z = flex_sizes(s.top, o.settings, o.expert, o.expert_tensor);
  const Tensor map = g.make("routing_map", {s.tokens, Dim(s.experts)}, DType::boolean);
  Handle handle;
  RoutedRows came;
  {
    const TopK best = best_experts(g, s, z, std::move(probabilities));
    const Tensor weights = to(g, best.values, DType::fp32, "token_probabilities_fp32");
    came = dispatched(g, s, z, x, weights, handle);
  }
  Tensor output;
  {
    const Permuted local = permute_megatron(g, s, {axis::D, s.rows, s.local}, o, came.tokens, multihot(g, s, z, came.weights));
    const Tensor computed = experts(local.rows);
    output = moved_rows(g, computed, {axis::D, Dim(s.hidden)}, {local.map}, DType::bf16, "unpermuted");
  }
  output = combined(g, z, output, handle, x.shape);
  return output;
}

}  // namespace oomplan
