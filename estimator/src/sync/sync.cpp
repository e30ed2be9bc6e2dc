#include "sync/sync.hpp"

#include <algorithm>
#include <string_view>

#include <oomplan/units/errors.hpp>

#include "sync/bridge_sender.hpp"
#include "sync/bucket_sender.hpp"
#include "sync/sync_sites.hpp"

namespace oomplan {
namespace {

template <class R>
class Sender {
 public:
  Sender(R& r, const SyncPlan& p) : r_(r), p_(p), sites_(r, p) {}

  void run() {
    switch (p_.point.way) {
      case SyncWay::none:
        return;
      case SyncWay::disk:
        disk();
        return;
      case SyncWay::double_buffer:
        buffered(2);
        return;
      case SyncWay::ipc:
        if (p_.point.from_host)
          sent_from_host();
        else
          p_.point.server == EngineKind::sglang ? buckets(false) : buffered(1);
        return;
      case SyncWay::buckets:
        p_.point.sender ? buckets(false) : gathers();
        return;
      case SyncWay::two_buckets:
        p_.point.sender ? buckets(true) : gathers();
        return;
      case SyncWay::shared_buckets:
        BucketSender<R>(r_, p_).shared();
        return;
      case SyncWay::stage_buckets:
        BucketSender<R>(r_, p_).of_stage();
        if (p_.point.empties_behind) r_.trim();
        return;
      case SyncWay::bridge_buckets:
        BridgeSender<R>(r_, p_).shared();
        return;
      case SyncWay::bridge_export:
        BridgeSender<R>(r_, p_).exported();
        return;
      case SyncWay::flat_buckets:
        flat_buckets();
        return;
    }
  }

 private:
  const SyncStep& step(std::size_t i) const { return p_.model->order[i]; }
  void take(std::size_t i) { gather(i, sites_.gathered(step(i).tensor)); }
  void gather(std::size_t i, const SiteRef& result) { gather(step(i), result, copy_of(step(i))); }
  void gather(const SyncStep& s, const SiteRef& result, Index copy) {
    const bool twice = p_.model->tensors[s.tensor].beside > 0;
    if (twice) r_.alloc(sites_.beside(s.tensor), layer_of(s), copy);
    r_.alloc(result, layer_of(s), copy);
    if (twice) r_.free(sites_.beside(s.tensor), layer_of(s), copy);
  }
  void drop(std::size_t i) { r_.free(sites_.gathered(step(i).tensor), layer_of(step(i)), copy_of(step(i))); }

  /// Ranks that do not send: the next tensor is gathered before the reference to the last one goes.
  void gathers() {
    const std::size_t n = p_.model->order.size();
    for (std::size_t i = 0; i < n;) {
      take(i);
      if (i > 0) drop(i - 1);
      const std::size_t first = i++;
      while (i < n && follows(first, i)) ++i;
      const SyncStep& s = step(first);
      const auto more = static_cast<std::int64_t>(i - first) - 1;
      r_.repeat(
          more,
          [&](Index copy) {
            gather(s, sites_.gathered(s.tensor), copy);
            r_.free(sites_.gathered(s.tensor), layer_of(s), copy - 1);
          },
          Direction::forward, s.copy + 1);
    }
    if (n > 0) drop(n - 1);
  }
  /// The same tensor of the same layer, of the experts in turn.
  bool follows(std::size_t first, std::size_t i) const {
    return step(i).tensor == step(first).tensor && step(i).layer == step(first).layer &&
           step(i).copy == step(first).copy + static_cast<std::int32_t>(i - first);
  }

  /// A tensor joins the bucket: itself, or its cast copy.
  void join(std::size_t i) {
    if (!p_.point.casts && p_.model->storage == p_.model->wire) {
      gather(i, sites_.packed(step(i).tensor));
      return;
    }
    take(i);
    r_.alloc(sites_.packed(step(i).tensor), layer_of(step(i)), copy_of(step(i)));
    drop(i);
  }
  void release(const SyncBucket& b) {
    for (std::size_t i = b.first; i < b.last; ++i) r_.free(sites_.packed(step(i).tensor), layer_of(step(i)), copy_of(step(i)));
  }

  /// The first tensor of the next bucket is there before the full one is sent; a pending one goes only then.
  void buckets(bool pipelined) {
    const std::size_t n = p_.buckets.size();
    for (std::size_t b = 0; b < n; ++b) {
      const SyncBucket& now = p_.buckets[b];
      for (std::size_t i = b == 0 ? now.first : now.first + 1; i < now.last; ++i) join(i);
      if (b + 1 < n) join(p_.buckets[b + 1].first);
      if (pipelined && b > 0) release(p_.buckets[b - 1]);
      if (!pipelined) release(now);
    }
    if (pipelined && n > 0) release(p_.buckets[n - 1]);
  }

