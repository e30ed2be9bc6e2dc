#include "report/models_table.hpp"

#include "command.hpp"

namespace oomplan::cli {

int run_models(const Call& call) {
  const std::string_view word = call.positional.empty() ? std::string_view{} : std::string_view(call.positional[0]);
  print(call.json ? models_to_json(*call.catalog, word) : models_to_text(*call.catalog, word, call.style));
  return kFits;
}

}  // namespace oomplan::cli
