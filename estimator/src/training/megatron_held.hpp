// Tensors that live as long as a name of Megatron's schedule, or of something that the schedule calls, has them.
#pragma once
#include <cstdint>
#include <memory>

#include <oomplan/program.hpp>

namespace oomplan {

template <class R>
class HeldTensors {
  class Block {
   public:
    Block(HeldTensors& of, SiteRef site, Index number) : of_(of), site_(site), number_(number) { of_.r_.alloc(site_, number_); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() {
      if (!of_.closing_) of_.r_.free(site_, number_);
    }

   private:
    HeldTensors& of_;
    SiteRef site_;
    Index number_;
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

  Held make(SiteRef site) {
    return std::make_shared<Tensor>(Tensor{std::make_shared<Block>(*this, site, Index(number_++)), nullptr});
  }
  /// What is still held stays allocated.
  void close() { closing_ = true; }

 private:
  R& r_;
  std::int64_t number_ = 0;
  bool closing_ = false;
};

}  // namespace oomplan
