#include "snapshot/write.hpp"

#include <array>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace oomplan::snapshot {
namespace {

class Pickle {
 public:
  Pickle() : out_("\x80\x02") {}

  void open_list() { out_ += "]("; }
  void close_list() { out_ += 'e'; }
  void open_dict() { out_ += "}("; }
  void close_dict() { out_ += 'u'; }
  void boolean(bool value) { out_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      little(value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      little(value, 4);
    } else {
      out_ += "\x8a\x08";
      little(value, 8);
    }
  }
  void pair(std::int64_t a, std::int64_t b) {
    integer(a);
    integer(b);
    out_ += '\x86';
  }
  void text(std::string_view value) {
    if (const auto known = texts_.find(value); known != texts_.end()) return recall(known->second);
    out_ += 'X';
    little(static_cast<std::int64_t>(value.size()), 4);
    out_ += value;
    texts_.emplace(value, remember());
  }
  void entry(std::string_view key, std::int64_t value) {
    text(key);
    integer(value);
  }
  void entry(std::string_view key, std::string_view value) {
    text(key);
    text(value);
  }
  /// The top of the stack, to be referred to later.
  std::uint32_t remember() {
    out_ += 'r';
    little(memo_, 4);
    return memo_++;
  }
  void recall(std::uint32_t index) {
    out_ += 'j';
    little(index, 4);
  }
  std::string take() {
    out_ += '.';
    return std::move(out_);
  }

 private:
  void little(std::int64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) out_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 255);
  }
  std::string out_;
  std::map<std::string, std::uint32_t, std::less<>> texts_;
  std::uint32_t memo_ = 0;
};

class Writer {
 public:
  explicit Writer(const Snapshot& snapshot) : s_(snapshot), stacks_(snapshot.stacks.size()), frames_(snapshot.frames.size()) {}

  std::string run() {
    p_.open_dict();
    p_.text("segments");
    p_.open_list();
    for (const auto& each : s_.segments) segment(each);
    p_.close_list();
    p_.text("device_traces");
    p_.open_list();
    for (const auto& trace : s_.traces) {
      p_.open_list();
      for (const auto& each : trace) event(each);
      p_.close_list();
    }
    p_.close_list();
    p_.text("allocator_settings");
    p_.open_dict();
    for (const auto& [key, value] : s_.settings) p_.entry(key, std::string_view(value));
    p_.close_dict();
    p_.text("external_annotations");
    p_.open_list();
    p_.close_list();
    p_.close_dict();
    return p_.take();
  }

 private:
  void segment(const Segment& segment) {
    std::array<Bytes, 3> sums{};  // allocated, active, requested
    for (const auto& b : segment.blocks) {
      if (b.state == BlockState::inactive) continue;
      if (b.state == BlockState::active) sums[0] += b.size;
      sums[1] += b.size;
      sums[2] += b.requested;
    }
    p_.open_dict();
    p_.entry("device", segment.device);
    p_.entry("address", segment.address);
    p_.entry("total_size", segment.bytes);
    p_.entry("allocated_size", sums[0]);
    p_.entry("active_size", sums[1]);
    p_.entry("requested_size", sums[2]);
    p_.entry("stream", segment.stream);
    p_.entry("segment_type", segment.small ? "small" : "large");
    p_.text("segment_pool_id");
    p_.pair(segment.pool.first, segment.pool.second);
    p_.text("is_expandable");
    p_.boolean(segment.expandable);
    stack(0);
    p_.text("blocks");
    p_.open_list();
    for (const auto& b : segment.blocks) block(b);
    p_.close_list();
    p_.close_dict();
  }

  void block(const Block& block) {
    p_.open_dict();
    p_.entry("address", block.address);
    p_.entry("size", block.size);
    p_.entry("requested_size", block.requested);
    p_.entry("state", block.state == BlockState::active    ? "active_allocated"
                      : block.state == BlockState::pending ? "active_pending_free"
                                                           : "inactive");
    stack(block.stack);
    p_.close_dict();
  }

  void event(const Event& event) {
    p_.open_dict();
    p_.entry("action", name(event.action));
    p_.entry(event.action == Action::oom ? "device_free" : "addr", event.address);
    p_.entry("size", event.bytes);
    p_.entry("stream", event.stream);
    if (event.time != 0) p_.entry("time_us", event.time);
    stack(event.stack);
    p_.close_dict();
  }

  /// The entry "frames".
  void stack(StackId id) {
    p_.text("frames");
    if (stacks_[id]) return p_.recall(*stacks_[id]);
    p_.open_list();
    for (const std::uint32_t i : s_.stacks[id]) frame(i);
    p_.close_list();
    stacks_[id] = p_.remember();
  }
  void frame(std::uint32_t i) {
    if (frames_[i]) return p_.recall(*frames_[i]);
    p_.open_dict();
    p_.entry("name", std::string_view(s_.frames[i].function));
    p_.entry("filename", std::string_view(s_.frames[i].file));
    p_.entry("line", s_.frames[i].line);
    p_.close_dict();
    frames_[i] = p_.remember();
  }

  const Snapshot& s_;
  Pickle p_;
  std::vector<std::optional<std::uint32_t>> stacks_, frames_;
};

}  // namespace

std::string to_pickle(const Snapshot& snapshot) { return Writer(snapshot).run(); }

}  // namespace oomplan::snapshot
