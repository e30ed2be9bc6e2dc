#include "training/megatron_shares.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace oomplan {
namespace {

std::int64_t up_to(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// _ParamAndGradBuffer: parameters in reverse order, each from a multiple of 64 on, buckets up to a multiple of lcm(ranks, 128).
class Buffer {
 public:
  Buffer(std::vector<MegatronParts>& of_ranks, std::int64_t bucket)
      : of_ranks_(of_ranks), unit_(std::lcm(std::ssize(of_ranks), std::int64_t{128})), enough_(bucket) {}
  void add(const MegatronTensor& t) {
    if (t.own_bucket) close();
    end_ = up_to(end_, kParameter);
    inside_.push_back({end_, t});
    end_ += t.elements;
    if (t.own_bucket || (enough_ > 0 && end_ >= enough_)) close();
  }
  /// The bucket's parts go to the ranks.
  void close() {
    if (inside_.empty()) return;
    const std::int64_t part = up_to(end_, unit_) / std::ssize(of_ranks_);
    for (const auto& [start, t] : inside_)
      for (std::int64_t at = start; at < start + t.elements;) {
        const std::int64_t rank = at / part, next = std::min(start + t.elements, (rank + 1) * part);
        of_ranks_[static_cast<std::size_t>(rank)].push_back({next - at, t.decays});
        at = next;
      }
    inside_.clear();
    end_ = 0;
  }

 private:
  static constexpr std::int64_t kParameter = 64;
  struct Placed {
    std::int64_t start = 0;
    MegatronTensor tensor;
  };
  std::vector<MegatronParts>& of_ranks_;
  std::vector<Placed> inside_;
  std::int64_t unit_, enough_, end_ = 0;
};

std::int64_t sum_of(const MegatronParts& parts) {
  std::int64_t out = 0;
  for (const MegatronPart& p : parts) out += p.elements;
  return out;
}

const MegatronParts& fullest(const std::vector<MegatronParts>& of_ranks) {
  return *std::max_element(of_ranks.begin(), of_ranks.end(), [](const auto& a, const auto& b) { return sum_of(a) < sum_of(b); });
}

/// Numbers; parameters that decay are a group, which goes first.
std::int64_t held_by_a_stateless_step(const MegatronParts& parts, bool adds_decay) {
  std::int64_t most = 0, before = 0;
  for (const bool decays : {true, false})
    for (const MegatronPart& p : parts) {
      if (p.decays != decays) continue;
      most = std::max(most, before + (adds_decay && decays ? 3 : 2) * p.elements);
      before = p.elements;
    }
  return most;
}

}  // namespace

std::vector<MegatronParts> parts_of_ranks(const std::vector<std::vector<MegatronTensor>>& chunks,
                                          const std::vector<std::int64_t>& buckets, std::int64_t ranks) {
  std::vector<MegatronParts> out(static_cast<std::size_t>(ranks));
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    for (const bool stored : {true, false}) {  // parameters in 8 bits have a buffer of their own
      Buffer buffer(out, buckets[c]);
      for (auto t = chunks[c].rbegin(); t != chunks[c].rend(); ++t)
        if (t->stored_in_8_bits == stored) buffer.add(*t);
      buffer.close();
    }
  }
  return out;
}

std::vector<std::int64_t> bucket_sizes(std::size_t chunks, const Trainer& t, std::int64_t stage) {
  std::vector<std::int64_t> out(chunks, 0);
  if (t.megatron.overlap_grad_reduce && stage == 0)
    out[0] = std::max(std::int64_t{40'000'000}, std::int64_t{1'000'000} * t.layout.data);
  return out;
}

std::vector<MegatronPiece> fullest_pieces(const MegatronParameters& n, const std::vector<std::int64_t>& buckets,
                                          std::int64_t dense_ranks, std::int64_t expert_ranks) {
  std::vector<MegatronPiece> out;
  for (const auto& [tensors, ranks] : {std::pair{&n.dense_tensors, dense_ranks}, {&n.expert_tensors, expert_ranks}}) {
    const auto of_ranks = parts_of_ranks(*tensors, buckets, ranks);
    for (const MegatronPart& p : fullest(of_ranks)) {
      const auto same = std::find_if(out.begin(), out.end(), [&](const auto& o) { return o.elements == p.elements; });
      if (same == out.end())
        out.push_back({p.elements, 1});
      else
        ++same->count;
    }
  }
  return out;
}

Bytes held_by_stateless_steps(const MegatronParameters& n, const std::vector<std::int64_t>& buckets, std::int64_t dense_ranks,
                              std::int64_t expert_ranks, bool adds_decay) {
  std::int64_t most = 0;
  for (const auto& [tensors, ranks] : {std::pair{&n.dense_tensors, dense_ranks}, {&n.expert_tensors, expert_ranks}})
    most = std::max(most, held_by_a_stateless_step(fullest(parts_of_ranks(*tensors, buckets, ranks)), adds_decay));
  return bytes_of(most, DType::fp32);
}

}  // namespace oomplan
