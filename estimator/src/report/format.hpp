// The small change of reports: bars, aligned columns, colours, and text that is safe to print.
//
// Everything that came from a user's file passes through printable() before it reaches a terminal. Widths are counted in
// characters, not bytes.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/units/bytes.hpp>

#include "units/sizes.hpp"
#include "units/utf8.hpp"

namespace oomplan {

/// "1,638,400".
std::string grouped(std::int64_t);
/// "115 %", of whole > 0; "-" otherwise.
std::string percent_text(Bytes part, Bytes whole);
/// "97 %"; never "0 %" or "100 %", which no measurement can say.
std::string probability_text(double probability);
/// The same in a table: ">99 %".
std::string short_probability(double probability);
/// Characters (code points) of a UTF-8 text.
std::size_t columns(std::string_view text);
/// `text` cut to `width` characters, the cut shown by "..".
std::string clipped(const std::string& text, std::size_t width);
/// "from -> to", whole when it is no wider than `width`; of longer ones what differs, with a few characters around it: two
/// changes of one value never look alike.
std::string change_text(const std::string& from, const std::string& to, std::size_t width);
/// part/whole as a bar of `width` characters; more than whole ends in an arrow. REQUIRES: width >= 3.
std::string bar(Bytes part, Bytes whole, int width, bool unicode);
/// Breaks `text` at spaces into lines of `width`; every line after the first starts with `indent` spaces.
std::string wrapped(std::string_view text, std::size_t width, std::size_t indent);

enum class Colour : std::uint8_t { none, good, near, bad, dim, strong };
/// `text` in a colour when `on`; as it is otherwise.
std::string paint(const std::string& text, Colour, bool on);

/// Rows of cells, printed in aligned columns with two spaces between. Cells are coloured after their width was taken.
class Table {
 public:
  enum class Align : std::uint8_t { left, right };
  explicit Table(std::vector<Align> aligns) : aligns_(std::move(aligns)) {}
  struct Cell {
    Cell(std::string t, Colour c = Colour::none) : text(std::move(t)), colour(c) {}
    Cell(const char* t) : text(t) {}
    std::string text;
    Colour colour = Colour::none;
  };
  void row(std::vector<Cell> cells) { rows_.push_back(std::move(cells)); }
  /// `width` > 0: lines that would be longer go on below their last column, or, where it has no room, below the row.
  std::string text(std::size_t indent, bool colour, std::size_t width = 0) const;

 private:
  std::vector<Align> aligns_;
  std::vector<std::vector<Cell>> rows_;
};
/// A cell of a table's first row.
inline Table::Cell head(const char* text) { return {text, Colour::dim}; }

}  // namespace oomplan
