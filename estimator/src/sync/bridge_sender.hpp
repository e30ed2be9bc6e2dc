// Weight updates through Megatron-Bridge: Relax's on shared GPUs, slime's of 0.2.0 to 0.3.0.
//
// Relax (relax/backends/megatron/weight_update/hf_weight_iterator_bridge.py, commits e38d4faa and 29e43c4c) goes through buckets
// of Megatron's parameters, of experts first. Of every parameter of a bucket all ranks have a part: loaded from the host, or an
// empty one. One by one they are gathered over the tensor ranks. An expert is converted where it is, and kept; then stage ranks,
// then expert ranks broadcast what each of them has as one tensor of bytes. Other parameters are broadcast first and converted on
// every rank. slime (slime/backends/megatron_utils/update_weight/hf_weight_iterator_bridge.py) hands its parameters to
// Megatron-Bridge's export one by one, which gathers an expert over the expert ranks as well.
//
// What has been converted is dealt into chunks, whatever bucket it is of. A chunk is put in one tensor, which the server maps;
// the chunk that was sent last stays a name until the next one is full. Views keep what they are views of.
//
// Legend: S bytes of a bucket, s of it those of the rank's own experts, C a chunk. A bucket of experts: S/t + S, then S + s.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sync/sync.hpp"
#include "sync/sync_sites.hpp"

namespace oomplan {

template <class R>
class BridgeSender {
 public:
  BridgeSender(R& r, const SyncPlan& p) : r_(r), p_(p), sites_(r, p) {}

  void shared() {
    std::size_t last = kNone;  // the loop's name for a bucket's last parameter
    for (const SyncBucket& bucket : p_.buckets) {
      std::vector<std::size_t> parts;
      for (std::size_t i = bucket.first; i < bucket.last; ++i) parts.push_back(merged(i, hold(part_site(i), i)));
      drop(last);
      if (of(bucket.first).expert)
        experts(bucket, parts);
      else
        others(bucket, parts);
      last = parts.back();
      take(last);
      for (const std::size_t part : parts) drop(part);
    }
    drop(last);
    finish();
  }

