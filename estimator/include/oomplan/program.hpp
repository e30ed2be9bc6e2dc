// A memory program: what one rank allocates and frees, in order. Everything that oomplan says is read from one.
//
// An engine describes its execution once, as a function over a recorder (`template <class R> void record(R&, const Plan&)`).
// Two recorders exist. PeakRecorder folds the description into a Span of scalars and stores nothing: search uses it.
// ProgramWriter stores it as data, a Program, which the readers below expand: trace, ledger, live set, allocator replay.
//
// Sizes are bytes. A tensor's identity is (site, index a, index b), for example (saved "mlp.gate", layer, micro-batch): a free
// names the same identity as its allocation. An unmatched free is a Defect. Where the real lifetime is not deterministic
// (record_stream, run-ahead of the CPU), a description gives the latest legal free; Site::in_flight says where the CPU waits.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/units/bytes.hpp>
#include <oomplan/units/dtype.hpp>
#include <oomplan/units/errors.hpp>

namespace oomplan OOMPLAN_PUBLIC {

/// What a tensor is for. The order is the order of reports.
enum class Category : std::uint8_t {
  weights,
  gradients,
  optimizer,
  activations,
  logits,
  temporaries,
  communication,
  kv_cache,
  buffers,
  workspace,
  graphs,
  context,
  nccl,
  inputs,
  host_copy,
  other
};
inline constexpr int kCategories = 16;
std::string_view name(Category);

/// Who hands out the memory. Only `torch` keeps what is freed (as reserved); `pausable` can be unmapped (cuMem pools,
/// torch_memory_saver); `driver` is context, NCCL and graphs. The last three are host memory.
enum class Pool : std::uint8_t { torch, pausable, driver, pinned, pageable, shared };
inline constexpr int kPools = 6;
std::string_view name(Pool);
constexpr bool on_device(Pool pool) { return pool <= Pool::driver; }

/// Who keeps a tensor alive; printed by explain.
enum class Holder : std::uint8_t { resident, saved_for_backward, local, autograd, caller, communication };
std::string_view name(Holder);

/// A place in a description where tensors come from: one row of a table.
struct Site {
  std::string name;                 ///< "layer.mlp.gate"
  std::vector<std::int64_t> shape;  ///< of one tensor, outermost first; empty when it is not a tensor
  DType dtype = DType::bf16;
  Bytes bytes = 0;
  Category category = Category::other;
  Pool pool = Pool::torch;
  std::uint8_t stream = 0;  ///< of the caching allocator: 0 compute, 1 all-gather, 2 reduce-scatter, ...
  Holder holder = Holder::local;
  /// Another stream uses it (record_stream): a freed block waits until another tensor of such a site is allocated, in front of
  /// which the CPU waits for all but the latest `in_flight` of them, or until a phase ends. 0: free at once. Levels know nothing
  /// of it.
  std::uint8_t in_flight = 0;
  friend bool operator==(const Site&, const Site&) = default;
};

/// The loop index that a repeated body gets. It can be shifted, never compared or converted: a body that depended on the
/// iteration could not be folded by a closed form.
class Index {
 public:
  constexpr Index() : Index(-1, 0, 1) {}
  constexpr explicit Index(std::int64_t constant) : Index(-1, constant, 1) {}
  friend constexpr Index operator+(Index i, std::int64_t n) {
    i.packed_ += n * kOffset;
    return i;
  }
  friend constexpr Index operator-(Index i, std::int64_t n) { return i + -n; }
  friend constexpr bool operator==(const Index&, const Index&) = default;

 private:
  friend class ProgramWriter;
  friend class PeakRecorder;
  friend struct ProgramReader;
  constexpr Index(int depth, std::int64_t offset, int step)
      : packed_(offset * kOffset + (depth & 0xff) * kDepth + (step & 0xff)) {}
  constexpr std::int64_t offset() const { return packed_ >> 16; }
  /// Loop of that nesting depth; -1 constant; -2, -3: formal index a, b of a definition.
  constexpr int depth() const { return static_cast<std::int8_t>(static_cast<std::uint8_t>(packed_ >> 8 & 0xff)); }
  constexpr int step() const { return static_cast<std::int8_t>(static_cast<std::uint8_t>(packed_ & 0xff)); }
  // One number: programs hold millions of them. 48 bits of offset, 8 of depth, 8 of step.
  static constexpr std::int64_t kOffset = 1 << 16, kDepth = 1 << 8;
  std::int64_t packed_;
};

/// The site of an allocation as a description holds it: number in the writer's table, and its size.
struct SiteRef {
  std::uint32_t id = 0;
  Bytes bytes = 0;
  Pool pool = Pool::torch;
};

/// What a stretch of execution does to one process, as scalars. A monoid under `then`; `repeat` is its power.
struct Span {
  Bytes net = 0;          ///< change of the device level, all device pools
  Bytes peak = 0;         ///< highest device level above the start; >= 0
  Bytes cached = 0;       ///< change of the torch pool's level
  Bytes cached_peak = 0;  ///< highest torch level above the start; >= 0
  Bytes tail = 0;         ///< highest torch level since the last trim (since the start if none), above the start
  bool trimmed = false;   ///< a trim (empty_cache) took place
  Bytes host_net = 0, host_peak = 0;
  std::int64_t events = 0;    ///< allocations and frees, expanded
  std::int64_t witness = -1;  ///< ordinal of the event that reached `peak`; -1: the start

