// Layouts as letters: `d4`, `d2t4`, `d2p2t2c2`, `attn:d2p2t2c2|ffn:d2p2t2e2`. The grammar of AReaL 1.0.3 and later without its
// engine prefix (areal/api/alloc_mode.py); a letter that is left out is 1, the order is free.
//
//   d data (replicas of a server), t tensor, p pipeline, c context (Ulysses on FSDP), e expert
//   behind `ffn:` t is expert tensor and d expert data, which only checks the world
//
// Stricter than AReaL in one point: there a letter that stands twice silently takes its last value; here it is refused.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include <oomplan/job.hpp>

#include "layout/dims.hpp"

namespace oomplan {

/// A layout, or what is wrong with the text.
struct LettersRead {
  std::optional<Layout> layout;
  std::string expected, nearest, why;
  explicit operator bool() const { return layout.has_value(); }
};
LettersRead read_letters(std::string_view text);

/// The shortest text that read_letters reads back to the same layout: "d4", "d2p2t2c2", "attn:d2t2|ffn:e4". world 1 is "d1".
std::string letters(const Layout&);

}  // namespace oomplan