  /// Megatron-Bridge's export (megatron/bridge/models/conversion/param_mapping.py, 0.2.0): a parameter is broadcast by its stage,
  /// gathered, and of experts each form once more over the expert ranks.
  void exported() {
    std::size_t before = kNone;  // the generator's name for the last parameter that it loaded
    std::vector<Piece> names;    // ... and for what it made of the last one
    for (std::size_t i = 0; i < p_.model->order.size(); ++i) {
      const bool own = has(i);
      const std::size_t part = own ? hold(part_site(i), i) : kNone;
      drop(std::exchange(before, part));
      const std::size_t sent = own ? part : hold(part_site(i), i);  // by the stage that has it
      const std::vector<Piece> made = of(i).expert ? export_expert(i, sent) : export_one(i, sent);
      if (!own) drop(sent);
      for (const Piece& piece : std::exchange(names, made)) drop(piece.storage);
      for (const Piece& piece : made) emit(piece);
    }
    for (const Piece& piece : names) drop(piece.storage);
    drop(before);
    finish();
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  /// A storage, and how many names there are for it.
  struct Held {
    SiteRef site;
    std::int32_t layer = 0;
    std::int64_t copy = 0;
    int names = 0;
  };
  /// A tensor of the checkpoint.
  struct Piece {
    std::size_t storage = kNone;
    Bytes bytes = 0;
    std::int64_t pair = -1;  ///< of the two that go together, their layer
  };

  std::uint32_t tensor(std::size_t i) const { return p_.model->order[i].tensor; }
  const SyncTensor& of(std::size_t i) const { return p_.model->tensors[tensor(i)]; }
  SiteRef part_site(std::size_t i) { return of(i).part > 0 ? sites_.part(tensor(i)) : sites_.gathered(tensor(i)); }

  std::size_t hold(const SiteRef& site, std::size_t i) { return hold(site, p_.model->order[i].layer, p_.model->order[i].copy); }
  std::size_t hold(const SiteRef& site, std::int32_t layer, std::int64_t copy) {
    r_.alloc(site, Index(layer), Index(copy));
    std::size_t at = held_.size();
    if (!free_.empty()) {
      at = free_.back();
      free_.pop_back();
    } else {
      held_.emplace_back();
    }
    held_[at] = {site, layer, copy, 1};
    return at;
  }
  void take(std::size_t storage) { ++held_[storage].names; }
  void drop(std::size_t storage) {
    if (storage == kNone || --held_[storage].names > 0) return;
    const Held& h = held_[storage];
    r_.free(h.site, Index(h.layer), Index(h.copy));
    free_.push_back(storage);
  }
  std::size_t buffer(const char* what, Bytes bytes) {
    const auto [at, is_new] = buffers_.try_emplace({what, bytes});
    if (is_new) at->second = sites_.buffer(what, bytes);
    return hold(at->second, 0, made_++);
  }

  /// all_gather_param: pieces, what NCCL gathers a list into, all of them in one tensor.
  std::size_t gather(std::size_t i, std::size_t part) {
    if (of(i).part == 0) {
      take(part);
      return part;
    }
    const std::size_t pieces = hold(sites_.pieces(tensor(i)), i);
    const std::size_t flat = hold(sites_.flat(tensor(i)), i);
    drop(flat);
    const std::size_t whole = hold(sites_.gathered(tensor(i)), i);
    drop(pieces);
    return whole;
  }

  /// The checkpoint's tensors of a whole parameter; each of them holds its storage.
  std::vector<Piece> forms(std::size_t i, std::size_t whole) {
    const SyncTensor& t = of(i);
    const std::int64_t pair = t.paired ? p_.model->order[i].layer : -1;
    std::vector<Piece> out;
    if (t.forms.empty()) {
      take(whole);
      out.push_back({whole, t.sent, pair});
      return out;
    }
    std::size_t beside = t.converting > 0 ? buffer("while it is converted", t.converting) : kNone;
    std::size_t copy = kNone;
    for (const Bytes bytes : t.forms) {
      if (t.are == Forms::copies || (t.are == Forms::of_one_copy && copy == kNone))
        copy = buffer("converted", t.are == Forms::copies ? bytes : t.stored);
      else
        take(t.are == Forms::views ? whole : copy);
      out.push_back({t.are == Forms::views ? whole : copy, bytes, pair});
      drop(std::exchange(beside, kNone));
    }
    return out;
  }

  /// LoRAMerge.merge on the rank that has a parameter (hf_weight_iterator_bridge.py: _merge_base_with_adapter, redai-studio/Relax
  /// 29e43c4c; megatron/bridge/peft/lora.py, 2faedbf6): in fp32 the parameter, the product, that times its factor, their sum.
  std::size_t merged(std::size_t i, std::size_t part) {
    const SyncTensor& t = of(i);
    if (t.adapter == 0 || !(has(i) && (!t.expert || rank_of(i) == p_.point.expert_rank))) return part;
    const Bytes own = t.part > 0 ? t.part : t.stored;
    const std::size_t pair = buffer("adapter in fp32", t.adapter);
    const std::size_t base = buffer("merged in fp32", 2 * own), product = buffer("merged in fp32", 2 * own);
    const std::size_t scaled = buffer("merged in fp32", 2 * own);
    drop(product);
    const std::size_t sum = buffer("merged in fp32", 2 * own);
    drop(base);
    drop(scaled);
    const std::size_t merged = buffer("merged", own);
    drop(sum);
    drop(pair);
    drop(part);
    return merged;
  }

  void others(const SyncBucket& bucket, const std::vector<std::size_t>& parts) {
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      const std::size_t whole = gather(i, parts[i - bucket.first]);
      const std::vector<Piece> made = forms(i, whole);
      for (const Piece& piece : made) emit(piece);
      drop(whole);
      for (const Piece& piece : made) drop(piece.storage);
    }
  }

  std::int64_t rank_of(std::size_t i) const {
    return p_.model->order[i].copy / std::max<std::int64_t>(1, p_.model->experts_of_a_rank);
  }
  std::int64_t stage_of(std::size_t i) const {
    const auto layer = static_cast<std::size_t>(p_.model->order[i].layer);
    return layer < p_.model->stages.size() ? p_.model->stages[layer] : 0;
  }

