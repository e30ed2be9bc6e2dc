// Tensors that live as long as a name of Megatron's schedule, or of something that the schedule calls, has them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include <oomplan/program.hpp>

namespace oomplan {

template <class R>
class HeldTensors {
  class Block {
   public:
    Block(HeldTensors& of, SiteRef site, std::int64_t number) : of_(of), number_(number) {
      of_.r_.alloc(site, Index(number));
      of_.live_.emplace(number, site);
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() {
      if (of_.closing_) return;
      of_.r_.free(of_.live_.at(number_), Index(number_));
      of_.live_.erase(number_);
    }

   private:
    HeldTensors& of_;
    std::int64_t number_;
  };

 public:
  using Storage = std::shared_ptr<Block>;
  /// Whoever has the storage alone keeps no gradient.
  struct Tensor {
    Storage storage;
    std::shared_ptr<Tensor> gradient;  ///< .grad
  };
  using Held = std::shared_ptr<Tensor>;

  /// REQUIRES: `r` outlives this, and this outlives its tensors but for those that are left when it closes.
  explicit HeldTensors(R& r) : r_(r) {}

  Held make(SiteRef site) { return std::make_shared<Tensor>(Tensor{std::make_shared<Block>(*this, site, number_++), nullptr}); }
  /// What is still held stays allocated.
  void close() { closing_ = true; }
  /// All that is held, with its number.
  template <class Act>
  void each(Act&& act) const {
    for (const auto& [number, site] : live_) act(site, Index(number));
  }

 private:
  R& r_;
  std::map<std::int64_t, SiteRef> live_;
  std::int64_t number_ = 0;
  bool closing_ = false;
};

}  // namespace oomplan
