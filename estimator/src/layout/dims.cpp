#include "layout/dims.hpp"

#include <initializer_list>

#include <fmt/format.h>

namespace oomplan {
namespace {

/// The product of degrees; anything above kMostDegree counts as kMostDegree + 1, so that nothing overflows.
std::int64_t product(std::initializer_list<std::int64_t> degrees) {
  std::int64_t out = 1;
  for (const std::int64_t degree : degrees) {
    out *= degree;
    if (out > kMostDegree) return kMostDegree + 1;
  }
  return out;
}

std::string gpus(std::int64_t n) { return n > kMostDegree ? fmt::format("more than {}", kMostDegree) : fmt::to_string(n); }

std::int64_t world_of(const Dims& d) { return product({d.of('d'), d.of('t'), d.of('p'), d.of('c')}); }

Layout layout_of(const Dims& d) {
  Layout out;
  out.data = d.of('d');
  out.tensor = d.of('t');
  out.pipeline = d.of('p');
  out.context = d.of('c');
  return out;
}

Folded refused(std::string why) { return {{}, 1, std::move(why)}; }
Folded too_large() { return refused(fmt::format("it takes more than {} GPUs", kMostDegree)); }

/// The data degree of the experts: without experts over GPUs it is d, as in the frameworks.
std::int64_t expert_data(const Layout& l) {
  return l.expert > 1 ? l.world() / (l.pipeline * l.expert_tensor * l.expert) : l.data;
}

}  // namespace

std::string take_degree(std::string_view& s, char letter, std::int64_t& out) {
  std::size_t n = 0;
  while (n < s.size() && s[n] >= '0' && s[n] <= '9') ++n;
  if (n == 0) return fmt::format("no number stands behind '{}'", letter);
  if (s[0] == '0')
    return n == 1 ? fmt::format("a degree is at least 1: '{}0'", letter) : fmt::format("leading zero behind '{}'", letter);
  if (n > 6) return fmt::format("the degree of '{}' is above {}", letter, kMostDegree);
  out = 0;
  for (std::size_t i = 0; i < n; ++i) out = out * 10 + (s[i] - '0');
  if (out > kMostDegree) return fmt::format("the degree of '{}' is above {}", letter, kMostDegree);
  s.remove_prefix(n);
  return {};
}

std::string_view meaning_of_letter(char letter) {
  switch (letter) {
    case 'm':
      return "'m' was the tensor degree before AReaL 0.3.1: write t";
    case 's':
      return "there is no letter for sequence parallelism: it follows t, and Ulysses is c";
    case 'r':
      return "replicas of a server are d";
    default:
      return {};
  }
}

Folded fold(const Dims& d, bool expert_tensor_is_tensor) {
  const std::int64_t world = world_of(d);
  if (world > kMostDegree) return too_large();
  Folded out{layout_of(d), 1, {}};
  out.layout.expert = d.of('e');
  out.layout.expert_tensor = expert_tensor_is_tensor ? out.layout.tensor : 1;
  const std::int64_t ranks = product({out.layout.pipeline, out.layout.expert_tensor, out.layout.expert});
  if (out.layout.expert > 1 && world % ranks != 0)
    return refused(
        fmt::format("{} GPUs are not a multiple of p*{}e = {}", world, expert_tensor_is_tensor ? "t*" : "", gpus(ranks)));
  out.expert_data = expert_data(out.layout);
  return out;
}

Folded fold(const Dims& attention, const Dims& experts, ExpertDefault missing) {
  const std::int64_t world = world_of(attention);
  if (world > kMostDegree) return too_large();
  Folded out{layout_of(attention), 1, {}};
  Layout& l = out.layout;
  l.hybrid = true;
  l.expert = experts.of('e');
  l.expert_tensor = experts.of('t', missing == ExpertDefault::attention_tensor ? l.tensor : 1);
  if (experts.of('p', l.pipeline) != l.pipeline)
    return refused(fmt::format("the pipeline degrees differ: p{} behind attn:, p{} behind ffn:", l.pipeline, experts.of('p')));
  const std::int64_t ranks = product({l.expert, l.expert_tensor, l.pipeline});
  const bool derived = missing == ExpertDefault::derived && !experts.degree.contains('d');
  if (derived && world % ranks != 0)
    return refused(fmt::format("the expert data degree cannot be derived: {} GPUs of attn: are not a multiple of e*t*p = {}",
                               world, gpus(ranks)));
  const std::int64_t filled = derived ? world : product({experts.of('d', l.data), ranks});
  if (filled != world) return refused(fmt::format("attn: takes {} GPUs, ffn: {}", world, gpus(filled)));
  out.expert_data = expert_data(l);
  return out;
}

}  // namespace oomplan
