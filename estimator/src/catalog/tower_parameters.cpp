#include "catalog/inventory.hpp"
namespace oomplan {
void tower_parameters(const Tower&, std::int64_t, Inventory&) {}
}
