#include "snapshot/predicted.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace oomplan::snapshot {
namespace {

constexpr int kPausable = 1;  // the private pool (0, 1)

class Recorder {
 public:
  Recorder(const Program& program, const AllocatorSettings& settings)
      : program_(program), settings_(settings), allocator_(settings) {
    out_.traces.emplace_back();
    out_.settings = {{"PYTORCH_CUDA_ALLOC_CONF", settings.expandable_segments ? "expandable_segments:True" : ""}};
    allocator_.log_segments(&log_);
  }

  /// False: no memory, the end.
  bool play(const oomplan::Event& e) {
    using enum Program::Kind;
    if (e.kind == mark) phase_ = e.site + 1;
    if (e.kind == mark || e.kind == trim) wait_for_all_but(0);
    if (e.kind == trim) allocator_.empty_cache();
    if (e.kind == segments) allocator_.set_expandable_segments(e.bytes != 0);
    if (e.kind == alloc && e.bytes > 0 && e.pool == Pool::torch) return allocate(e);
    if (e.kind == free && e.bytes > 0 && e.pool == Pool::torch) release(e.tensor);
    if (e.pool == Pool::pausable && e.bytes > 0 && !play_pausable(e)) return false;
    flush(0);
    return true;
  }

  Snapshot take() {
    for (const auto& s : allocator_.state()) {
      Segment segment{0, s.address, s.bytes, s.stream, s.small, s.expandable, {0, s.pool}, {}};
      Bytes at = s.address;
      for (const auto& b : s.blocks) {
        const auto stack = stacks_at_.find(at);
        const bool active = b.state == BlockState::active && stack != stacks_at_.end();
        segment.blocks.push_back({at, b.size, b.requested, b.state, active ? stack->second : 0});
        at += b.size;
      }
      out_.segments.push_back(std::move(segment));
    }
    put(Action::snapshot, 0, allocator_.counters().allocated, 0, 0);
    return std::move(out_);
  }

 private:
  struct Tensor {
    CachingAllocator::Block* block = nullptr;
    Bytes bytes = 0;
    int stream = 0;
    StackId stack = 0;
    bool waits = false;
  };
  /// Of a tensor that can be unmapped: which one, whatever its life.
  using Identity = std::tuple<std::uint32_t, std::int64_t, std::int64_t>;

  void put(Action action, Bytes address, Bytes bytes, int stream, StackId stack) {
    out_.traces[0].push_back({action, address, bytes, stream, 0, stack});
  }
  /// What the driver was asked for stands before the request that asked.
  void flush(StackId stack) {
    for (const auto& s : log_)
      put(static_cast<Action>(static_cast<int>(s.action) + static_cast<int>(Action::segment_alloc)), s.address, s.bytes, s.stream,
          stack);
    log_.clear();
  }

  bool allocate(const oomplan::Event& e) {
    const Site& site = program_.sites[e.site];
    if (site.in_flight > 0) wait_for_all_but(site.in_flight);
    CachingAllocator::Block* block = placed(e, site.stream, 0);
    note_completed();  // a retry waits for all
    if (block != nullptr) tensors_[e.tensor] = {block, e.bytes, site.stream, stack_of(e), site.in_flight > 0};
    return block != nullptr;
  }
  /// nullptr: no memory.
  CachingAllocator::Block* placed(const oomplan::Event& e, int stream, int pool) {
    const StackId stack = stack_of(e);
    CachingAllocator::Block* block = allocator_.allocate(e.bytes, stream, pool);
    flush(stack);
    if (block == nullptr) {
      const Bytes left = settings_.device_limit - allocator_.counters().reserved - allocator_.outside();
      put(Action::oom, std::max<Bytes>(0, left), allocator_.rounded(e.bytes), stream, stack);
      return nullptr;
    }
    put(Action::alloc, CachingAllocator::address(block), e.bytes, stream, stack);
    stacks_at_[CachingAllocator::address(block)] = stack;
    return block;
  }
  void release(std::int64_t tensor) {
    const auto found = tensors_.find(tensor);
    const Tensor& t = found->second;
    const Bytes address = CachingAllocator::address(t.block);
    put(Action::free_requested, address, t.bytes, t.stream, t.stack);
    if (t.waits) {
      allocator_.free_later(t.block);
      waiting_.push_back({Action::free_completed, address, t.bytes, t.stream, 0, t.stack});
    } else {
      allocator_.free(t.block);
      put(Action::free_completed, address, t.bytes, t.stream, t.stack);
    }
    stacks_at_.erase(address);
    tensors_.erase(found);
  }
  void wait_for_all_but(std::size_t keep) {
    allocator_.complete_but(keep);
    note_completed();
  }
  /// The allocator completes the oldest first.
  void note_completed() {
    for (; waiting_.size() > allocator_.pending(); waiting_.pop_front()) out_.traces[0].push_back(waiting_.front());
  }

  /// PyTorch sees a tensor of such a pool once. That its pages go and come back happens below it: the device has room meanwhile.
  bool play_pausable(const oomplan::Event& e) {
    const Bytes sign = e.kind == Program::Kind::free || e.kind == Program::Kind::pause ? 1 : -1;
    const bool is_new = e.kind == Program::Kind::alloc && pausable_.emplace(e.site, e.a, e.b).second;
    if (is_new) return placed(e, program_.sites[e.site].stream, kPausable) != nullptr;
    allocator_.set_outside(allocator_.outside() - sign * e.bytes);
    return true;
  }

  StackId stack_of(const oomplan::Event& e) {
    const auto [known, is_new] = stacks_.try_emplace({phase_, e.site, e.a}, static_cast<StackId>(out_.stacks.size()));
    if (!is_new) return known->second;
    const Site& site = program_.sites[e.site];
    const std::string phase = phase_ == 0 ? "start" : program_.labels[phase_ - 1];
    const std::string shape = site.shape.empty() ? "" : fmt::format(" {}[{}]", name(site.dtype), fmt::join(site.shape, ","));
    out_.frames.push_back({phase, site.name + shape, e.a});
    out_.frames.push_back({phase, fmt::format("{}, {}", name(site.category), name(site.holder)), 0});
    const auto last = static_cast<std::uint32_t>(out_.frames.size());
    out_.stacks.push_back({last - 2, last - 1});
    return known->second;
  }

  const Program& program_;
  const AllocatorSettings& settings_;
  CachingAllocator allocator_;
  Snapshot out_;
  std::vector<SegmentEvent> log_;
  std::uint32_t phase_ = 0;  // label number + 1
  std::unordered_map<std::int64_t, Tensor> tensors_;
  std::deque<Event> waiting_;  // freed, and used by another stream
  std::unordered_map<Bytes, StackId> stacks_at_;
  std::set<Identity> pausable_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::int64_t>, StackId> stacks_;
};

}  // namespace

Snapshot predicted_snapshot(const Program& program, const AllocatorSettings& settings) {
  Recorder recorder(program, settings);
  expand(program, [&](const oomplan::Event& e) { return recorder.play(e); });
  return recorder.take();
}

}  // namespace oomplan::snapshot