  friend bool operator==(const Span&, const Span&) = default;
};
constexpr Span then(const Span& a, const Span& b) {
  Span c;
  c.net = a.net + b.net;
  const bool later = a.net + b.peak > a.peak;
  c.peak = later ? a.net + b.peak : a.peak;
  c.witness = later ? (b.witness < 0 ? a.events - 1 : a.events + b.witness) : a.witness;
  c.cached = a.cached + b.cached;
  c.cached_peak = std::max(a.cached_peak, a.cached + b.cached_peak);
  c.trimmed = a.trimmed || b.trimmed;
  c.tail = b.trimmed ? a.cached + b.tail : std::max(a.tail, a.cached + b.tail);
  c.host_net = a.host_net + b.host_net;
  c.host_peak = std::max(a.host_peak, a.host_net + b.host_peak);
  c.events = a.events + b.events;
  return c;
}
/// `s` n times in a row, closed form. REQUIRES: n >= 0.
constexpr Span repeat(const Span& s, std::int64_t n) {
  if (n <= 0) return {};
  Span c = s;
  const std::int64_t before = n - 1;
  c.net = s.net * n;
  c.cached = s.cached * n;
  c.host_net = s.host_net * n;
  c.events = s.events * n;
  if (s.net > 0) {
    c.peak = s.net * before + s.peak;
    c.witness = s.events * before + s.witness;
  }
  c.cached_peak = s.cached_peak + std::max<Bytes>(0, s.cached) * before;
  c.tail = s.trimmed ? s.cached * before + s.tail : s.tail + std::max<Bytes>(0, s.cached) * before;
  c.host_peak = s.host_peak + std::max<Bytes>(0, s.host_net) * before;
  return c;
}

/// Runs of equal units, seen one at a time with their neighbours; see PeakRecorder::walk.
struct UnitRun {
  int kind = 0;            ///< which of the description's kinds of unit
  std::int64_t count = 0;  ///< >= 1
};
/// Kind of a neighbour that does not exist.
inline constexpr int kNoUnit = -1;

enum class Direction : std::uint8_t { forward, backward };

/// What a stretch does that only allocates and frees torch memory: a Span of four scalars.
struct TorchSpan {
  Bytes net = 0;
  Bytes peak = 0;  ///< above the start; >= 0
  std::int64_t events = 0, witness = -1;
  constexpr Span span() const {
    Span s;
    s.net = s.cached = net;
    s.peak = s.cached_peak = s.tail = peak;
    s.events = events;
    s.witness = witness;
    return s;
  }
};
constexpr TorchSpan then(const TorchSpan& a, const TorchSpan& b) {
  const bool later = a.net + b.peak > a.peak;
  return {a.net + b.net, later ? a.net + b.peak : a.peak, a.events + b.events,
          later ? (b.witness < 0 ? a.events - 1 : a.events + b.witness) : a.witness};
}
constexpr TorchSpan repeat(const TorchSpan& s, std::int64_t n) {
  if (n <= 0) return {};
  const std::int64_t before = s.net > 0 ? n - 1 : 0;
  return {s.net * n, s.net * before + s.peak, s.events * n, before > 0 ? s.events * before + s.witness : s.witness};
}

/// Folds a description into a Span. Stores no events: about 1 ns each, since almost all of them are torch's and are folded as
/// a TorchSpan until something else comes.
class PeakRecorder {
 public:
  static constexpr bool kWrites = false;
  void alloc(const SiteRef& s, Index = {}, Index = {}) { add(s.pool, s.bytes); }
  void free(const SiteRef& s, Index = {}, Index = {}) { add(s.pool, -s.bytes); }
  /// The same of Pool::torch, of which a fold needs the size alone.
  void alloc(Bytes bytes, Index = {}, Index = {}) { add(Pool::torch, bytes); }
  void free(Bytes bytes, Index = {}, Index = {}) { add(Pool::torch, -bytes); }
  /// empty_cache: the caching allocator gives back what is free.
  void trim() {
    settle();
    at_.trimmed = true;
    at_.tail = at_.cached;
  }
  /// Unmaps a whole pool that holds `bytes` now, until resume() maps the same bytes again. REQUIRES: a device pool other than
  /// torch; nothing is allocated in it or freed from it meanwhile (what a sleep discards is freed before).
  void pause(Pool pool, Bytes bytes) { add(pool, -bytes); }
  void resume(Pool pool, Bytes bytes) { add(pool, bytes); }
  void mark(std::string_view) {}
  /// body(Index) n times.
  template <class Body>
  void repeat(std::int64_t n, Body&& body, Direction = Direction::forward, std::int64_t = 0) {
    if (n <= 0) return;
    const TorchSpan before = run_;
    const bool outside = mixed_;
    Span so_far;
    if (outside) so_far = at_;
    run_ = {};
    mixed_ = false;
    body(Index{});
    if (!mixed_) {
      run_ = oomplan::then(before, oomplan::repeat(run_, n));
      mixed_ = outside;
      return;
    }
    const Span once = span();
    at_ = so_far;
    run_ = before;
    mixed_ = outside;
    call(oomplan::repeat(once, n));
  }
  /// Appends a stretch that was folded before.
  void call(const Span& s) {
    settle();
    at_ = oomplan::then(at_, s);
  }
  void call(const TorchSpan& s) {  // then(run_, s), field by field
    if (const Bytes top = run_.net + s.peak; top > run_.peak) {
      run_.peak = top;
      run_.witness = s.witness < 0 ? run_.events - 1 : run_.events + s.witness;
    }
    run_.net += s.net;
    run_.events += s.events;
  }
  Span span() const { return mixed_ ? oomplan::then(at_, run_.span()) : run_.span(); }
  [[gnu::always_inline]] void add(Pool pool, Bytes bytes) {
    if (pool != Pool::torch) return add_apart(pool, bytes);
    run_.net += bytes;
    if (run_.net > run_.peak) {
      run_.peak = run_.net;
      run_.witness = run_.events;
    }
    ++run_.events;
  }

