#include "snapshot/beside.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "snapshot/recorded.hpp"
#include "snapshot/start.hpp"
#include "snapshot/walk.hpp"
#include "units/enums.hpp"

namespace oomplan::snapshot {
namespace {

/// Blocks of one size on one side.
struct Group {
  std::int64_t count = 0;
  std::map<const Frame*, std::int64_t> by_frame;
};
using Groups = std::map<Bytes, Group>;

/// The highest moment of a phase of a predicted run.
struct PhaseLevel {
  std::string phase;
  Peak peak;
  Groups groups;
};

/// The size that a row is compared by.
Bytes size_of(const LiveRow& row) { return row.requested > 0 ? rounded_request(row.requested) : row.bytes; }

Groups groups_of(const Snapshot& snapshot, const std::vector<LiveRow>& rows) {
  Groups out;
  for (const auto& row : rows) {
    Group& group = out[size_of(row)];
    group.count += row.count;
    group.by_frame[row.before ? nullptr : telling_frame(snapshot, row.stack)] += row.count;
  }
  return out;
}

/// The phase in which an event of a predicted run lies: the file of its innermost frame.
const std::string& phase_of(const Snapshot& snapshot, const Event& event) {
  return snapshot.frames[snapshot.stacks[event.stack].front()].file;
}

/// Of every phase that allocates, in their order.
std::vector<PhaseLevel> levels_of(const Snapshot& snapshot) {
  const auto& trace = snapshot.traces[0];
  const Start start = start_of(snapshot, 0);
  const Comparison replayed = play_again(snapshot, 0, start);
  std::vector<PhaseLevel> out;
  std::map<std::string, std::size_t> known;
  Walk walk(snapshot, start, replayed, 0);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    walk.play(i);
    if (trace[i].action != Action::alloc || snapshot.stacks[trace[i].stack].empty()) continue;
    const auto [at, is_new] = known.try_emplace(phase_of(snapshot, trace[i]), out.size());
    if (is_new) out.push_back({at->first, {}, {}});
    Peak& peak = out[at->second].peak;
    if (walk.allocated() > peak.allocated) peak = {walk.allocated(), walk.reserved(), static_cast<std::int64_t>(i)};
  }
  std::map<std::int64_t, PhaseLevel*> by_event;
  for (auto& level : out) by_event[level.peak.event] = &level;
  Walk again(snapshot, start, replayed, 0);
  for (std::size_t i = 0; i < trace.size(); ++i) {
    again.play(i);
    const auto found = by_event.find(static_cast<std::int64_t>(i));
    if (found != by_event.end()) found->second->groups = groups_of(snapshot, rows_of(again.live()));
  }
  return out;
}

/// The frame that most blocks have, named ones first.
const Frame* most_frequent(const Group& group) {
  const auto most = std::max_element(group.by_frame.begin(), group.by_frame.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first != nullptr, a.second) < std::pair(b.first != nullptr, b.second);
  });
  return most == group.by_frame.end() ? nullptr : most->first;
}

void name_tensors(SizeRow& row, const Group& group) {
  std::map<std::string, std::int64_t> names;  // a tensor has one frame a layer
  for (const auto& [frame, count] : group.by_frame)
    if (frame != nullptr) names[frame->function] += count;
  const auto most =
      std::max_element(names.begin(), names.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == names.end()) return;
  row.tensor = most->first;
  row.more_tensors = std::ssize(names) - 1;
}

Bytes left_over(const Groups& a, const Groups& b) {
  Bytes out = 0;
  for (const auto& [bytes, group] : a) {
    const auto other = b.find(bytes);
    out += bytes * std::max<std::int64_t>(0, group.count - (other == b.end() ? 0 : other->second.count));
  }
  return out;
}

std::vector<SizeRow> rows_of(const Groups& predicted, const Groups& recorded) {
  std::map<Bytes, SizeRow> rows;
  for (const auto& [bytes, group] : predicted) {
    SizeRow& row = rows[bytes];
    row.predicted = group.count;
    name_tensors(row, group);
  }
  for (const auto& [bytes, group] : recorded) {
    SizeRow& row = rows[bytes];
    row.recorded = group.count;
    row.place = most_frequent(group);
    row.more_places = std::ssize(group.by_frame) - 1;
  }
  std::vector<SizeRow> out;
  for (auto& [bytes, row] : rows) {
    row.bytes = bytes;
    out.push_back(std::move(row));
  }
  std::stable_sort(out.begin(), out.end(), [](const SizeRow& a, const SizeRow& b) {
    return std::pair(a.left_over(), a.alike()) > std::pair(b.left_over(), b.alike());
  });
  return out;
}

[[noreturn]] void refuse_phase(std::string_view phase, const std::set<std::string>& known) {
  const std::vector<std::string> words(known.begin(), known.end());
  throw InputError(Problem{{"", 0, 0, "--phase"}, fmt::format("'{}'", phase), list_of(words), nearest(phase, words), ""});
}

/// A predicted moment beside the record.
struct Candidate {
  std::string ranks;
  PhaseLevel level;
  Bytes alike = 0, left = 0;
};

/// Phases in which as much is alike as in the best one, to a hundredth of the record, differ by what is left over.
Candidate most_like(const Groups& theirs, const std::vector<PredictedRun>& runs, std::string_view phase) {
  const Bytes whole = left_over(theirs, {});
  std::vector<Candidate> all;
  std::set<std::string> phases;
  Bytes most = 0;
  for (const auto& run : runs)
    for (auto& level : levels_of(run.snapshot)) {
      phases.insert(level.phase);
      if (!phase.empty() && level.phase != phase) continue;
      const Bytes theirs_left = left_over(theirs, level.groups);
      const Bytes left = left_over(level.groups, theirs) + theirs_left;
      most = std::max(most, whole - theirs_left);
      all.push_back({run.ranks, std::move(level), whole - theirs_left, left});
    }
  if (all.empty()) refuse_phase(phase, phases);
  std::erase_if(all, [&](const Candidate& c) { return c.alike < most - whole / 100; });
  return std::move(*std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.left < b.left; }));
}

}  // namespace

std::optional<Beside> beside(const Snapshot& recorded, int device, const std::vector<PredictedRun>& runs,
                             std::string_view phase) {
  const DeviceHistory history = history_of(recorded, device);
  if (history.live.empty()) return std::nullopt;
  const Groups theirs = groups_of(recorded, history.live);
  const Candidate ours = most_like(theirs, runs, phase);
  Beside out;
  out.ranks = ours.ranks;
  out.phase = ours.level.phase;
  out.predicted = ours.level.peak;
  out.device = device;
  out.whole_history = history.events > 0;
  out.recorded = out.whole_history ? history.allocated_peak : Peak{history.now.allocated, history.now.reserved, -1};
  out.predicted_alone = left_over(ours.level.groups, theirs);
  out.recorded_alone = left_over(theirs, ours.level.groups);
  out.alike = ours.alike;
  out.rows = rows_of(ours.level.groups, theirs);
  return out;
}

}  // namespace oomplan::snapshot
