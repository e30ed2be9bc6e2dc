#include "command.hpp"
#include "report/report.hpp"

namespace oomplan::cli {

int run_facts(const Call& call) {
  const std::string_view engine = call.positional.empty() ? std::string_view{} : std::string_view(call.positional[0]);
  print(call.json ? facts_to_json(*call.catalog, engine, call.text("version"))
                  : facts_to_text(*call.catalog, engine, call.text("version"), call.style));
  return kFits;
}

}  // namespace oomplan::cli
