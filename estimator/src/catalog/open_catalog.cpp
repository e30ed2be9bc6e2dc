#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"

namespace oomplan {

std::shared_ptr<const Catalog> open_catalog(const std::string& directory) {
  if (directory.empty()) return {std::shared_ptr<const Catalog>(), &Catalog::builtin()};
  return std::make_shared<const Catalog>(Catalog::with_directory(directory));
}

}  // namespace oomplan
