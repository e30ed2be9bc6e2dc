// How a weight update names what it allocates.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "sync/sync.hpp"

namespace oomplan {

/// Sites of one description. For the fold they are sizes only.
template <class R>
class SyncSites {
 public:
  SyncSites(R& r, const SyncPlan& p) : r_(r), p_(p) {}

  SiteRef gathered(std::uint32_t tensor) {
    return tensor_site(tensor, "gathered ", p_.model->storage, &SyncTensor::stored, gathered_, Category::weights);
  }
  SiteRef beside(std::uint32_t tensor) {
    return tensor_site(tensor, "gathering ", p_.model->storage, &SyncTensor::beside, beside_, Category::communication);
  }
  SiteRef packed(std::uint32_t tensor) {
    return tensor_site(tensor, "bucket ", p_.model->wire, &SyncTensor::sent, packed_, Category::communication);
  }
  SiteRef copied(std::uint32_t tensor) {
    return tensor_site(tensor, "copy ", p_.model->wire, &SyncTensor::sent, copied_, Category::communication);
  }
  SiteRef host(std::uint32_t tensor) {
    return tensor_site(tensor, "host ", p_.model->wire, &SyncTensor::sent, host_, Category::host_copy, Pool::pageable);
  }
  // of Megatron's buckets
  SiteRef part(std::uint32_t tensor) {
    return tensor_site(tensor, "part of ", p_.model->storage, &SyncTensor::part, parts_, Category::communication);
  }
  SiteRef pieces(std::uint32_t tensor) {
    return tensor_site(tensor, "pieces of ", p_.model->storage, &SyncTensor::stored, pieces_, Category::communication);
  }
  SiteRef flat(std::uint32_t tensor) {
    return tensor_site(tensor, "gathering ", p_.model->storage, &SyncTensor::stored, flat_, Category::communication);
  }
  SiteRef converted(std::uint32_t tensor) {
    return tensor_site(tensor, "converted ", p_.model->storage, &SyncTensor::converted, converted_, Category::communication);
  }
  SiteRef of_all_ranks(std::uint32_t tensor) {
    return tensor_site(tensor, "of all ranks ", p_.model->wire, &SyncTensor::sent, of_all_, Category::communication);
  }
  SiteRef all_flat(std::uint32_t tensor) {
    return tensor_site(tensor, "gathering of all ranks ", p_.model->wire, &SyncTensor::sent, all_flat_, Category::communication);
  }
  SiteRef buffer(std::string_view what, Bytes bytes) {
    if constexpr (R::kWrites)
      return r_.site({"sync." + std::string(what),
                      {bytes},
                      DType::int8,
                      bytes,
                      Category::communication,
                      Pool::torch,
                      0,
                      Holder::communication});
    else
      return {0, bytes, Pool::torch};
  }

 private:
  SiteRef tensor_site(std::uint32_t tensor, std::string_view prefix, DType dtype, Bytes SyncTensor::* size,
                      std::map<std::uint32_t, SiteRef>& made, Category category, Pool pool = Pool::torch) {
    const SyncTensor& t = p_.model->tensors[tensor];
    if constexpr (R::kWrites) {
      const auto found = made.find(tensor);
      if (found != made.end()) return found->second;
      return made[tensor] = r_.site(
                 {"sync." + std::string(prefix) + t.name, t.shape, dtype, t.*size, category, pool, 0, Holder::communication});
    } else {
      return {0, t.*size, pool};
    }
  }

  R& r_;
  const SyncPlan& p_;
  std::map<std::uint32_t, SiteRef> gathered_, beside_, packed_, copied_, host_, parts_, pieces_, flat_, converted_, of_all_,
      all_flat_;
};

inline Index layer_of(const SyncStep& s) { return Index(s.layer); }
inline Index copy_of(const SyncStep& s) { return Index(s.copy); }

}  // namespace oomplan
