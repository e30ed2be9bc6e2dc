// A tower whose passes are not described: its parameters stand beside the language model, and text alone is trained.
#pragma once
#include <cstdint>
#include <vector>

#include "catalog/parameters.hpp"
#include "layers/vision.hpp"

namespace oomplan {

class CountedTower final : public VisionTower {
 public:
  CountedTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations);
  void plan(std::vector<Station>& stations, std::size_t first_run) override;
  void declare() override;
  void merge(Tensor&, VisionNames&) override {}

 private:
  void declare_front() override {}
  void declare_block() override {}
  void declare_merger() override {}
  Eager::Function block(std::size_t, std::size_t, const Tensor&) override { return {}; }

  /// Rows of the catalog in one place: the front, a row of blocks, or what is left.
  struct Group {
    StationPlace place = StationPlace::vision;
    int run = -1;
    std::int64_t count = 1;
    std::vector<Parameter> rows;
  };
  std::vector<Group> groups_;
};

}  // namespace oomplan