 private:
  void settle() {
    if (mixed_ && run_.events == 0) return;
    at_ = span();
    run_ = {};
    mixed_ = true;
  }
  [[gnu::noinline]] void add_apart(Pool pool, Bytes bytes) {
    settle();
    if (on_device(pool)) {
      at_.net += bytes;
      if (at_.net > at_.peak) {
        at_.peak = at_.net;
        at_.witness = at_.events;
      }
    } else {
      at_.host_net += bytes;
      at_.host_peak = std::max(at_.host_peak, at_.host_net);
    }
    ++at_.events;
  }

  Span at_;             ///< what came before run_; valid when mixed_
  TorchSpan run_;       ///< torch's events since then
  bool mixed_ = false;  ///< not everything so far was an event of torch
};

/// A description as data: sites, and a tree of operations in a flat list.
class Program {
 public:
  enum class Kind : std::uint8_t { alloc, free, loop, end, call, trim, pause, resume, mark, segments };
  struct Op {
    Kind kind = Kind::alloc;
    Pool pool = Pool::torch;  ///< pause, resume
    std::uint32_t site = 0;   ///< alloc, free; call: number of the definition; mark: number of the label
    Index a, b;               ///< identity; of a call: what the formal indices become
    std::int64_t count = 0;   ///< loop: times; pause, resume: bytes; segments: 1 where they are expandable
    friend bool operator==(const Op&, const Op&) = default;
  };
  std::vector<Site> sites;
  std::vector<Op> ops;
  std::vector<std::vector<Op>> definitions;
  std::vector<std::string> labels;
  friend bool operator==(const Program&, const Program&) = default;
};

/// Writes a description down as a Program.
class ProgramWriter {
 public:
  static constexpr bool kWrites = true;
  SiteRef site(Site row);
  void alloc(const SiteRef& s, Index a = {}, Index b = {});
  void free(const SiteRef& s, Index a = {}, Index b = {});
  void trim();
  void pause(Pool pool, Bytes bytes);
  void resume(Pool pool, Bytes bytes);
  /// From here on the allocator takes expandable segments, or those of a fixed size.
  void expandable_segments(bool on);
  /// From here on events belong to the phase `label`. Equal labels are one phase.
  void mark(std::string_view label);
  /// The body's index runs first, first+1, ... (forward) or first, first-1, ... (backward).
  template <class Body>
  void repeat(std::int64_t n, Body&& body, Direction direction = Direction::forward, std::int64_t first = 0) {
    if (n <= 0) return;
    const Index index = begin_loop(n, direction, first);
    body(index);
    end_loop();
  }
  /// Starts a definition; what is recorded until end_definition() belongs to it. Definitions do not nest, and an index of a
  /// loop around a definition means nothing inside it: pass it to call(). An index used outside its loop, or a formal one
  /// outside a definition, is a Defect where it can be seen.
  std::uint32_t begin_definition();
  void end_definition();
  static constexpr Index formal_a() { return Index(-2, 0, 1); }
  static constexpr Index formal_b() { return Index(-3, 0, 1); }
  void call(std::uint32_t definition, Index a = {}, Index b = {});
  Program take();

