// Which allocations of a program live, by identity. An expansion asks it twice for every tensor, so it is a table with open
// addressing (linear probing) that allocates only when it grows.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <oomplan/program.hpp>

namespace oomplan {

/// What names a tensor: its site and two indices.
struct Identity {
  std::int64_t a = 0, b = 0;
  std::uint32_t site = 0;
  bool operator==(const Identity&) const = default;
};

/// A Defect's words about a tensor.
inline std::string describe_event(const Program& program, const char* what, const Identity& k) {
  return what + (": " + program.sites[k.site].name) + " [" + std::to_string(k.a) + ", " + std::to_string(k.b) + "]";
}

class LiveTable {
 public:
  LiveTable() : rows_(kFirst) {}

  /// False, and nothing changes, when the identity lives already. REQUIRES: tensor >= 0.
  bool insert(const Identity& key, std::int64_t tensor) {
    if (2 * (count_ + 1) > rows_.size()) grow();
    const std::size_t at = find(key);
    if (rows_[at].tensor >= 0) return false;
    rows_[at] = {key, tensor};
    ++count_;
    return true;
  }
  /// The tensor that the identity names, which is forgotten; -1 when none lives.
  std::int64_t take(const Identity& key) {
    std::size_t hole = find(key);
    const std::int64_t tensor = rows_[hole].tensor;
    if (tensor < 0) return -1;
    // What stands behind the hole moves up when a search for it would pass there.
    for (std::size_t at = next(hole); rows_[at].tensor >= 0; at = next(at)) {
      const std::size_t home = home_of(rows_[at].key);
      if (((at - home) & mask()) < ((at - hole) & mask())) continue;
      rows_[hole] = rows_[at];
      hole = at;
    }
    rows_[hole].tensor = -1;
    --count_;
    return tensor;
  }

 private:
  static constexpr std::size_t kFirst = 1024;  // a power of two
  struct Row {
    Identity key;
    std::int64_t tensor = -1;  ///< -1: empty
  };
  std::size_t mask() const { return rows_.size() - 1; }
  std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
  std::size_t home_of(const Identity& k) const {
    std::uint64_t h = k.site * 0x9E3779B97F4A7C15ULL;
    h = (h ^ static_cast<std::uint64_t>(k.a)) * 0xBF58476D1CE4E5B9ULL;
    h = (h ^ (h >> 29) ^ static_cast<std::uint64_t>(k.b)) * 0x94D049BB133111EBULL;
    return static_cast<std::size_t>(h ^ (h >> 32)) & mask();
  }
  /// Where the identity is, or the empty row where it would be.
  std::size_t find(const Identity& key) const {
    std::size_t at = home_of(key);
    while (rows_[at].tensor >= 0 && rows_[at].key != key) at = next(at);
    return at;
  }
  void grow() {
    std::vector<Row> old(rows_.size() * 2);
    old.swap(rows_);
    for (const Row& row : old)
      if (row.tensor >= 0) rows_[find(row.key)] = row;
  }

  std::vector<Row> rows_;
  std::size_t count_ = 0;
};

}  // namespace oomplan
