// Writes a ledger while a program is expanded.
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "program/ledger.hpp"

namespace oomplan {

class LedgerWriter {
 public:
  LedgerWriter() : level_(kCategories, 0) {}

  void enter(const std::string& label) {
    find(label);
    note();
  }
  /// Bytes on the device; of a free they are negative.
  void add(Category category, Bytes bytes) {
    level_[static_cast<std::size_t>(category)] += bytes;
    sum_ += bytes;
    if (bytes > 0) note();
  }
  std::vector<PhaseLedger> take() {
    std::erase_if(out_, [](const PhaseLedger& l) { return l.peak <= 0; });
    return std::move(out_);
  }

 private:
  void find(const std::string& label) {
    const auto known = std::find_if(out_.begin(), out_.end(), [&](const PhaseLedger& l) { return l.phase == label; });
    at_ = static_cast<std::size_t>(known - out_.begin());
    if (known == out_.end()) out_.push_back({label, -1, std::vector<Bytes>(kCategories, 0)});
  }
  void note() {
    if (out_.empty()) find("");
    if (sum_ <= out_[at_].peak) return;
    out_[at_].peak = sum_;
    out_[at_].by_category = level_;
  }

  std::vector<PhaseLedger> out_;
  std::vector<Bytes> level_;
  Bytes sum_ = 0;
  std::size_t at_ = 0;
};

}  // namespace oomplan
