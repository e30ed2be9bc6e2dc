#include "units/gpus_text.hpp"

#include <charconv>

namespace oomplan {

GpusSaid read_gpus(std::string_view text) {
  const auto skip = [&text] {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  };
  skip();
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{}) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  const bool apart = !text.empty() && text.front() == ' ';
  skip();
  if (text.empty()) return {count, {}};
  if (text.front() != 'x' && text.front() != 'X') return {};
  text.remove_prefix(1);
  if (apart && (text.empty() || text.front() != ' ')) return {};  // "8 xh100" is no kind that is known
  skip();
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text.empty() ? GpusSaid{} : GpusSaid{count, text};
}

}  // namespace oomplan
