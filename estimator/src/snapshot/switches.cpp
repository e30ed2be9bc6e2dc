#include "snapshot/switches.hpp"

#include <algorithm>
#include <cstdint>
#include <map>

namespace oomplan::snapshot {
namespace {

bool has(const std::vector<Event>& trace, Action action) {
  return std::any_of(trace.begin(), trace.end(), [&](const Event& e) { return e.action == action; });
}

/// Addresses that were mapped at some time, in stretches that do not overlap.
class Ranges {
 public:
  void add(Bytes begin, Bytes end) {
    auto at = ends_.upper_bound(begin);
    if (at != ends_.begin() && std::prev(at)->second >= begin) --at;
    while (at != ends_.end() && at->first <= end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = ends_.erase(at);
    }
    ends_[begin] = end;
  }
  bool contain(Bytes address) const {
    const auto at = ends_.upper_bound(address);
    return at != ends_.begin() && address < std::prev(at)->second;
  }

 private:
  std::map<Bytes, Bytes> ends_;  // by begin
};

}  // namespace

SegmentSwitch::SegmentSwitch(const std::vector<Event>& trace, bool otherwise) {
  if (has(trace, Action::segment_map) && has(trace, Action::segment_alloc)) {
    enum class Shows : std::uint8_t { nothing, on, off };
    std::vector<Shows> shown(trace.size(), Shows::nothing);
    Ranges mapped;
    bool takes = false;  // a segment was taken for the allocation that comes next
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const Event& e = trace[i];
      if (e.action == Action::segment_map) mapped.add(e.address, e.address + e.bytes);
      if (e.action == Action::segment_alloc) takes = true;
      if (e.action != Action::alloc) continue;
      if (takes || mapped.contain(e.address)) shown[i] = takes ? Shows::off : Shows::on;
      takes = false;
    }
    std::vector<Shows> next(shown);
    for (std::size_t i = trace.size(); i-- > 1;)
      if (next[i - 1] == Shows::nothing) next[i - 1] = next[i];
    Shows before = Shows::nothing;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      if (shown[i] != Shows::nothing) before = shown[i];
      if (trace[i].action == Action::alloc) shows(i, before == Shows::on && next[i] == Shows::on);
    }
  }
  if (runs_.empty()) runs_.push_back({0, otherwise});
}

void SegmentSwitch::shows(std::size_t event, bool on) {
  if (runs_.empty() || runs_.back().on != on) runs_.push_back({event, on});
  runs_.back().last = event;
}

}  // namespace oomplan::snapshot
