// How an engine names what it allocates: rows of a program's table when one is written, sizes alone when it is folded.
#pragma once
#include <string>
#include <string_view>
#include <utility>

#include <oomplan/program.hpp>

namespace oomplan {

template <class R>
class EngineSites {
 public:
  /// `role` stands before the names of sites.
  EngineSites(R& r, std::string_view role) : r_(r) {
    if constexpr (R::kWrites)
      prefix_ = role.empty() ? "" : std::string(role) + ".";
    else
      (void)role;
  }

  /// `unit`: of which it is one; empty: the role's.
  SiteRef site(std::string_view unit, std::string_view name, Bytes bytes, Category category, Holder holder,
               std::uint8_t stream = 0, std::uint8_t in_flight = 0) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = named(unit, name);
      row.bytes = bytes;
      row.category = category;
      row.holder = holder;
      row.stream = stream;
      row.in_flight = in_flight;
      return r_.site(std::move(row));
    } else {
      (void)unit;
      (void)name;
      (void)category;
      (void)holder;
      (void)stream;
      (void)in_flight;
      return {0, bytes, Pool::torch};
    }
  }
  /// In pinned host memory.
  SiteRef host_site(std::string_view unit, std::string_view name, Bytes bytes) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = named(unit, name);
      row.bytes = bytes;
      row.category = Category::host_copy;
      row.pool = Pool::pinned;
      row.holder = Holder::resident;
      return r_.site(std::move(row));
    } else {
      (void)unit;
      (void)name;
      return {0, bytes, Pool::pinned};
    }
  }
  std::string named(std::string_view unit, std::string_view name) const {
    return prefix_ + std::string(unit) + (unit.empty() ? "" : ".") + std::string(name);
  }
  const std::string& prefix() const { return prefix_; }

 private:
  R& r_;
  std::string prefix_;
};

}  // namespace oomplan