  /// What the rank has of a bucket, by parameter.
  using Converted = std::vector<std::vector<Piece>>;

  void experts(const SyncBucket& bucket, std::vector<std::size_t>& parts) {
    Converted made(bucket.last - bucket.first);
    const SyncPoint& at = p_.point;
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      const std::size_t whole = gather(i, parts[i - bucket.first]);
      if (rank_of(i) == at.expert_rank && stage_of(i) == at.stage) made[i - bucket.first] = forms(i, whole);
      drop(whole);
    }
    const std::size_t last = parts.back();  // its name stays
    take(last);
    for (const std::size_t part : parts) drop(part);
    parts = {last};
    if (at.stages > 1) {
      const std::size_t asked = buffer("words of a bucket", words(bucket));
      broadcast(bucket, made, at.stages, at.stage,
                [&](std::size_t i) { return rank_of(i) == at.expert_rank ? stage_of(i) : -1; });
      drop(asked);
    }
    if (at.expert_ranks > 1) {
      const std::size_t asked = buffer("words of a bucket", words(bucket));
      broadcast(bucket, made, at.expert_ranks, at.expert_rank, [&](std::size_t i) { return rank_of(i); });
      drop(asked);
    }
    for (const auto& pieces : made)
      for (const Piece& piece : pieces) emit(piece);
    for (const auto& pieces : made)
      for (const Piece& piece : pieces) drop(piece.storage);
  }