 private:
  Index begin_loop(std::int64_t n, Direction direction, std::int64_t first);
  void end_loop();
  void write(Program::Op op);
  void check(Index) const;
  Program program_;
  std::vector<Program::Op> open_;
  int depth_ = 0, outer_depth_ = 0;
  bool defining_ = false;
  std::uint32_t allocations_ = 0;  ///< that were written
};

/// Hands each unit of `runs` to body(previous kind, this kind, next kind, Index of the unit): border units singly, the inside
/// of a run as one repeat. Units are numbered from 0 in forward order; a backward walk starts at the last one, and
/// "previous" is the unit visited before.
/// REQUIRES: the body depends on nothing but these; kinds of neighbours in one run are equal, so a border unit of a run sees its
/// own kind on the inner side.
template <class Recorder, class Body>
void walk(Recorder& r, const std::vector<UnitRun>& runs, Direction direction, Body&& body) {
  const bool ahead = direction == Direction::forward;
  const auto n = static_cast<std::int64_t>(runs.size());
  std::int64_t total = 0;
  for (const auto& run : runs) total += run.count;
  std::int64_t at = ahead ? 0 : total - 1;  // number of the next unit
  const std::int64_t step = ahead ? 1 : -1;
  for (std::int64_t k = 0; k < n; ++k) {
    const auto& run = runs[static_cast<std::size_t>(ahead ? k : n - 1 - k)];
    const int before = k == 0 ? kNoUnit : runs[static_cast<std::size_t>(ahead ? k - 1 : n - k)].kind;
    const int after = k == n - 1 ? kNoUnit : runs[static_cast<std::size_t>(ahead ? k + 1 : n - 2 - k)].kind;
    if (run.count == 1) {
      body(before, run.kind, after, Index(at));
    } else {
      body(before, run.kind, run.kind, Index(at));
      r.repeat(run.count - 2, [&](Index i) { body(run.kind, run.kind, run.kind, i); }, direction, at + step);
      body(run.kind, run.kind, after, Index(at + step * (run.count - 1)));
    }
    at += step * run.count;
  }
}

// ---- Readers of a Program -------------------------------------------------------------------------------------------------

/// One expanded event. `tensor` numbers the allocation it belongs to, from 0 in order of allocation.
struct Event {
  Program::Kind kind = Program::Kind::alloc;
  Pool pool = Pool::torch;
  std::uint32_t site = 0;  ///< mark: number of the label
  std::int64_t tensor = -1;
  Bytes bytes = 0;
  std::int64_t a = 0, b = 0;
};
/// False: a mark, or a word to the allocator. Span does not count it.
constexpr bool changes_levels(Program::Kind kind) {
  return kind != Program::Kind::mark && kind != Program::Kind::trim && kind != Program::Kind::segments;
}
/// Calls `see` for every event in order; stops early when it returns false. Throws Defect on a free without an allocation, a
/// second allocation of a live identity, a pause of other bytes than the pool holds, a resume of other bytes than were paused,
/// and events in a paused pool.
void expand(const Program&, const std::function<bool(const Event&)>& see);

/// A tensor that is alive at some instant.
struct LiveTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::bf16;
  Bytes bytes = 0;  ///< of all `count` together
  Category category = Category::other;
  Pool pool = Pool::torch;
  Holder holder = Holder::local;
  std::string phase;       ///< in which it was allocated
  std::int64_t count = 1;  ///< equal tensors (of several layers) in one row
};

/// What an expansion of the whole program shows. `span` equals the fold of the same description.
struct Trace {
  Span span;
  std::string phase;                      ///< label in force at the peak
  std::vector<Bytes> device_by_category;  ///< kCategories entries: what is live at the peak, paused pools left out
  std::vector<LiveTensor> live;           ///< device tensors at the peak, largest first, equal ones merged; as above
  std::vector<Bytes> host_by_category;    ///< at the host's peak
  std::int64_t left = 0;                  ///< tensors still alive at the end
};
Trace trace(const Program&);
/// What is live on the device at the highest moment of one phase (marks of that label), largest first, as Trace::live; empty for
/// a label that no mark has.
std::vector<LiveTensor> live_in_phase(const Program&, std::string_view label);
/// Device level after every event, for charts. Every `stride`-th event and every new highest. REQUIRES: stride >= 1.
std::vector<std::pair<std::int64_t, Bytes>> timeline(const Program&, std::int64_t stride = 1);

}  // namespace oomplan
