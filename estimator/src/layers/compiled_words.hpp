// The words of compiled_graphs.hpp: what buffers of a compiled block's programs they stand for.
#pragma once
#include <cstdint>
#include <string_view>

#include "layers/decoder.hpp"

namespace oomplan {

struct CompiledBuffer {
  std::string_view name;
  Shape shape;
  DType dtype = DType::bf16;
};

struct CompiledWords {
  const Architecture& a;
  const Layer& layer;
  std::int64_t ranks;  ///< that divide the layer

  Dim dim(char letter) const;
  /// "T.F": [T, F]; "P.H": as many numbers as ceil(H / 128) for every token; "16.T.H": 16 times as many as T.H; "T.H~": half of
  /// them.
  Shape shape(std::string_view words) const;
  /// "+7=T.F" in the model's format, "+8=T:4" in 32 bits, "+9=T:1" in 8.
  CompiledBuffer allocated(std::string_view word, DType dtype) const;
};

/// Calls `each` with every word.
template <class Each>
void for_words(std::string_view program, const Each& each) {
  while (!program.empty()) {
    const std::size_t end = program.find(' ');
    if (const std::string_view word = program.substr(0, end); !word.empty()) each(word);
    program.remove_prefix(end == std::string_view::npos ? program.size() : end + 1);
  }
}

}  // namespace oomplan
