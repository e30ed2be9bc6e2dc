#include "command.hpp"
#include "report/report.hpp"

namespace oomplan::cli {

int run_gpus(const Call& call) {
  print(call.json ? gpus_to_json(*call.catalog) : gpus_to_text(*call.catalog, call.style));
  return kFits;
}

}  // namespace oomplan::cli
