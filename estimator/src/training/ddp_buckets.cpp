#include "training/ddp_buckets.hpp"

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

}  // namespace

std::vector<Bytes> rebuilt_buckets(const TrainPlan& plan) {
  // compute_bucket_assignment_by_size: a bucket takes gradients until it has reached its cap
  std::vector<Bytes> out;
  Bytes filled = 0, cap = plan.first_bucket_cap;
  for (const Bytes bytes : arrivals(*plan.train)) {
    filled += bytes;
    if (filled < cap) continue;
    out.push_back(filled);
    filled = 0;
    cap = plan.bucket_cap;
  }
  if (filled > 0) out.push_back(filled);
  return out;
}

}  // namespace oomplan
