// Letters with degrees and what they fold to: "d2p2t2c2" alone, or one list for attention and one for the experts.
//
//   d data, t tensor, p pipeline, c context, e expert; of the experts' list: t expert tensor, d expert data
//   world = d * t * p * c: e lies over it, so that p * e * (expert t) must divide it
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <oomplan/job.hpp>

namespace oomplan {

inline constexpr std::int64_t kMostDegree = std::int64_t{1} << 17;

/// Degrees by letter. `why` is the first thing that is wrong with the text, "" when nothing is.
struct Dims {
  std::map<char, std::int64_t> degree;
  std::string why;
  std::int64_t of(char letter, std::int64_t otherwise = 1) const {
    const auto it = degree.find(letter);
    return it == degree.end() ? otherwise : it->second;
  }
};

/// One degree, 1 to kMostDegree without a leading zero, off the front of `s` into `out`. Says what is wrong, or "".
std::string take_degree(std::string_view& s, char letter, std::int64_t& out);
/// What somebody who writes a letter of another framework or time may have meant; "" for any other letter.
std::string_view meaning_of_letter(char letter);

/// Degrees that the experts' list leaves out.
enum class ExpertDefault : std::uint8_t {
  derived,           ///< t is 1, d is what the GPUs leave
  attention_data,    ///< t is 1, d is that of attention
  attention_tensor,  ///< t and d are those of attention
};

/// A layout and the data degree of its experts, or why there is none.
struct Folded {
  Layout layout;
  std::int64_t expert_data = 1;
  std::string why;
};
/// One list. The experts' tensor degree is 1, or t where `expert_tensor_is_tensor`.
Folded fold(const Dims&, bool expert_tensor_is_tensor = false);
/// Two lists: d, t, p, c of attention; e, t, d, p of the experts, which must fill the same GPUs with the same p.
Folded fold(const Dims& attention, const Dims& experts, ExpertDefault);

}  // namespace oomplan
