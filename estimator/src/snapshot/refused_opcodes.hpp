// The opcodes of a pickle that are known and not obeyed: those that could import or call something, and those that build what no
// snapshot holds.
#pragma once
#include <optional>
#include <string_view>

namespace oomplan::snapshot {

struct Refused {
  unsigned char code;
  std::string_view name;  ///< as in CPython's Lib/pickletools.py (3.13)
  bool runs;              ///< could import or call something
};
/// Nothing for other bytes.
std::optional<Refused> refused_opcode(unsigned char code);

}  // namespace oomplan::snapshot
