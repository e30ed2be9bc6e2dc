#include "training/ddp_buckets.hpp"

#include <algorithm>

namespace oomplan {
namespace {

/// Bytes of the gradients of a step in the order in which they come.
std::vector<Bytes> arrivals(const Tape& tape) {
  std::vector<Bytes> out;
  for (std::size_t s = tape.stations.size(); s-- > 0;) {
    const Station& station = tape.stations[s];
    for (std::int64_t at = station.count; at-- > 0;) {
      const Unit unit = at == 0 ? Unit::first : at == station.count - 1 ? Unit::last : Unit::inner;
      for (const LeftGradient& g : station.segment(true, unit).gradients) out.push_back(g.bytes);
    }
  }
  return out;
}

/// compute_bucket_assignment_by_size: a bucket takes gradients until it has reached its cap.
std::vector<Bytes> cut(const std::vector<Bytes>& gradients, const TrainPlan& plan) {
  std::vector<Bytes> out;
  Bytes filled = 0, cap = plan.first_bucket_cap;
  for (const Bytes bytes : gradients) {
    filled += bytes;
    if (filled < cap) continue;
    out.push_back(filled);
    filled = 0;
    cap = plan.bucket_cap;
  }
  if (filled > 0) out.push_back(filled);
  return out;
}

/// Bytes of the trained parameters in the order of the model.
std::vector<Bytes> registered(const TrainPlan& plan) {
  const Tape& tape = *plan.train;
  std::vector<Bytes> out;
  for (std::size_t s = 0; s < tape.stations.size(); ++s)
    for (std::int64_t at = 0; at < tape.stations[s].count; ++at)
      for (std::size_t i = 0; i < tape.leaves.size(); ++i)
        if (tape.leaves[i].station == s && tape.leaves[i].trainable)
          out.push_back(bytes_of(tape.leaves[i].elements(), plan.storage[i]));
  return out;
}

}  // namespace

std::vector<Bytes> rebuilt_buckets(const TrainPlan& plan) { return cut(arrivals(*plan.train), plan); }

std::vector<Bytes> constructed_buckets(const TrainPlan& plan) {
  std::vector<Bytes> out = cut(registered(plan), plan);
  std::reverse(out.begin(), out.end());  // the reducer begins with the last one
  return out;
}

}  // namespace oomplan
