#include "snapshot/read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "snapshot/unpickle.hpp"
#include "units/input_file.hpp"

namespace oomplan::snapshot {
namespace {

constexpr std::size_t kMostBytes = std::size_t{2} << 30;
constexpr Bytes kMostAddress = Bytes{1} << 60;
constexpr Bytes kMostSize = Bytes{1} << 50;
constexpr Bytes kMostSum = Bytes{1} << 61;  // of all sizes of a file: no level can overflow
constexpr std::int64_t kMostDevices = 1024;
constexpr const char* kExpected = "a memory snapshot (torch.cuda.memory._dump_snapshot)";

[[noreturn]] void refuse(const std::string& path, const std::string& where, const std::string& found, const std::string& why) {
  Problem problem;
  problem.place.file = path;
  problem.place.path = where;
  problem.found = found;
  problem.expected = found.empty() ? "" : kExpected;
  problem.why = why;
  throw InputError(problem);
}

/// Turns values into a Snapshot. `row` counts blocks, events and frames: each is a value of its own in a file that PyTorch wrote,
/// so more rows than values means that a list was shared to make a small file large.
class Translator {
 public:
  Translator(const Values& values, const std::string& path) : v_(values), path_(path) {}

  Snapshot run() {
    const Ref root = v_.root();
    if (v_.kind(root) != Kind::dict || (!find(v_, root, "segments") && !find(v_, root, "device_traces")))
      wrong("", fmt::format("{} without segments and device_traces", name(v_.kind(root))));
    for (const Ref row : list(root, "segments")) segment(row);
    std::stable_sort(out_.segments.begin(), out_.segments.end(), [](const Segment& a, const Segment& b) {
      return std::pair(a.device, a.address) < std::pair(b.device, b.address);
    });
    const auto& devices = list(root, "device_traces");
    if (devices.size() > kMostDevices) wrong("device_traces", fmt::format("{} devices", devices.size()));
    for (const Ref device : devices) {
      if (v_.kind(device) != Kind::list && v_.kind(device) != Kind::tuple)
        wrong("device_traces", std::string(name(v_.kind(device))));
      out_.traces.emplace_back();
      for (const Ref row : v_.items(device)) event(row);
    }
    if (const auto settings = find(v_, root, "allocator_settings")) read_settings(*settings);
    return std::move(out_);
  }

 private:
  [[noreturn]] void wrong(const std::string& where, const std::string& found) const { refuse(path_, where, found, ""); }

  void count_row(Ref row, const char* where) {
    if (v_.kind(row) != Kind::dict) wrong(where, std::string(name(v_.kind(row))));
    if (++rows_ > v_.size()) wrong(where, "more rows than values: lists that contain each other");
  }
  const std::vector<Ref>& list(Ref dict, const char* key) const {
    static const std::vector<Ref> kNothing;
    const auto found = find(v_, dict, key);
    if (!found) return kNothing;
    if (v_.kind(*found) != Kind::list && v_.kind(*found) != Kind::tuple) wrong(key, std::string(name(v_.kind(*found))));
    return v_.items(*found);
  }
  std::int64_t number(Ref dict, const char* key, std::int64_t least, std::int64_t most, std::int64_t otherwise) const {
    const auto found = find(v_, dict, key);
    if (!found) return otherwise;
    if (v_.kind(*found) != Kind::integer) wrong(key, std::string(name(v_.kind(*found))));
    const std::int64_t value = v_.integer(*found);
    if (value < least || value > most) wrong(key, std::to_string(value));
    return value;
  }
  Bytes size(Ref dict, const char* key, Bytes otherwise = 0) {
    const Bytes value = number(dict, key, 0, kMostSize, otherwise);
    sum_ += value;
    if (sum_ > kMostSum) wrong(key, "sizes whose sum is no memory");
    return value;
  }
  Bytes address(Ref dict, const char* key, Bytes otherwise = 0) const { return number(dict, key, 0, kMostAddress, otherwise); }
  /// What only tells one thing from another: frames of C++ have lines of 2^64 - 1 in torch 2.10.
  std::int64_t any(Ref dict, const char* key) const {
    if (const auto found = find(v_, dict, key); found && v_.kind(*found) == Kind::wide) return 0;
    return number(dict, key, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), 0);
  }
  std::string_view text(Ref dict, const char* key) const {
    const auto found = find(v_, dict, key);
    if (!found || v_.kind(*found) != Kind::text) return {};
    return v_.text(*found);
  }

  void segment(Ref row) {
    count_row(row, "segments");
    Segment s;
    s.device = static_cast<int>(number(row, "device", 0, kMostDevices - 1, 0));
    s.address = address(row, "address");
    s.bytes = size(row, "total_size");
    s.stream = any(row, "stream");
    s.small = text(row, "segment_type") == "small";
    if (const auto grows = find(v_, row, "is_expandable"))
      s.expandable = v_.kind(*grows) == Kind::boolean && v_.integer(*grows) != 0;
    if (const auto& pool = list(row, "segment_pool_id"); pool.size() == 2) {
      for (const Ref part : pool)
        if (v_.kind(part) != Kind::integer) wrong("segment_pool_id", std::string(name(v_.kind(part))));
      s.pool = {v_.integer(pool[0]), v_.integer(pool[1])};
    }
    Bytes at = s.address;  // torch 2.0 writes no address of a block
    for (const Ref each : list(row, "blocks")) {
      s.blocks.push_back(block(each, at));
      at += s.blocks.back().size;
      if (s.blocks.back().size > s.bytes || at > s.address + s.bytes) break;
    }
    if (at != s.address + s.bytes)
      wrong("blocks", fmt::format("{} bytes of blocks in a segment of {} bytes", at - s.address, s.bytes));
    out_.segments.push_back(std::move(s));
  }

