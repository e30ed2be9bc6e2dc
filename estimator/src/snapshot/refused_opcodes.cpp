#include "snapshot/refused_opcodes.hpp"

#include <algorithm>
#include <array>

namespace oomplan::snapshot {
namespace {

constexpr std::array<Refused, 18> kRefused{{
    {'c', "GLOBAL", true},
    {0x93, "STACK_GLOBAL", true},
    {'R', "REDUCE", true},
    {'b', "BUILD", true},
    {'i', "INST", true},
    {'o', "OBJ", true},
    {0x81, "NEWOBJ", true},
    {0x92, "NEWOBJ_EX", true},
    {'P', "PERSID", true},
    {'Q', "BINPERSID", true},
    {0x82, "EXT1", true},
    {0x83, "EXT2", true},
    {0x84, "EXT4", true},
    {0x97, "NEXT_BUFFER", false},
    {0x98, "READONLY_BUFFER", false},
    {0x8f, "EMPTY_SET", false},
    {0x90, "ADDITEMS", false},
    {0x91, "FROZENSET", false},
}};

}  // namespace

std::optional<Refused> refused_opcode(unsigned char code) {
  const auto row = std::find_if(kRefused.begin(), kRefused.end(), [&](const Refused& r) { return r.code == code; });
  if (row == kRefused.end()) return std::nullopt;
  return *row;
}

}  // namespace oomplan::snapshot
