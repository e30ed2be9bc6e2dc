#include "catalog/families/towers.hpp"
#include "catalog/families/traits.hpp"
namespace oomplan {
std::span<const Family> moe_families() { return {}; }
std::span<const Family> mla_families() { return {}; }
std::span<const Family> gemma_families() { return {}; }
std::span<const Family> hybrid_families() { return {}; }
std::span<const Family> state_space_families() { return {}; }
std::span<const Wrapper> wrappers() { return {}; }
}
