#include "layers/compiled_words.hpp"

#include <utility>

namespace oomplan {

Dim CompiledWords::dim(char letter) const {
  const Mixer& m = layer.mixer;
  switch (letter) {
    case 'T':
      return axis::T;
    case 'S':
      return axis::S;
    case 'W':
      return Dim(ranks) * axis::T;
    case 'Z':
      return Dim(ranks) * axis::S;
    case 'H':
      return a.hidden;
    case 'A':
      return m.q_width();
    case 'K':
      return m.k_width();
    case 'F':
      return layer.feed_forward.width;
    case 'a':
      return m.heads;
    case 'g':
      return m.kv_heads;
    default:
      return m.head_dim;
  }
}

Shape CompiledWords::shape(std::string_view words) const {
  Shape out;
  const bool partial = words.front() == 'P';
  std::int64_t factor = 0;
  for (const char letter : words) {
    if (letter >= '0' && letter <= '9') {
      factor = 10 * factor + (letter - '0');
    } else if (letter == '.') {
      if (factor > 0) out.push_back(std::exchange(factor, 0));
    } else if (letter == '~') {
      out.back() = Dim(out.back().coefficient / 2);
    } else {
      out.push_back(letter == 'P' ? axis::T : dim(letter));
    }
  }
  if (partial) out.back() = Dim((out.back().coefficient + 127) / 128);
  return out;
}

CompiledBuffer CompiledWords::allocated(std::string_view word, DType dtype) const {
  const std::size_t is = word.find('=');
  const std::string_view name = word.substr(1, is - 1);
  std::string_view size = word.substr(is + 1);
  const DType format = size.ends_with(":4") ? DType::fp32 : size.ends_with(":1") ? DType::fp8 : dtype;
  if (format != dtype) size.remove_suffix(2);
  return {name, shape(size), format};
}

}  // namespace oomplan
