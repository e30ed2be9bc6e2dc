#include "report/live_table.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "report/format.hpp"

namespace oomplan {
namespace {

std::string shape_text(const LiveTensor& live) {
  std::string out;
  for (const auto n : live.shape) out += (out.empty() ? "" : " x ") + std::to_string(n);
  return out;
}

}  // namespace

std::string live_table(const std::vector<LiveTensor>& all, std::size_t rows, std::size_t indent, const TextStyle& style) {
  using Align = Table::Align;
  Table table({Align::right, Align::right, Align::left, Align::left, Align::left, Align::left});
  table.row({head("bytes"), head("times"), head("tensor"), head("shape"), head("dtype"), head("kept by")});
  const std::size_t shown = std::min(rows, all.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const LiveTensor& live = all[i];
    std::string holder(name(live.holder));
    std::replace(holder.begin(), holder.end(), '_', ' ');
    table.row({bytes_text(live.bytes), live.count > 1 ? grouped(live.count) : "", clipped(printable(live.name), 40),
               shape_text(live), live.shape.empty() ? "" : std::string(name(live.dtype)), holder});
  }
  std::string out = table.text(indent, style.colour);
  if (shown == all.size()) return out;
  Bytes rest = 0;
  for (std::size_t i = shown; i < all.size(); ++i) rest += all[i].bytes;
  return out + fmt::format("{}and {} more rows with {}\n", std::string(indent, ' '),
                           grouped(static_cast<std::int64_t>(all.size() - shown)), bytes_text(rest));
}

}  // namespace oomplan
