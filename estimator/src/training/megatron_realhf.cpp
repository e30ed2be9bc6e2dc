#include "training/megatron_realhf.hpp"

#include <algorithm>

namespace oomplan {
namespace {

/// In parameters of the whole model, whatever the ranks split.
std::int64_t parameters_of(const Architecture& a, const Layer& layer) {
  const Mixer& m = layer.mixer;
  const FeedForward& f = layer.feed_forward;
  const std::int64_t projected = (m.heads + 2 * m.kv_heads) * m.head_dim;
  const std::int64_t attention = projected * a.hidden + (m.q_bias ? projected : 0) + m.heads * m.head_dim * a.hidden;
  const std::int64_t norms = 2 * a.hidden + (m.qk_norm == QkNorm::head ? 2 * m.head_dim : 0);
  return attention + norms + 3 * f.width * a.hidden;
}

/// partition_balanced: cells are filled stage by stage; of cuts that are equally good the last one counts.
class Balance {
 public:
  Balance(const std::vector<std::int64_t>& weights, std::size_t stages) : n_(weights.size()), stages_(stages), sums_{0} {
    for (const std::int64_t w : weights) sums_.push_back(sums_.back() + w);
    cells_.assign((n_ + 1) * (stages + 1), Cell{});
    for (std::size_t i = 0; i <= n_; ++i) cell(i, 1) = {0, sums_[i], sums_[i], 0};
    for (std::size_t j = 2; j <= stages; ++j)
      for (std::size_t i = j; i <= n_; ++i)
        for (std::size_t x = 1; x < i; ++x) consider(i, j, x);
  }
  std::vector<std::size_t> cuts() const {
    std::vector<std::size_t> out{n_};
    std::size_t at = n_;
    for (std::size_t j = stages_; j > 0; --j) {
      at = cells_[at * (stages_ + 1) + j].cut;
      out.push_back(at);
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  static constexpr std::int64_t kNever = 10'000'000'000;  // int(1e10)
  struct Cell {
    std::int64_t difference = kNever, most = -kNever, least = kNever;
    std::size_t cut = 0;
  };
  Cell& cell(std::size_t i, std::size_t j) { return cells_[i * (stages_ + 1) + j]; }
  void consider(std::size_t i, std::size_t j, std::size_t x) {
    const Cell& before = cell(x, j - 1);
    const std::int64_t part = sums_[i] - sums_[x];
    const std::int64_t difference = std::max({before.difference, before.most - part, part - before.least});
    Cell& here = cell(i, j);
    if (difference > here.difference) return;
    const bool smallest = difference == before.most - part, largest = difference == part - before.least;
    here = {difference, largest && !smallest ? part : before.most, smallest ? part : before.least, x};
  }

  std::size_t n_, stages_;
  std::vector<std::int64_t> sums_;
  std::vector<Cell> cells_;
};

}  // namespace

std::vector<std::int64_t> realhf_stage_layers(const Architecture& a, std::int64_t stages) {
  if (stages <= 1) return {};
  const std::int64_t table = a.vocab * a.hidden;
  std::vector<std::int64_t> weights{table};
  for (const LayerRun& run : a.runs)
    weights.insert(weights.end(), static_cast<std::size_t>(run.count), parameters_of(a, run.layer));
  weights.back() += a.hidden;  // the final norm is the last layer's
  weights.push_back(table);
  if (stages > std::ssize(weights)) return {};
  const std::vector<std::size_t> cuts = Balance(weights, static_cast<std::size_t>(stages)).cuts();
  std::vector<std::int64_t> out;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) out.push_back(static_cast<std::int64_t>(cuts[s + 1] - cuts[s]));
  out.front() -= 1;
  out.back() -= 1;
  return out;
}

}  // namespace oomplan