  /// slime/backends/fsdp_utils/update_weight_utils.py, 0.2.0 to 0.2.2: a bucket is sent before the next one's first is gathered.
  void flat_buckets() {
    for (std::size_t b = 0; b < p_.buckets.size(); ++b) {
      const SyncBucket& bucket = p_.buckets[b];
      for (std::size_t i = bucket.first; i < bucket.last; ++i) gather(i, sites_.packed(step(i).tensor));
      if (p_.point.flattens) {
        const SiteRef flat = sites_.buffer("flattened bucket", bucket.bytes);
        r_.alloc(flat, Index(static_cast<std::int64_t>(b)));
        r_.free(flat, Index(static_cast<std::int64_t>(b)));
      }
      release(bucket);
    }
  }

  /// Fixed buffers into which each gathered tensor is copied. A tensor larger than the buffer travels by itself.
  void buffered(int count) {
    const SiteRef one = sites_.buffer("send buffer", p_.point.bucket);
    for (int i = 0; i < count; ++i) r_.alloc(one, Index(i));
    gathers();
    for (int i = 0; i < count; ++i) r_.free(one, Index(i));
  }

  void sent_from_host() {
    for (std::size_t i = 0; p_.point.gathers_to_host && i < p_.model->order.size(); ++i) {
      take(i);
      drop(i);
    }
    if (!p_.point.has_buffer) return;
    const SiteRef buffer = sites_.buffer("send buffer", p_.point.bucket);
    r_.alloc(buffer);
    r_.free(buffer);
  }

  /// Tensor by tensor to the host; rank 0 keeps them all until the files are written.
  void disk() {
    const std::size_t n = p_.model->order.size();
    for (std::size_t i = 0; i < n; ++i) {
      take(i);
      if (p_.point.sender) r_.alloc(sites_.host(step(i).tensor), layer_of(step(i)), copy_of(step(i)));
      drop(i);
    }
    if (!p_.point.sender) return;
    for (std::size_t i = 0; i < n; ++i) r_.free(sites_.host(step(i).tensor), layer_of(step(i)), copy_of(step(i)));
  }

  R& r_;
  const SyncPlan& p_;
  SyncSites<R> sites_;
};

template <class R>
void receive(R& r, const SyncPlan& p) {
  SyncSites<R> sites(r, p);
  const auto& order = p.model->order;
  const auto alloc = [&](std::size_t i) { r.alloc(sites.packed(order[i].tensor), layer_of(order[i]), copy_of(order[i])); };
  const auto free = [&](std::size_t i) { r.free(sites.packed(order[i].tensor), layer_of(order[i]), copy_of(order[i])); };
  const auto copy = [&](std::size_t i) { return sites.copied(order[i].tensor); };
  if (p.point.copies > 0) {
    const std::size_t n = order.size(), copied = p.point.copies > 1 ? n : 0;
    for (std::size_t i = 0; i < n; ++i) alloc(i);
    for (std::size_t i = 0; i < copied; ++i) r.alloc(copy(i), layer_of(order[i]), copy_of(order[i]));
    for (std::size_t i = 0; i < copied; ++i) r.free(copy(i), layer_of(order[i]), copy_of(order[i]));
    for (std::size_t i = 0; i < n; ++i) free(i);
    return;
  }
  switch (p.point.way) {
    case SyncWay::none:
    case SyncWay::ipc:             // views of the sender's memory
    case SyncWay::shared_buckets:  // so they are
    case SyncWay::bridge_buckets:
    case SyncWay::bridge_export:
    case SyncWay::disk:
      return;  // from the host straight into the parameters
    case SyncWay::double_buffer: {
      const SiteRef one = sites.buffer("receive buffer", p.point.bucket);
      for (int i = 0; i < 2; ++i) r.alloc(one, Index(i));
      for (int i = 0; i < 2; ++i) r.free(one, Index(i));
      return;
    }
    case SyncWay::flat_buckets:
      if (p.point.flattens) return;
      break;
    case SyncWay::buckets:
    case SyncWay::two_buckets:
    case SyncWay::stage_buckets:
      break;
  }
  if (p.point.server == EngineKind::vllm && !p.point.adapters) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      alloc(i);
      if (i > 0) free(i - 1);  // the name still refers to the last tensor
    }
    if (!order.empty()) free(order.size() - 1);
    return;
  }
  for (std::size_t b = 0; b < p.buckets.size(); ++b) {
    const SyncBucket& bucket = p.buckets[b];
    for (std::size_t i = bucket.first; i < bucket.last; ++i) alloc(i);
    SiteRef flat;
    if (p.point.flattened) r.alloc(flat = sites.buffer("flattened bucket", bucket.bytes), Index(static_cast<std::int64_t>(b)));
    if (p.point.flattened) r.free(flat, Index(static_cast<std::int64_t>(b)));
    for (std::size_t i = bucket.first; i < bucket.last; ++i) free(i);
  }
}

