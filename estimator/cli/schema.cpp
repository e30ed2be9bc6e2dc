#include "report/job_file_schema.hpp"

#include "command.hpp"

namespace oomplan::cli {

int run_schema(const Call&) {
  print(job_file_schema());
  return kFits;
}

}  // namespace oomplan::cli