  /// Each of `ranks` sends what it has as one tensor; of the others' the parameters are parts.
  template <class RankOf>
  void broadcast(const SyncBucket& bucket, Converted& made, std::int64_t ranks, std::int64_t own, RankOf&& rank_of_step) {
    std::vector<Bytes> bytes(static_cast<std::size_t>(ranks));
    for (std::size_t i = bucket.first; i < bucket.last; ++i)
      if (const std::int64_t rank = rank_of_step(i); rank >= 0) bytes[static_cast<std::size_t>(rank)] += of(i).sent;
    std::vector<std::size_t> sent(bytes.size(), kNone);
    for (std::size_t rank = 0; rank < bytes.size(); ++rank)
      if (bytes[rank] > 0) sent[rank] = buffer("experts of a rank", bytes[rank]);
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      const std::int64_t rank = rank_of_step(i);
      if (rank < 0 || rank == own) continue;
      const std::size_t from = sent[static_cast<std::size_t>(rank)];
      const std::vector<Bytes> sizes = of(i).forms.empty() ? std::vector<Bytes>{of(i).sent} : of(i).forms;
      for (const Bytes size : sizes) {
        take(from);
        made[i - bucket.first].push_back({from, size, -1});
      }
    }
    for (const std::size_t one : sent) drop(one);
  }
  /// Names, shapes and formats, as whole numbers: of every parameter as many as of the one with the most.
  Bytes words(const SyncBucket& bucket) const {
    const auto digits = [](std::int64_t n) { return static_cast<std::int64_t>(std::to_string(n).size()); };
    std::int64_t most = 2;
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      const SyncStep& step = p_.model->order[i];
      const std::int64_t down = 43 + digits(step.layer) + digits(step.copy);  // model.layers.0.mlp.experts.0.down_proj.weight
      most = std::max(most, 2 + down + 5 + (of(i).forms.size() > 1 ? down - 2 + 5 : 0));
    }
    return static_cast<Bytes>(most * 8 * static_cast<std::int64_t>(bucket.last - bucket.first));
  }

  bool has(std::size_t i) const {
    const std::string& name = of(i).name;
    if (p_.point.stages == 1) return true;
    if (name.starts_with("embedding.")) return p_.point.stage == 0;
    if (name.starts_with("output_layer.") || name.starts_with("decoder.")) return p_.point.stage + 1 == p_.point.stages;
    return stage_of(i) == p_.point.stage;
  }
  /// The pieces of a parameter that ranks share.
  std::size_t gather_pieces(std::size_t i) {
    const std::size_t pieces = hold(sites_.pieces(tensor(i)), i);
    drop(hold(sites_.flat(tensor(i)), i));
    return pieces;
  }
  std::vector<Piece> export_one(std::size_t i, std::size_t part) {
    const SyncTensor& t = of(i);
    if (t.part == 0) return unpaired(forms(i, part));
    const std::size_t pieces = gather_pieces(i);
    if (!t.forms.empty() && t.are == Forms::views) {  // gate and up are put together by themselves
      std::vector<Piece> out;
      for (const Bytes bytes : t.forms) out.push_back({buffer("converted", bytes), bytes, -1});
      drop(pieces);
      return out;
    }
    const std::size_t whole = hold(sites_.gathered(tensor(i)), i);
    drop(pieces);
    std::vector<Piece> out = unpaired(forms(i, whole));
    drop(whole);
    return out;
  }
  static std::vector<Piece> unpaired(std::vector<Piece> pieces) {
    for (Piece& piece : pieces) piece.pair = -1;
    return pieces;
  }
  /// Each form once more from every expert rank, while what it is gathered from is there.
  std::vector<Piece> export_expert(std::size_t i, std::size_t part) {
    const SyncTensor& t = of(i);
    const std::vector<Bytes> sizes = t.forms.empty() ? std::vector<Bytes>{t.sent} : t.forms;
    std::vector<std::size_t> beside;
    if (t.part > 0) {
      beside.push_back(gather_pieces(i));
      for (const Bytes bytes : sizes) beside.push_back(buffer("converted", bytes));
    } else {
      take(part);
      beside.push_back(part);
    }
    std::vector<Piece> out;
    for (const Bytes bytes : sizes) {
      for (std::int64_t rank = 0; rank < p_.point.expert_ranks; ++rank)
        out.push_back({buffer("of an expert rank", bytes), bytes, -1});
      drop(buffer("gathering of expert ranks", bytes * p_.point.expert_ranks));
    }
    for (const std::size_t one : beside) drop(one);
    return out;
  }

  /// _chunk_with_mla_pairing: of two that belong together the first one waits.
  void emit(const Piece& piece) {
    take(piece.storage);
    if (piece.pair < 0) return add({piece});
    const auto waits = waiting_.find(piece.pair);
    if (waits == waiting_.end()) {
      waiting_[piece.pair] = piece;
      return;
    }
    const Piece first = waits->second;
    waiting_.erase(waits);
    add({first, piece});
  }
  void add(const std::vector<Piece>& pieces) {
    Bytes bytes = 0;
    for (const Piece& piece : pieces) bytes += piece.bytes;
    if (!chunk_.empty() && filled_ + bytes >= p_.point.bucket) send();
    chunk_.insert(chunk_.end(), pieces.begin(), pieces.end());
    filled_ += bytes;
  }
  void send() {
    for (const Piece& piece : sent_) drop(piece.storage);
    sent_ = std::exchange(chunk_, {});
    if (p_.point.flattens) {
      const std::size_t now = buffer("bucket in one tensor", filled_);
      drop(std::exchange(in_one_, kNone));
      if (p_.point.keeps_sent)
        in_one_ = now;
      else
        drop(now);
    }
    if (!p_.point.keeps_last)
      for (const Piece& piece : std::exchange(sent_, {})) drop(piece.storage);
    if (p_.point.empties_between) r_.trim();
    filled_ = 0;
  }
  void finish() {
    for (const auto& [layer, piece] : waiting_) add({piece});
    if (!chunk_.empty()) send();
    for (const Piece& piece : std::exchange(sent_, {})) drop(piece.storage);
    drop(std::exchange(in_one_, kNone));
    r_.trim();
  }

  R& r_;
  const SyncPlan& p_;
  SyncSites<R> sites_;
  std::deque<Held> held_;
  std::vector<std::size_t> free_;
  std::int64_t made_ = 0;
  std::map<std::pair<std::string_view, Bytes>, SiteRef> buffers_;
  std::vector<Piece> chunk_, sent_;  ///< the chunk that is filled, and the one that was sent last
  std::map<std::int64_t, Piece> waiting_;
  Bytes filled_ = 0;
  std::size_t in_one_ = kNone;
};

}  // namespace oomplan
