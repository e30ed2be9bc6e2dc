// The door of a model's config.json.
#include <limits>

#include <nlohmann/json.hpp>

#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"
#include "checks.hpp"
#include "report/model_card.hpp"

namespace oomplan::fuzz {

void put_config(std::string_view text) {
  answers([&] {
    const Architecture model = read_config(text, "config.json");
    const ParameterCounts n = count(model);
    require(n.language >= 0 && n.tower >= 0 && n.trained <= n.language, "parameters that are fewer than none");
    check_json(model_card_json(model, true));
    check_text(model_card_text(model, false));
  });
}

}  // namespace oomplan::fuzz
