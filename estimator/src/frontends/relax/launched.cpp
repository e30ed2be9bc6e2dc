#include "frontends/relax/launched.hpp"

#include <array>

namespace oomplan::relax {
namespace {

using launch::EntryPoint;
using Kind = launch::Entry::Kind;

/// redai-infra/Relax, scripts and docs.
constexpr std::array kPrograms{
    EntryPoint{Kind::module, "relax.entrypoints.train", "", "Relax", "its trainer", "relax"},
    EntryPoint{Kind::script, "relax/entrypoints/train.py", "", "Relax", "its trainer", "relax"},
};

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

}  // namespace oomplan::relax
