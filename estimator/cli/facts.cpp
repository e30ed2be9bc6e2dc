#include <cstdio>

#include "command.hpp"
#include "report/format.hpp"
#include "report/report.hpp"

namespace oomplan::cli {

int run_facts(const Call& call) {
  const std::string_view engine = call.positional.empty() ? std::string_view{} : std::string_view(call.positional[0]);
  const std::string remark = facts_remark(*call.catalog, engine, call.text("version"));
  if (!remark.empty()) std::fprintf(stderr, "warning: %s\n", printable(remark).c_str());
  print(call.json ? facts_to_json(*call.catalog, engine, call.text("version"))
                  : facts_to_text(*call.catalog, engine, call.text("version"), call.style));
  return kFits;
}

}  // namespace oomplan::cli