/// On shared GPUs slime counts every parameter of a rank as one of those that ranks share; of a stage experts go behind all else.
std::vector<SyncBucket> pack(const SyncModel& m, const SyncPoint& point) {
  const bool counts = point.way == SyncWay::shared_buckets || point.way == SyncWay::bridge_buckets;
  const bool apart = point.way == SyncWay::stage_buckets || point.way == SyncWay::bridge_buckets;
  std::vector<SyncBucket> out;
  SyncBucket now;
  for (std::size_t i = 0; i < m.order.size(); ++i) {
    const SyncTensor& tensor = m.tensors[m.order[i].tensor];
    const Bytes bytes = counts                 ? tensor.counted
                        : point.keeps_gathered ? std::max(tensor.sent, tensor.stored)  // with the rows that pad it
                                               : tensor.sent;
    const bool other = apart && i > 0 && tensor.expert != m.tensors[m.order[i - 1].tensor].expert;
    if (now.bytes > 0 && (now.bytes + bytes > point.bucket || other)) {
      now.last = i;
      out.push_back(now);
      now = {i, i, 0};
    }
    now.bytes += bytes;
  }
  now.last = m.order.size();
  if (now.bytes > 0) out.push_back(now);
  return out;
}

}  // namespace

SyncPoint sync_point(const Facts& facts, const TrainingLoop& loop, std::string_view version, SyncBy by, Bytes bucket,
                     EngineKind server, bool same_gpu) {
  SyncPoint out;
  out.server = server;
  const FactQuery query{std::string(version), "", {}};
  if (by == SyncBy::none) return out;
  if (by == SyncBy::disk) {
    out.way = SyncWay::disk;
  } else if (loop.flat_buckets) {
    out.way = SyncWay::flat_buckets;
    out.flattens = same_gpu;
  } else if (loop.gathers_buckets) {
    out.way = same_gpu ? SyncWay::shared_buckets : SyncWay::stage_buckets;
  } else if (loop.ipc) {
    out.way = same_gpu ? SyncWay::ipc : SyncWay::double_buffer;
    const auto does = [&](const char* fact) { return same_gpu && facts.find(loop.facts, fact, query).value != 0; };
    out.switches_segments = does("switches_expandable_segments");
    out.empties_first = does("empties_cache_before_update");
  } else {
    out.way = facts.find(loop.facts, "sync_pipelined", query).value != 0 ? SyncWay::two_buckets : SyncWay::buckets;
    out.casts = facts.find(loop.facts, "sync_casts_full_tensor", query).value != 0;
  }
  const char* key = loop.ipc ? "update_weights_bucket_mib" : "weight_chunked_mem_mib";
  out.bucket = bucket > 0 ? bucket : static_cast<Bytes>(facts.find(loop.facts, key, query).value) * kMiB;
  if (loop.flat_buckets) out.bucket = std::max<Bytes>(1, out.bucket - 1);  // what would fill it exactly goes into the next one
  return out;
}

bool fused_experts(const Facts& facts, const TrainingLoop& loop, std::string_view version) {
  return facts.find(loop.facts, "experts_fused", {std::string(version), "", {}}).value != 0;
}

DType wire_dtype(const Facts& facts, const TrainingLoop& loop, std::string_view version, DType storage, DType compute) {
  if (loop.ipc) return storage;
  return facts.find(loop.facts, "sync_casts_full_tensor", {std::string(version), "", {}}).value != 0 ? compute : storage;
}

SyncPlan plan_sync(const SyncModel& model, const SyncPoint& point) {
  SyncPlan out;
  out.model = &model;
  out.point = point;
  out.buckets = pack(model, point);
  for (const SyncBucket& b : out.buckets) out.largest_bucket = std::max(out.largest_bucket, b.bytes);
  PeakRecorder sender, receiver;
  Sender<PeakRecorder>(sender, out).run();
  receive(receiver, out);
  out.send = sender.span();
  out.receive = receiver.span();
  return out;
}

void record_send(PeakRecorder& r, const SyncPlan& p) { r.call(p.send); }
void record_send(ProgramWriter& r, const SyncPlan& p) { Sender<ProgramWriter>(r, p).run(); }
void record_receive(PeakRecorder& r, const SyncPlan& p) { r.call(p.receive); }
void record_receive(ProgramWriter& r, const SyncPlan& p) { receive(r, p); }

}  // namespace oomplan
