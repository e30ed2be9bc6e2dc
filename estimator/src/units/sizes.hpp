// Sizes and counts as people write them: `16k` tokens, `1GiB`, `512MiB`, `0.85`, and how oomplan writes them back.
//
// Reading never guesses: a text without exactly one meaning has no value, and `why` says what stands in the way. k and m of a
// count are 1024 and 1048576. A size in bytes needs its unit (only 0 does without). Written texts read back to the same number.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <oomplan/units/bytes.hpp>

namespace oomplan {

/// What a text says, or why it says nothing.
template <class T>
struct Said {
  std::optional<T> value;
  std::string why;
  explicit operator bool() const { return value.has_value(); }
};

/// "16384", "16_384", "16k", "1.5k", "1m". Not negative.
Said<std::int64_t> read_count(std::string_view text);
/// "1GiB", "512 MiB", "80GB" (10^9 bytes), "1024B", "0". Not negative.
Said<Bytes> read_bytes(std::string_view text);
/// A finite decimal number: "0.85", ".5", "1e-1".
Said<double> read_number(std::string_view text);
/// true, false, yes, no, on, off, in any of the cases that YAML 1.1 knows (true, True, TRUE).
Said<bool> read_flag(std::string_view text);

/// For people, always two digits: "74.92 GiB", "512.00 MiB", "17 B".
std::string bytes_text(Bytes);
/// Exact and short, as read_bytes reads it: "1GiB", "1537MiB", "1000B".
std::string exact_bytes_text(Bytes);
/// Exact and short, as read_count reads it: "16k", "10000".
std::string count_text(std::int64_t);
/// The shortest text that reads back to the same number.
std::string number_text(double);

}  // namespace oomplan