  Block block(Ref row, Bytes at) {
    count_row(row, "blocks");
    Block b;
    b.address = address(row, "address", at);
    if (b.address != at) wrong("blocks", fmt::format("a block at {} where the one before ends at {}", b.address, at));
    b.size = size(row, "size");
    b.requested = size(row, "requested_size", b.size);
    const auto state = text(row, "state");
    b.state = state == "active_allocated"                                         ? BlockState::active
              : state == "active_pending_free" || state == "active_awaiting_free" ? BlockState::pending
                                                                                  : BlockState::inactive;
    if (find(v_, row, "frames")) {
      b.stack = stack(row);
    } else if (const auto& history = list(row, "history"); !history.empty()) {  // torch 2.0
      count_row(history.front(), "history");
      b.stack = stack(history.front());
    }
    return b;
  }

  void event(Ref row) {
    count_row(row, "device_traces");
    Event e;
    const auto action = text(row, "action");
    for (int i = 0; i < kActions; ++i)
      if (name(static_cast<Action>(i)) == action) e.action = static_cast<Action>(i);
    e.address = address(row, e.action == Action::oom ? "device_free" : "addr");
    e.bytes = size(row, "size");
    e.stream = any(row, "stream");
    e.time = any(row, "time_us");
    e.stack = stack(row);
    out_.traces.back().push_back(e);
  }

  /// Stacks and frames are shared in a pickle: each is read once.
  StackId stack(Ref row) {
    const auto found = find(v_, row, "frames");
    if (!found || v_.kind(*found) != Kind::list || v_.items(*found).empty()) return 0;
    const auto [known, is_new] = stacks_.try_emplace(*found, static_cast<StackId>(out_.stacks.size()));
    if (!is_new) return known->second;
    std::vector<std::uint32_t> frames;
    for (const Ref each : v_.items(*found)) frames.push_back(frame(each));
    out_.stacks.push_back(std::move(frames));
    return known->second;
  }
  std::uint32_t frame(Ref row) {
    const auto [known, is_new] = frames_.try_emplace(row, static_cast<std::uint32_t>(out_.frames.size()));
    if (is_new) {
      if (v_.kind(row) != Kind::dict) wrong("frames", std::string(name(v_.kind(row))));
      out_.frames.push_back({std::string(text(row, "filename")), std::string(text(row, "name")), any(row, "line")});
    }
    return known->second;
  }

  void read_settings(Ref dict) {
    if (v_.kind(dict) != Kind::dict) wrong("allocator_settings", std::string(name(v_.kind(dict))));
    const auto& items = v_.items(dict);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (v_.kind(items[i]) == Kind::text) out_.settings.emplace_back(v_.text(items[i]), plain(items[i + 1], true));
  }
  /// One level of a dict (roundup_power2_divisions) is written out, without the divisions that are 0.
  std::string plain(Ref ref, bool open) const {
    switch (v_.kind(ref)) {
      case Kind::boolean:
        return v_.integer(ref) != 0 ? "True" : "False";
      case Kind::integer:
        return std::to_string(v_.integer(ref));
      case Kind::real:
        return fmt::format("{:g}", v_.real(ref));
      case Kind::text:
        return std::string(v_.text(ref));
      case Kind::dict: {
        std::string out;
        const auto& items = v_.items(ref);
        for (std::size_t i = 0; open && i + 1 < items.size() && i < 200; i += 2)
          if (const std::string value = plain(items[i + 1], false); value != "0")
            out += (out.empty() ? "" : ",") + plain(items[i], false) + ":" + value;
        return out;
      }
      default:
        return "";
    }
  }

  const Values& v_;
  const std::string& path_;
  Snapshot out_;
  std::size_t rows_ = 0;
  Bytes sum_ = 0;
  std::unordered_map<Ref, StackId> stacks_;
  std::unordered_map<Ref, std::uint32_t> frames_;
};

}  // namespace

std::string snapshot_bytes(const std::string& path) {
  try {
    return InputFile(path).all(kMostBytes, "2 GiB");
  } catch (const FileRefused& refused) {
    refuse(path, "", refused.found, refused.why);
  }
}

Snapshot parse_snapshot(std::string bytes, const std::string& path) {
  if (bytes.empty()) refuse(path, "", "an empty file", "");
  if (bytes.size() > kMostBytes) refuse(path, "", "more than 2 GiB", "");
  const bool json = bytes.find_first_not_of(" \t\r\n") != std::string::npos && bytes[bytes.find_first_not_of(" \t\r\n")] == '{';
  const Values values = json ? values_of_json(std::move(bytes), path) : unpickle(std::move(bytes), path);
  return Translator(values, path).run();
}

}  // namespace oomplan::snapshot
